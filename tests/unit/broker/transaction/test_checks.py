"""Questions to producers: when, how often, to whom, and what happens in the end."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.broker.delivery import Wait
from rocketpost.broker.transaction import checks as transaction_checks
from rocketpost.broker.transaction.checks import Work
from rocketpost.broker.transaction.service import TRANSACTION_GROUP
from rocketpost.broker.transaction.table import Fate
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, encode_properties
from rocketpost.codec.record import Record
from rocketpost.errors import StoreFull
from rocketpost.model.names import CHECK_MAX_TOPIC, HALF_TOPIC
from rocketpost.store.draft import Draft

from ..transaction_world import (
    BORN,
    COMMIT,
    GROUP,
    HOST,
    ROLLBACK,
    TOPIC,
    UNKNOWN,
    Sent,
    World,
    answer,
)

TIMEOUT_MS, INTERVAL_MS, OP_MS, HOUR_MS = 6000, 30_000, 3000, 3_600_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.close()


def test_a_half_is_checked_when_its_immunity_is_over(world: World) -> None:
    sent = world.send("a")
    assert world.wait_ms() == TIMEOUT_MS
    assert world.later(TIMEOUT_MS - 1) == []
    [question] = world.later(1)
    assert (question.group, question.unique_key) == (GROUP, "a")
    record = question.record
    assert (record.topic, record.queue_id, bytes(record.body)) == (TOPIC, 2, b"body of a")
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "1"
    assert record.properties["TRAN_PREPARED_QUEUE_OFFSET"] == str(sent.offset)
    assert (question.offset, question.position) == (1, record.position)
    assert world.done() == {sent.offset}  # the newer copy stands for it
    assert world.wait_ms() == INTERVAL_MS


def test_the_answer_ends_the_transaction(world: World) -> None:
    for name, kind in (("a", COMMIT), ("b", ROLLBACK)):
        world.send(name)
        [question] = world.later(TIMEOUT_MS)
        assert world.end(answer(question), kind, asked=True)
    world.later(OP_MS)
    assert world.names() == ["a"]
    assert world.pending == []
    assert world.done() == set(range(4))


def test_a_half_without_room_for_the_count_is_discarded(world: World) -> None:
    """RocketMQ's broker takes such halves; the others that are due must not wait for it."""
    properties = {"UNIQ_KEY": "a", "TRAN_MSG": "true", "PGROUP": GROUP, "REAL_TOPIC": TOPIC}
    properties |= {"REAL_QID": "2", "x": ""}
    properties["x"] = "x" * (PROPERTIES_BYTES_MAX - len(encode_properties(properties)))
    draft = Draft(
        HALF_TOPIC, 0, 0, 0, world.clock.now_ms(), BORN, HOST, 0, 0, b"body of a",
        encode_properties(properties), 0, ("a",),
    )  # fmt: skip
    [stored] = world.put([draft])
    world.send("b")
    [question] = world.later(TIMEOUT_MS)
    assert question.unique_key == "b"
    assert (world.discarded(), world.pending) == (["a"], ["b"])
    assert world.end(Sent("a", stored.position, stored.queue_offset), COMMIT)
    assert world.names() == ["a"]


def test_a_commit_may_still_name_the_first_copy(world: World) -> None:
    """RocketMQ commits it, keeps asking about the newer copy, and commits that as well."""
    sent = world.send("a")
    [question] = world.later(TIMEOUT_MS)
    assert world.end(sent, COMMIT)
    assert not world.end(answer(question), COMMIT, asked=True)
    assert world.later(10 * INTERVAL_MS) == []
    assert world.names() == ["a"]


def test_a_silent_producer_is_asked_a_limited_number_of_times(world: World) -> None:
    world.send("a")
    times = []
    while world.pending:
        wait_ms = world.wait_ms()
        assert wait_ms is not None
        times += [world.clock.now_ms() for _ in world.later(wait_ms)]
    assert len(times) == 15
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {INTERVAL_MS}
    assert world.discarded() == ["a"]
    assert world.transactions.tally.total(Fate.DISCARD) == 1
    [record] = world.records(CHECK_MAX_TOPIC)
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "15"
    assert record.properties["REAL_TOPIC"] == TOPIC
    world.crash()
    assert world.pending == []


