"""Ends of transactions: what is stored, what is refused, what a crash leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.broker.transaction.service import TRANSACTION_GROUP
from rocketpost.codec.faults import (
    IllegalOperation,
    ServerError,
    SystemBusy,
    TopicNotExist,
)
from rocketpost.codec.record import message_id
from rocketpost.errors import Fault
from rocketpost.model.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rocketpost.model.topic import TopicConfig

from ..transaction_world import COMMIT, GROUP, HOST, ROLLBACK, TOPIC, UNKNOWN, Sent, World, answer

OP_MS = 3000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.close()


def test_a_half_waits_in_the_half_topic(world: World) -> None:
    sent = world.send("a", KEYS="k")
    assert world.names() == []
    [half] = world.halves()
    assert (half.position, half.queue_offset) == (sent.position, sent.offset)
    properties = half.properties
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == (TOPIC, "2")
    assert properties["__transactionId__"] == "a"
    assert world.pending == ["a"]


def test_a_commit_is_the_half_at_its_destination(world: World) -> None:
    sent = world.send("a", KEYS="k")
    assert world.end(sent, COMMIT)
    [half], [copy] = world.halves(), world.records(TOPIC)
    assert (copy.topic, copy.queue_id, copy.sys_flag & 0xC) == (TOPIC, 2, COMMIT)
    assert copy.prepared_position == half.position
    assert copy.properties == half.properties  # RocketMQ's consumers find TRAN_MSG in there
    for name in ("flag", "body", "born_ms", "born_host_bytes", "reconsume_times"):
        assert getattr(copy, name) == getattr(half, name)
    assert world.pending == []
    assert world.store.find(TOPIC, "k", count_max=9, begin_ms=0, end_ms=2**62) == [
        copy.position
    ] or (world.store.find(TOPIC, "a", count_max=9, begin_ms=0, end_ms=2**62) == [copy.position])


def test_a_rollback_is_an_op_message_at_once(world: World) -> None:
    sent = world.send()
    assert world.end(sent, ROLLBACK)
    assert world.names() == []
    assert world.done() == {sent.offset}
    [op] = world.records(OP_HALF_TOPIC)
    assert (op.properties["TAGS"], bytes(op.body)) == ("d", b"0,")


def test_op_messages_of_commits_are_batched(world: World) -> None:
    for _ in range(3):
        world.end(world.send(), COMMIT)
    assert world.wait_ms() == OP_MS
    assert world.done() == set()
    world.later(OP_MS)
    assert [bytes(op.body) for op in world.records(OP_HALF_TOPIC)] == [b"0,1,2,"]
    assert world.wait_ms() is None


def test_a_long_op_message_does_not_wait(world: World) -> None:
    world.transactions.rules = world.rules._replace(op_chars_max=4)
    for _ in range(2):
        world.end(world.send(), COMMIT)
    world.work()
    assert world.done() == {0, 1}


def test_without_an_index_the_op_message_is_stored_with_the_commit(tmp_path: Path) -> None:
    world = World(tmp_path / "store", index=False)
    sent = world.send("a")
    assert world.end(sent, COMMIT)
    assert world.done() == {sent.offset}
    world.crash()
    assert world.pending == []
    with pytest.raises(IllegalOperation):
        world.end(sent, COMMIT)
    assert world.names() == ["a"]
    world.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"producer_group": "other"}, "belongs to the group"),
        ({"topic": GROUP}, "belongs to the group"),
        ({"tran_state_table_offset": 5}, "queue offset"),
        ({"commit_log_offset": 3}, "no half message"),
        ({"commit_log_offset": -1}, "no half message"),
        ({"commit_or_rollback": 4}, "is neither a commit"),
    ],
)
def test_an_end_that_matches_no_half_changes_nothing(
    world: World, change: dict[str, object], reason: str
) -> None:
    sent = world.send("a")
    with pytest.raises(ServerError, match=reason):
        world.transactions.end(world.header(sent, COMMIT, **change))
    assert world.pending == ["a"]
    assert world.names() == []


def test_a_message_of_another_topic_is_not_a_half(world: World) -> None:
    sent = world.send("a")
    world.end(sent, COMMIT)
    [copy] = world.records(TOPIC)
    with pytest.raises(ServerError, match="no half message"):
        world.end(Sent("a", copy.position, copy.queue_offset), COMMIT)


def test_a_commit_needs_its_topic(world: World) -> None:
    sent = world.send("a")
    del world.topics.table[TOPIC]
    with pytest.raises(TopicNotExist, match="create it again"):
        world.end(sent, COMMIT)
    assert world.pending == ["a"]
    world.topics.table[TOPIC] = TopicConfig(topic_name=TOPIC, write_queue_nums=1, read_queue_nums=1)
    world.end(sent, COMMIT)
    assert [record.queue_id for record in world.records(TOPIC)] == [0]


def test_after_its_immunity_only_an_answer_counts(world: World) -> None:
    sent = world.send("a", CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    world.clock.advance(10_000)
    in_time = world.send("b", CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    world.clock.advance(1)
    with pytest.raises(IllegalOperation, match="immunity"):
        world.end(sent, COMMIT)
    assert world.end(in_time, COMMIT)
    assert world.end(sent, COMMIT, asked=True)


def test_issue_5574_ending_twice_commits_once(world: World) -> None:
    """RocketMQ stores the message as often as its commit arrives."""
    sent = world.send("a")
    assert world.end(sent, COMMIT)
    assert not world.end(sent, COMMIT)
    world.crash()
    assert not world.end(sent, COMMIT)
    assert world.names() == ["a"]


def test_issue_2694_a_transaction_ends_in_one_way_only(world: World) -> None:
    """RocketMQ delivers a message that a check rolled back, if a commit comes after that."""
    kept, gone = world.send("kept"), world.send("gone")
    world.end(kept, COMMIT)
    world.end(gone, ROLLBACK)
    for _ in range(2):
        with pytest.raises(IllegalOperation, match="committed"):
            world.end(kept, ROLLBACK)
        with pytest.raises(IllegalOperation, match="rolled back"):
            world.end(gone, COMMIT)
        assert not world.end(gone, ROLLBACK)
        world.later(OP_MS)
        world.crash()
    assert world.names() == ["kept"]


def test_an_end_that_is_being_stored_is_not_repeated(world: World) -> None:
    sent = world.send("a")
    ending = world.begin(sent, COMMIT)
    assert ending is not None
    with pytest.raises(SystemBusy):
        world.begin(sent, COMMIT)
    with pytest.raises(IllegalOperation, match="being committed"):
        world.begin(sent, ROLLBACK)
    assert not world.transactions.note_stored(ending, [])  # the store was full
    assert world.pending == ["a"]
    assert world.end(sent, COMMIT)
    assert world.names() == ["a"]


def test_a_rollback_that_is_not_stored_leaves_other_op_messages_to_be_written(
    world: World,
) -> None:
    committed, sent = world.send(), world.send()
    world.end(committed, COMMIT)
    ending = world.begin(sent, ROLLBACK)
    assert ending is not None
    world.transactions.note_stored(ending, [])
    world.later(OP_MS)
    assert committed.offset in world.done()
    assert world.pending == [sent.name]


def test_a_crash_between_commit_and_op_message_does_not_commit_twice(world: World) -> None:
    sent = world.send("a")
    world.end(sent, COMMIT)
    world.crash()
    assert world.pending == ["a"]  # until it is looked for
    assert not world.transactions.look_up_commits(9)
    assert world.pending == []
    world.later(OP_MS)
    assert world.done() == {sent.offset}
    assert world.names() == ["a"]


def test_an_end_after_the_crash_finds_the_commit_by_itself(world: World) -> None:
    sent = world.send("a")
    world.end(sent, COMMIT)
    world.crash()
    assert not world.end(sent, COMMIT)
    world.crash()
    with pytest.raises(IllegalOperation):
        world.end(sent, ROLLBACK)
    assert world.names() == ["a"]


def test_one_message_sent_twice_is_two_messages(world: World) -> None:
    first = world.send("same")
    world.end(first, COMMIT)
    world.clock.advance(1)
    second = world.send("same")
    world.crash()
    assert world.end(second, COMMIT)
    assert world.names() == ["same", "same"]


def test_a_half_stored_twice_by_a_resend_is_one_transaction(world: World) -> None:
    first, second = world.send("a"), world.send("a")
    assert world.pending == ["a"]
    assert world.end(second, COMMIT)
    assert not world.end(first, COMMIT)
    world.later(OP_MS)
    assert world.done() == {first.offset, second.offset}
    assert world.names() == ["a"]


def test_a_resend_that_comes_after_the_commit_is_not_committed_again(world: World) -> None:
    """A follower of a group may pass on late what its client has long sent again."""
    first = world.send("a")
    assert world.end(first, COMMIT)
    world.send("a")
    assert not world.end(first, COMMIT)
    assert world.pending == []
    assert world.names() == ["a"]


def test_progress_stops_at_the_first_pending_half(world: World) -> None:
    sent = [world.send() for _ in range(4)]
    for each in (sent[0], sent[2], sent[3]):
        world.end(each, COMMIT)
    world.later(OP_MS)
    world.save()
    assert world.offsets.query(HALF_TOPIC, TRANSACTION_GROUP, 0) == 1
    assert world.offsets.query(OP_HALF_TOPIC, TRANSACTION_GROUP, 0) == 0
    world.crash()
    assert world.pending == [sent[1].name]
    world.end(sent[1], ROLLBACK)
    world.save()
    assert world.offsets.query(HALF_TOPIC, TRANSACTION_GROUP, 0) == 4
    assert world.offsets.query(OP_HALF_TOPIC, TRANSACTION_GROUP, 0) == 2
    world.crash()
    assert world.pending == []


def test_progress_waits_for_the_disk(world: World) -> None:
    sent = world.send()
    world.end(sent, COMMIT)
    world.transactions.advance_progress(sent.position)
    assert world.offsets.query(HALF_TOPIC, TRANSACTION_GROUP, 0) == sent.offset
    world.transactions.advance_progress(int(world.store.end_position))
    assert world.offsets.query(HALF_TOPIC, TRANSACTION_GROUP, 0) == sent.offset + 1


def test_without_saved_progress_all_is_read_again(world: World) -> None:
    done, left = world.send(), world.send()
    world.end(done, ROLLBACK)
    world.saved = b""
    world.crash()
    assert world.pending == [left.name]


def test_progress_beyond_the_log_is_corrected(world: World) -> None:
    world.send("a")
    world.offsets.commit(HALF_TOPIC, TRANSACTION_GROUP, 0, 99)
    world.saved = world.offsets.to_json()
    world.crash()
    world.send("b")
    assert world.pending == ["b"]


def test_op_messages_of_rocketmq_4_name_one_half(world: World) -> None:
    first, second = world.send("a"), world.send("b")
    draft = world.transactions.op_draft([first.offset])
    draft.body = b"0"
    world.put([draft])
    world.crash()
    assert world.pending == [second.name]


def test_a_discarded_transaction_is_resumed(world: World) -> None:
    world.transactions.rules = world.rules._replace(check_max=1)
    world.send("a")
    world.later(6000)
    world.later(30_000)
    assert world.discarded() == ["a"]
    [record] = world.records(CHECK_MAX_TOPIC)
    position = record.position
    assert message_id(HOST, position) == record.message_id
    world.put([world.transactions.resume(position)])
    assert world.pending == ["a"]
    with pytest.raises(IllegalOperation, match="already pending"):
        world.transactions.resume(position)
    [question] = world.later(6000)
    assert world.end(answer(question), COMMIT, asked=True)
    with pytest.raises(IllegalOperation, match="committed since"):
        world.transactions.resume(position)
    assert world.names() == ["a"]


def test_only_discarded_transactions_are_resumed(world: World) -> None:
    sent = world.send("a")
    for position in (sent.position, -1, 7):
        with pytest.raises(ServerError, match="no discarded transaction"):
            world.transactions.resume(position)


def test_a_late_commit_of_a_discarded_transaction_counts(world: World) -> None:
    world.transactions.rules = world.rules._replace(check_max=1)
    sent = world.send("a")
    world.later(6000)
    world.later(30_000)
    assert world.pending == []
    ending = world.begin(sent, COMMIT)
    assert ending is not None
    with pytest.raises(SystemBusy):
        world.begin(sent, COMMIT)
    world.transactions.note_stored(ending, world.put(ending.drafts))
    assert not world.end(sent, COMMIT)
    assert world.names() == ["a"]


def test_a_resumed_and_rolled_back_transaction_cannot_be_committed(world: World) -> None:
    world.transactions.rules = world.rules._replace(check_max=1)
    sent = world.send("a")
    world.later(6000)
    world.later(30_000)
    [record] = world.records(CHECK_MAX_TOPIC)
    world.put([world.transactions.resume(record.position)])
    world.end(sent, ROLLBACK)
    with pytest.raises(Fault, match="rolled back"):
        world.end(sent, COMMIT)
    assert world.names() == []


def test_an_unknown_outcome_is_noted(world: World) -> None:
    sent = world.send("a")
    [question] = world.later(6000)
    world.transactions.note_unknown(world.header(answer(question), UNKNOWN, asked=True))
    world.transactions.note_unknown(world.header(sent._replace(position=3), UNKNOWN))
    assert world.pending == ["a"]
