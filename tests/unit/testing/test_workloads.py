from __future__ import annotations

import random
from collections import Counter

import pytest

from rocketpost.client import TransactionState
from rocketpost.codec.record import Record
from rocketpost.testing.workloads.locked import TRUST_SECONDS, LockHistory
from rocketpost.testing.workloads.progress import (
    BEHIND_SECONDS,
    CONTACT_SECONDS,
    OffsetHistory,
)
from rocketpost.testing.workloads.timed import TimedPromises
from rocketpost.testing.workloads.transactions import Database

COMMIT, ROLLBACK, UNKNOWN = TransactionState


def delivered(key: str, store_ms: int) -> Record:
    return Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=0,
        position=0,
        sys_flag=0,
        born_ms=0,
        born_host_bytes=b"",
        store_ms=store_ms,
        store_host_bytes=b"",
        reconsume_times=0,
        prepared_position=0,
        body=key.encode(),
        topic="T",
        properties_bytes=b"",
    )


def timed_promises() -> TimedPromises:
    return TimedPromises(
        due_ms={"kept": 100, "recalled": 100, "asked": 100, "unanswered": 100},
        acknowledged={"kept", "recalled", "asked"},
        recalled={"recalled"},
        maybe_recalled={"recalled", "asked"},
    )


@pytest.mark.parametrize("more", [[], ["asked"], ["unanswered"]])
def test_timed_promises_that_were_kept(more: list[str]) -> None:
    records = [delivered(key, 100) for key in ("kept", *more)]
    assert not timed_promises().find_broken(records)


@pytest.mark.parametrize(
    ("records", "how", "key"),
    [
        ([], "were lost", "kept"),
        ([delivered("kept", 99)], "came early", "kept"),
        ([delivered("kept", 100), delivered("kept", 101)], "came twice", "kept"),
        (
            [delivered("kept", 100), delivered("recalled", 100)],
            "came although they were recalled",
            "recalled",
        ),
    ],
)
def test_timed_promises_that_were_broken(records: list[Record], how: str, key: str) -> None:
    assert timed_promises().find_broken(records) == {how: {key}}


def database() -> Database:
    found = Database(random.Random(1))
    found.ended = {"committed": COMMIT, "rolled back": ROLLBACK}
    found.undecided = {"undecided"}
    return found


def test_transactions_that_ended_well() -> None:
    assert not database().find_broken(Counter(["committed"]), {"undecided"})
    assert not database().find_broken(Counter(), {"undecided", "committed"})


@pytest.mark.parametrize(
    ("found", "given_up", "how", "key"),
    [
        ([], {"undecided"}, "committed and were lost", "committed"),
        (["committed"], set(), "were forgotten", "undecided"),
        (["committed"] * 2, {"undecided"}, "were delivered twice", "committed"),
        (
            ["committed", "rolled back"],
            {"undecided"},
            "were delivered without a commit",
            "rolled back",
        ),
    ],
)
def test_transactions_that_ended_badly(
    found: list[str], given_up: set[str], how: str, key: str
) -> None:
    assert database().find_broken(Counter(found), given_up) == {how: {key}}


def test_a_lock_has_one_holder_at_a_time() -> None:
    history = LockHistory()
    assert history.grant(0, "a", asked_at=0, now=1) is None
    assert history.grant(1, "b", asked_at=1, now=2) is None
    assert history.grant(0, "a", asked_at=5, now=6) is None
    assert history.grant(0, "b", asked_at=5, now=TRUST_SECONDS + 4) == "a"


def test_a_lock_may_be_released_or_expire() -> None:
    history = LockHistory()
    history.grant(0, "a", asked_at=0, now=1)
    history.release(0, "b")
    history.release(0, "a")
    assert history.grant(0, "b", asked_at=2, now=3) is None
    assert history.grant(0, "c", asked_at=0, now=TRUST_SECONDS + 2) is None


def test_offsets_that_a_leader_had_time_to_write_must_stay() -> None:
    history = OffsetHistory()
    late = BEHIND_SECONDS + CONTACT_SECONDS + 1
    history.commit(5, connection=1, now=0)
    history.commit(9, connection=1, now=2)
    assert history.answer(9, connection=1, now=late) == 0
    assert history.kept == 5
    assert history.answer(6, connection=2, now=late + 9) == 0
    assert history.answer(3, connection=3, now=late + 9) == 2