def test_the_count_survives_crashes(world: World) -> None:
    world.send("a")
    asked = 0
    for _ in range(40):
        asked += len(world.later(INTERVAL_MS))
        world.crash()
    assert asked == 15
    assert world.discarded() == ["a"]


def test_issue_544_a_half_is_checked_after_its_immunity(world: World) -> None:
    """RocketMQ lost a half whose immunity ended in the millisecond of the check."""
    world.send("a", CHECK_IMMUNITY_TIME_IN_SECONDS="60")
    assert world.wait_ms() == 60_000
    assert world.later(59_999) == []
    assert [question.unique_key for question in world.later(1)] == ["a"]


def test_issue_8311_immunity_does_not_use_up_checks(world: World) -> None:
    """RocketMQ counts a question in each round of the immunity, and discards without asking."""
    world.send("a", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    for _ in range(60):
        world.later(INTERVAL_MS)
        world.crash()
    world.later(HOUR_MS)
    [half] = world.transactions.table
    assert half.checks == 1


def test_issue_1517_an_ended_transaction_is_not_checked(world: World) -> None:
    """RocketMQ asked about thousands of halves whose op messages it had not read yet."""
    sent = [world.send() for _ in range(300)]
    for number, each in enumerate(sent):
        if number % 2:
            world.end(each, COMMIT if number % 3 else ROLLBACK)
    world.save()
    world.crash()
    asked = {question.unique_key for question in world.later(TIMEOUT_MS)}
    asked |= {question.unique_key for question in world.work()}
    assert asked == {each.name for each in sent[::2]}


def test_a_resend_that_comes_after_the_commit_is_not_asked_about(world: World) -> None:
    sent = world.send("a")
    assert world.end(sent, COMMIT)
    world.send("a")
    assert world.later(TIMEOUT_MS) == []
    assert world.pending == []


def test_issue_9500_an_unreadable_half_does_not_block_others(world: World) -> None:
    """RocketMQ began again at the same half for ever when one could not be dealt with."""
    world.send("a")
    world.send("b")
    lost, _ = world.transactions.table
    lost.position = 3  # as if its segment were gone
    assert [question.unique_key for question in world.later(TIMEOUT_MS)] == ["b"]
    assert world.pending == ["b"]


def test_halves_without_producer_wait_for_one(world: World) -> None:
    """RocketMQ counts questions that nobody hears, and discards after 15 rounds."""
    world.producers.clear()
    world.send("a")
    assert world.later(TIMEOUT_MS) == []
    assert world.later(HOUR_MS) == []
    assert world.checks.waiting == {GROUP: 1}
    assert len(world.halves()) == 1  # nothing was written meanwhile
    world.producers.add(GROUP)
    assert not world.checks.note_producer("other")
    assert world.checks.note_producer(GROUP)
    assert [question.unique_key for question in world.work()] == ["a"]
    assert world.checks.waiting == {}


def test_a_half_that_ends_waits_no_longer(world: World) -> None:
    world.producers.clear()
    sent = world.send("a")
    world.later(TIMEOUT_MS)
    world.end(sent, COMMIT)
    assert world.checks.waiting == {}
    assert not world.checks.note_producer(GROUP)


def test_a_half_older_than_messages_are_kept_is_discarded(world: World) -> None:
    world.producers.clear()
    world.send("a")
    world.later(TIMEOUT_MS)
    world.later(72 * HOUR_MS - TIMEOUT_MS)
    assert world.pending == ["a"]
    world.later(1)
    assert world.pending == []
    assert world.discarded() == ["a"]


def test_issue_1519_no_group_is_asked_too_much_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocketMQ stored halves again for ever when too many questions were under way."""
    monkeypatch.setattr(transaction_checks, "ASKED_MAX", 2)
    for name in "abcd":
        world.send(name)
    world.producers.add("other")
    world.send("x", group="other")
    first = world.later(TIMEOUT_MS)
    assert [question.unique_key for question in first] == ["a", "b", "x"]
    world.end(answer(first[0]), ROLLBACK, asked=True)
    assert [question.unique_key for question in world.work()] == ["c"]
    header = world.header(answer(first[1]), UNKNOWN, asked=True)
    world.transactions.note_unknown(header)
    assert [question.unique_key for question in world.work()] == ["d"]
    # Who does not answer in time is asked again in turn.
    again = world.later(INTERVAL_MS)
    assert len(again) == 3
    assert {question.group for question in again} == {GROUP, "other"}


def test_a_full_store_postpones_and_loses_nothing(world: World) -> None:
    for name in "abc":
        world.send(name)
    world.clock.advance(TIMEOUT_MS)
    work = world.checks.next()
    assert isinstance(work, Work)
    world.room = 2
    questions = world.do(work)
    assert [question.unique_key for question in questions] == ["a", "b"]
    world.room = 0
    with pytest.raises(StoreFull):
        world.later(1000)
    world.room = None
    world.later(1000)
    assert world.pending == ["a", "b", "c"]
    world.later(OP_MS)
    assert {0, 1} <= world.done()
    world.crash()
    assert world.pending == ["a", "b", "c"]


def test_a_discard_without_room_is_tried_again(world: World) -> None:
    world.transactions.rules = world.rules._replace(check_max=1)
    world.send("a")
    world.later(TIMEOUT_MS)
    world.clock.advance(INTERVAL_MS)
    work = world.checks.next()
    assert isinstance(work, Work)
    world.checks.note_stored(work, [])
    assert world.pending == ["a"]
    world.later(1000)
    assert (world.pending, world.discarded()) == ([], ["a"])


def test_a_commit_overtakes_the_discard(world: World) -> None:
    world.transactions.rules = world.rules._replace(check_max=1)
    sent = world.send("a")
    world.later(TIMEOUT_MS)
    world.clock.advance(INTERVAL_MS)
    work = world.checks.next()
    assert isinstance(work, Work)
    ending = world.begin(sent, COMMIT)
    assert ending is not None
    world.do(work)
    world.transactions.note_stored(ending, world.put(ending.drafts))
    assert world.names() == ["a"]
    assert world.pending == []


def test_a_commit_during_the_store_of_a_check_cancels_the_check(world: World) -> None:
    sent = world.send("a")
    world.clock.advance(TIMEOUT_MS)
    work = world.checks.next()
    assert isinstance(work, Work)
    ending = world.begin(sent, COMMIT)
    assert ending is not None
    assert world.do(work) == []
    world.transactions.note_stored(ending, world.put(ending.drafts))
    world.later(OP_MS)
    assert (world.pending, world.done()) == ([], {0, 1})
    world.crash()
    assert world.pending == []


def test_halves_are_moved_out_of_segments_to_delete(world: World) -> None:
    world.producers.clear()
    old = world.send("old")
    world.clock.advance(72 * HOUR_MS + 1)
    young = world.send("young")
    safe = world.send("safe")
    work = world.checks.move_halves_before(safe.position)
    assert work is not None
    assert world.checks.is_needed_before(safe.position)
    assert world.do(work) == []
    assert not world.checks.is_needed_before(safe.position)
    assert world.checks.move_halves_before(safe.position) is None
    assert world.discarded() == ["old"]
    assert world.pending == ["safe", "young"]
    assert {half.position > safe.position for half in world.transactions.table} == {True, False}
    assert world.done() == {old.offset, young.offset}


def test_a_half_that_blocks_the_queue_moves_to_its_end(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "LAG_MAX", 20)
    world.producers.clear()
    world.send("stays")
    for _ in range(30):
        world.end(world.send(), COMMIT)
        world.work()
    world.later(OP_MS)
    world.save()
    assert world.pending == ["stays"]
    assert world.offsets.query(HALF_TOPIC, TRANSACTION_GROUP, 0) > 10
    [half] = world.transactions.table
    assert half.checks == 0
    world.crash()
    assert world.pending == ["stays"]
    [half] = world.transactions.table
    assert half.since_ms < world.clock.now_ms()


def test_a_clock_set_back_delays_no_check(world: World) -> None:
    world.send("a")
    assert isinstance(world.checks.next(), Wait)
    world.clock.set_back(HOUR_MS)
    assert world.wait_ms() == TIMEOUT_MS
    assert [question.unique_key for question in world.later(TIMEOUT_MS)] == ["a"]


def test_a_clock_set_back_during_a_stop_delays_no_check(world: World) -> None:
    world.send("a")
    world.clock.set_back(HOUR_MS)
    world.crash()
    assert world.wait_ms() == TIMEOUT_MS


def test_copies_that_rocketmq_made_are_the_same_transaction(world: World) -> None:
    """Its copies of questions do not name the first offset."""
    sent = world.send("a")
    [record] = world.halves()
    properties = record.properties_bytes + b"TRANSACTION_CHECK_TIMES\x013\x02"
    draft = transaction_checks.renewed_draft(record, checks=3, store_host=record.store_host_bytes)
    draft.properties = properties
    world.put([draft])
    world.offsets.commit(HALF_TOPIC, TRANSACTION_GROUP, 0, 1)
    world.saved = world.offsets.to_json()
    world.crash()
    [half] = world.transactions.table
    assert (half.checks, half.offset) == (3, 1)
    assert world.end(sent, COMMIT)
    assert world.pending == []
    assert world.later(INTERVAL_MS) == []


def test_the_last_op_message_is_written_at_the_stop(world: World) -> None:
    assert world.checks.flush() is None
    sent = world.send()
    world.end(sent, COMMIT)
    work = world.checks.flush()
    assert work is not None
    world.do(work)
    assert world.done() == {sent.offset}


def _fail_once(monkeypatch: pytest.MonkeyPatch, world: World, at: int) -> None:
    """Make the ``at``-th reading of a record fail."""
    calls = itertools.count(1)
    record_at = world.checks._record_at

    def read(position: int) -> Record | None:
        if next(calls) == at:
            raise OSError(errno.EMFILE, "too many open files")
        return record_at(position)

    monkeypatch.setattr(world.checks, "_record_at", read)


def test_halves_that_cannot_be_read_for_a_moment_are_checked_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        world.send(name)
    world.clock.advance(TIMEOUT_MS)
    _fail_once(monkeypatch, world, 2)
    assert [question.unique_key for question in world.work()] == ["a", "c"]
    assert [question.unique_key for question in world.later(1000)] == ["b"]
    assert [half.checks for half in world.transactions.table] == [1, 1, 1]


def test_halves_that_cannot_be_read_for_a_moment_are_moved_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [world.send(name) for name in "ab"]
    position = sent[-1].position + 1
    _fail_once(monkeypatch, world, 2)
    with pytest.raises(OSError, match="too many"):
        world.checks.move_halves_before(position)
    work = world.checks.move_halves_before(position)
    assert work is not None
    world.do(work)
    assert not world.checks.is_needed_before(position)
    assert world.later(TIMEOUT_MS - 1) == []
    assert len(world.later(1)) == 2


def test_a_question_about_a_half_that_cannot_be_read_is_asked_at_its_next_check(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        world.send(name)
    world.clock.advance(TIMEOUT_MS)
    _fail_once(monkeypatch, world, 3)  # the first two readings are for the copies
    assert [question.unique_key for question in world.work()] == ["b"]
    assert [question.unique_key for question in world.later(INTERVAL_MS)] == ["a", "b"]


def test_halves_that_cannot_be_read_when_they_arrive_are_checked_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(position: int) -> Record | None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "record_at", fail)
        sent = [world.send(name) for name in "abc"]
        assert world.wait_ms() == 1000
        assert world.pending == []
    assert world.end(sent[1], COMMIT)
    assert world.pending == ["a", "c"]
    assert [question.unique_key for question in world.later(TIMEOUT_MS)] == ["a", "c"]


def test_a_commit_before_a_crash_is_looked_up_although_that_fails_at_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send("a")
    [question] = world.later(TIMEOUT_MS)
    assert world.end(answer(question), COMMIT)
    world.crash()  # the op message was not stored
    assert world.pending == ["a"]
    read, calls = world.store.record_at, itertools.count(1)

    def fail_once(position: int) -> Record | None:
        if next(calls) == 1:
            raise OSError(errno.EMFILE, "too many open files")
        return read(position)

    monkeypatch.setattr(world.store, "record_at", fail_once)
    assert world.later(INTERVAL_MS) == []
    assert world.later(INTERVAL_MS) == []
    assert world.pending == []
    assert world.names() == ["a"]
