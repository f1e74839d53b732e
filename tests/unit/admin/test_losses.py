from __future__ import annotations

import pytest

from rocketpost.admin.losses import group_losses, order_losses, setting_losses, topic_losses
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig

T = TopicConfig(topic_name="T", perm=7, order=True, attributes={"a": "1", "b": "2"})
G = GroupConfig(group_name="G", attributes={"retention.hold": "true", "priority.factor": "5"})


def test_nothing_is_lost_by_what_is_new_or_grows() -> None:
    assert topic_losses(None, T) == []
    assert topic_losses(TopicConfig(topic_name="T", read_queue_nums=8, write_queue_nums=8), T) == []
    assert topic_losses(T, T) == []
    assert group_losses(None, GroupConfig(group_name="G", consume_enable=False)) == []
    assert group_losses(G, G) == []


def test_lost_rights_and_attributes_of_a_topic_are_named() -> None:
    after = TopicConfig(topic_name="T", perm=0, attributes={"a": "3"})
    assert topic_losses(T, after, "hidden messages") == [
        "hidden messages",
        "producers may no longer send to it (perm 7 -> 0)",
        "consumers may no longer read it (perm 7 -> 0)",
        "new topics may no longer be modelled on it (perm 7 -> 0)",
        "it is no longer an ordered topic",
        "this removes the attribute b=2",
    ]


def test_queues_that_nobody_reads_are_reported_once() -> None:
    odd = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=8)
    [loss] = topic_losses(None, odd)
    assert "nobody would read what is sent to queues 4 to 7" in loss
    assert topic_losses(odd, TopicConfig(topic_name="T", read_queue_nums=5)) == []


def test_lost_rights_of_a_group_are_named() -> None:
    after = GroupConfig(
        group_name="G",
        consume_enable=False,
        consume_broadcast_enable=False,
        retry_queue_nums=0,
        attributes={"retention.hold": "false"},
    )
    assert group_losses(G, after) == [
        "the group may no longer consume",
        "its members may no longer consume as broadcasters",
        "messages that it fails to handle are no longer retried",
        "messages may expire before the group has consumed them",
        "this removes the attribute priority.factor=5",
    ]


def test_queues_that_leave_an_order_configuration_are_reported() -> None:
    assert order_losses("a:4;b:2", "a:3;b:2;c:1") == [
        "a has 3 instead of 4 queues in the order configuration"
    ]
    assert len(order_losses("a:4;b:2", None)) == 2
    assert order_losses(None, "a:4") == order_losses("a:4", "a:5") == []


@pytest.mark.parametrize(
    ("key", "before", "after", "losses"),
    [
        ("fileReservedTime", "72", "48", ["messages expire after 48 instead of 72 hours"]),
        ("fileReservedTime", "72", "96", []),
        ("fileReservedTime", "72", "soon", []),
        ("fileReservedTime", None, "48", []),
        ("brokerPermission", "6", "4", ["producers may no longer send (perm 6 -> 4)"]),
        ("brokerPermission", "4", "2", ["nobody may read (perm 4 -> 2)"]),
        ("brokerPermission", "4", "6", []),
        ("flushIntervalCommitLog", "500", "200", []),
    ],
)
def test_settings_that_delete_messages_are_reported(
    key: str, before: str | None, after: str, losses: list[str]
) -> None:
    assert setting_losses(key, before, after) == losses
