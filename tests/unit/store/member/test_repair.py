"""Old log as it is on disk: read, compared and repaired."""

from __future__ import annotations

import pytest

from rocketpost.errors import StoreError
from rocketpost.store.integrity.damage import Damage
from rocketpost.store.member.repair import UNREADABLE, OldLog, digest_of

from .test_member_store import SEGMENT, Members, agree, lead, members

__all__ = ["members"]


def test_bytes_are_compared_and_repaired_in_place(members: Members) -> None:
    member = members()
    lead(member, 1, 250)
    agree(member)
    store, old = member.store, member.old_log
    begin, end = SEGMENT + 1000, SEGMENT + 3000
    data = old.read_blocking(begin, end)
    assert data == bytes(store.view(begin, end - begin) or b"")
    assert old.digest_blocking(begin, end) == digest_of(data)
    path = members.root / "commitlog" / f"{SEGMENT:020}"
    with path.open("r+b") as file:
        file.seek(1500)
        file.write(b"\x55\xaa\x55")
    assert old.digest_blocking(begin, end) != digest_of(data)
    for at in (begin + 10, end - 10):
        store.damage.report_from_thread(Damage(at, at + 20, "a test"))
    old.repair_blocking(begin, data)
    assert old.digest_blocking(begin, end) == digest_of(data)
    assert bytes(store.view(begin, end - begin) or b"") == data
    assert [each.begin for each in store.damage.all()] == [end - 10], "not all of it was repaired"


def test_only_bytes_of_one_segment_are_read(members: Members) -> None:
    member = members()
    lead(member, 1, 250)
    agree(member)
    old = member.old_log
    for begin, end in ((SEGMENT - 10, SEGMENT + 10), (100 * SEGMENT, 100 * SEGMENT + 1), (5, 5)):
        with pytest.raises(StoreError, match="no bytes"):
            old.read_blocking(begin, end)


def test_an_unreadable_sector_differs_from_everything(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = members()
    lead(member, 1, 20)
    agree(member)

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(OldLog, "read_blocking", fail)
    assert member.old_log.digest_blocking(0, 100) == UNREADABLE
