"""Queues and mappings, and that they are counted truly."""

from __future__ import annotations

import pytest

from rocketpost.codec.bodies.registration import RegisteredTopics
from rocketpost.codec.bodies.route import QueueMapping
from rocketpost.codec.faults import SystemBusy
from rocketpost.namesrv.topic_queues import TopicQueues

from .reports import topics


def static(name: str, *ids: int) -> RegisteredTopics:
    mapping = QueueMapping(bname=name, curr_id_map=dict.fromkeys(ids, 0), topic="S")
    return RegisteredTopics(
        topic_config_table=topics("S", "T"), topic_queue_mapping_info_map={"S": mapping}
    )


def test_entries_are_topics_per_broker_and_logical_queues() -> None:
    table = TopicQueues(100)
    table.update("a", static("a", 0, 1), fresh=True, read_only=False)
    assert table.entries == 2 + 1 + 2
    table.update("b", static("b", 0), fresh=True, read_only=False)
    assert table.entries == 5 + 2 + 1 + 1
    table.update("a", static("a", 0, 1, 2), fresh=True, read_only=False)
    assert table.entries == 10
    table.drop("a", ["S"])
    assert sorted(table.mappings("S")) == ["b"]
    assert table.entries == 5
    table.drop_broker("a")
    table.drop_broker("b")
    assert (table.entries, table.mappings("S"), len(table.topics())) == (0, {}, 0)


def test_equal_queues_are_one_object() -> None:
    table = TopicQueues(100)
    table.update("a", static("a"), fresh=True, read_only=False)
    assert table.brokers("S")["a"] is table.brokers("T")["a"]


def test_growth_counts_only_what_is_new() -> None:
    table = TopicQueues(6)
    sent = static("a", 0, 1, 2)
    table.check_room("a", sent)
    table.update("a", sent, fresh=True, read_only=False)
    table.check_room("a", sent)
    with pytest.raises(SystemBusy, match="6 of 6"):
        table.check_room("a", static("a", 0, 1, 2, 3))
    with pytest.raises(SystemBusy):
        table.check_room("b", static("b"))
    table.check_room("a", static("a"))
