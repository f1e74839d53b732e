"""A member's store opens anywhere, but what others did with it stays out of the group."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import StoreError
from rocketpost.model.members import Configuration
from rocketpost.store.checkpoint import is_changed_by_others
from rocketpost.store.member.reset import reset_log_blocking

from ..conftest import Opener, Roomy, draft
from .test_member_store import Members, agree, lead, members

__all__ = ["members"]


def test_a_store_of_no_member_is_not_marked(opener: Opener) -> None:
    opener()
    assert not (opener.root / "outside-group").exists()


def test_a_single_broker_reads_a_members_store_and_keeps_it(members: Members) -> None:
    member = members()
    lead(member, 1)
    agree(member)
    lead(member, 2)
    members.close(member)
    for _ in range(2):
        store = members._opener()
        queue = store.queue("TopicA", 0)
        assert queue is not None
        assert queue.end >= 6  # committed or not
        store.append(draft())
        store.commit()
        store.close_blocking()
    with pytest.raises(StoreError, match="used by a broker outside of its group since"):
        members()
    reset_log_blocking(
        members._opener.config(),
        Roomy(),
        first=16384,
        spans=((1, 0),),
        members=Configuration(0, ()),
        on_reset=lambda position: None,
    )
    assert members().store.end_position == 16384


def test_a_java_broker_is_noticed_by_the_checkpoint(members: Members) -> None:
    member = members()
    lead(member, 1)
    agree(member)
    members.close(member)
    path = members.root / "checkpoint"
    ours = path.read_bytes()
    assert not is_changed_by_others(ours)
    flipped = bytearray(ours)
    flipped[5] ^= 1
    assert not is_changed_by_others(bytes(flipped))  # damage, which our copy repairs
    assert not is_changed_by_others(ours[:64] + bytes(4032))
    java = (int.from_bytes(ours[:8], "big") + 12345).to_bytes(8, "big") * 2 + ours[16:]
    assert is_changed_by_others(java)
    path.write_bytes(java)
    with pytest.raises(StoreError, match="used by a Java broker since"):
        members()
    path.write_bytes(ours)
    assert not members().suspicions


def test_a_broker_that_cannot_leave_the_mark_does_not_start(members: Members) -> None:
    member = members()
    lead(member, 1)
    members.close(member)
    (members.root / "outside-group").symlink_to(Path("missing") / "directory")
    with pytest.raises(StoreError, match="cannot be opened"):
        members._opener()
