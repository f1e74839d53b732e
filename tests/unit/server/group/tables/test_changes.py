"""Changes of tables: rows instead of whole tables, and the sum of several changes."""

from __future__ import annotations

import msgspec
import pytest

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.followed_tables import TableText
from rocketpost.codec.bodies.group import decode_group_table, encode_group_table
from rocketpost.codec.bodies.offset import decode_offset_table
from rocketpost.codec.bodies.topic import decode_topic_table, encode_topic_table
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig
from rocketpost.server.group.tables import changes
from rocketpost.server.replication import tables_feed as feed
from rocketpost.store.deleted_topics import DeletedTopic
from rocketpost.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def topics(clock: FakeClock) -> TopicTable:
    return TopicTable(clock=clock, cluster_name="c", broker_name="b")


def whole_topics(table: TopicTable) -> TableText:
    return TableText(feed.TOPICS, "", encode_topic_table(table.body(), mappings=False))


def test_rows_of_topics_reach_another_table(clock: FakeClock) -> None:
    leader, member = topics(clock), topics(clock)
    for name in ("A", "B", "C"):
        leader.update(TopicConfig(topic_name=name))
    member.follow(leader.body())
    leader.delete("A")
    leader.update(TopicConfig(topic_name="B", read_queue_nums=3, write_queue_nums=3))
    leader.update(TopicConfig(topic_name="D"))
    change = changes.topic_changes(leader, {"A", "B", "D"})
    assert b'"C"' not in change.text
    rows, gone = changes.decode_topic_changes(change.text)
    member.follow(rows, gone=gone)
    assert member.body() == leader.body()


def test_several_changes_of_topics_amount_to_one_table(clock: FakeClock) -> None:
    leader = topics(clock)
    leader.update(TopicConfig(topic_name="A"))
    texts = [whole_topics(leader)]
    leader.update(TopicConfig(topic_name="B"))
    texts.append(changes.topic_changes(leader, {"B"}))
    leader.delete("A")
    leader.delete("B")
    leader.update(TopicConfig(topic_name="B", order=True))
    texts.append(changes.topic_changes(leader, {"A", "B"}))
    (folded,) = changes.fold(texts)
    assert folded.is_whole
    assert decode_topic_table(folded.text) == leader.body()


def test_several_changes_of_groups_amount_to_one_table(clock: FakeClock) -> None:
    leader = GroupTable(clock=clock)
    leader.update(GroupConfig(group_name="G"))
    leader.update(GroupConfig(group_name="H"))
    texts = [TableText(feed.GROUPS, "", encode_group_table(leader.body()))]
    leader.forbid_reading("G", "T", forbidden=True)
    leader.delete("H")
    texts.append(changes.group_changes(leader, {"G", "H"}))
    member = GroupTable(clock=clock)
    member.follow(decode_group_table(texts[0].text))
    rows, gone = changes.decode_group_changes(texts[1].text)
    member.follow(rows, gone=gone)
    assert member.body() == leader.body()
    (folded,) = changes.fold(texts)
    assert decode_group_table(folded.text) == leader.body()


def test_several_changes_of_offsets_amount_to_one_table(clock: FakeClock) -> None:
    leader = OffsetTable(clock=clock)
    leader.commit("T", "G", 0, 5)
    leader.commit("Gone", "G", 0, 5)
    first = leader.changes_since(0, bytes_max=2**60)
    leader.commit("T", "G", 1, 7)
    leader.forget_topic("Gone")
    second = leader.changes_since(first.revision, bytes_max=2**60)
    texts = [
        TableText(feed.OFFSETS, "", first.text),
        TableText(feed.OFFSETS, "", second.text, second.is_whole),
    ]
    assert not second.is_whole
    (folded,) = changes.fold(texts)
    assert decode_offset_table(folded.text).offset_table == {"T@G": {0: 5, 1: 7}}
    assert decode_offset_table(folded.text) == decode_offset_table(leader.to_json())


def test_a_whole_table_makes_the_changes_before_it_irrelevant(clock: FakeClock) -> None:
    leader = topics(clock)
    bad = TableText(feed.TOPICS, "", b"never read", is_whole=False)
    assert changes.fold([bad, whole_topics(leader)]) == [whole_topics(leader)]
    other = TableText(feed.DELAYS, "", b"1"), TableText(feed.DELAYS, "", b"2")
    assert changes.fold(other) == [other[1]]


def test_locks_and_deletions_add_up(clock: FakeClock) -> None:
    locks = QueueLocks(clock=clock)
    queue = MessageQueue("b", 0, "T")
    locks.lock("G", "a", [queue])
    locks.lock("H", "a", [queue])
    texts = [TableText(changes.LOCKS, "", changes.encode_locks(locks.holders()))]
    locks.unlock("G", "a", [queue])
    held = changes.encode_locks(locks.holders(["G"]))
    texts.append(TableText(changes.LOCKS, "", held, is_whole=False))
    (folded,) = changes.fold(texts)
    assert changes.decode_locks(folded.text) == locks.holders()
    deletions = [changes.deletion_change(name, DeletedTopic(9, {0: 3})) for name in ("A", "B")]
    (both,) = changes.fold(deletions)
    assert msgspec.json.decode(both.text).keys() == {"A", "B"}


@pytest.mark.parametrize(
    "decode", [changes.decode_topic_changes, changes.decode_group_changes, changes.decode_locks]
)
def test_malformed_texts_are_refused(decode: object) -> None:
    assert callable(decode)
    for text in (b"", b"[]", b'{"rows":7}', b'{"G":7}'):
        with pytest.raises(RemoteProtocolError):
            decode(text)
    bad = TableText(feed.DELETIONS, "", b"[")
    with pytest.raises(RemoteProtocolError):
        changes.fold([bad, bad._replace(is_whole=False)])


def test_the_start_of_a_log_is_read_back() -> None:
    assert changes.decode_log_start(changes.encode_log_start(2**40)) == 2**40
    for text in (b"", b"x", b'"1"', b"1.5"):
        with pytest.raises(RemoteProtocolError, match="bad start of a log"):
            changes.decode_log_start(text)
