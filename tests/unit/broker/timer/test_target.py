"""The target of timed messages, also if their topic was deleted."""

from __future__ import annotations

import pytest

from rocketpost.broker.timer.target import MISSING_MS_MAX, Targets
from rocketpost.model.topic import TopicConfig


class Topics:
    def __init__(self) -> None:
        self.table = {"T": TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)}

    def find(self, topic: str) -> TopicConfig | None:
        return self.table.get(topic)

    def create_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        return self.table.setdefault(topic, TopicConfig(topic_name=topic))


class Groups:
    def find(self, group: str) -> object | None:
        return group if group == "g" else None


@pytest.fixture
def targets() -> Targets:
    return Targets(topics=Topics(), groups=Groups())


def test_a_message_goes_to_the_queue_it_was_sent_to(targets: Targets) -> None:
    assert targets.find("T", {"REAL_QID": "3"}) == ("T", 3)
    assert targets.find("T", {"REAL_QID": "9"}) == ("T", 1)  # the topic was made smaller


@pytest.mark.parametrize("topic", ["", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"])
def test_system_topics_are_not_destinations(targets: Targets, topic: str) -> None:
    assert targets.find(topic, {"REAL_QID": "0"}) is None


@pytest.mark.parametrize("queue", ["", "x", "-1", "9" * 12])
def test_a_queue_is_a_number(targets: Targets, queue: str) -> None:
    assert targets.find("T", {"REAL_QID": queue}) is None


def test_a_missing_topic_is_awaited_for_a_minute(targets: Targets) -> None:
    assert not targets.is_missing("T", 1000)
    assert targets.is_missing("Gone", 1000)
    assert not targets.has_given_up("Gone", 1000 + MISSING_MS_MAX - 1)
    assert targets.has_given_up("Gone", 1000 + MISSING_MS_MAX)


def test_the_retry_topic_of_a_group_is_created_again(targets: Targets) -> None:
    assert not targets.is_missing("%RETRY%g", 0)
    assert targets.is_missing("%RETRY%other", 0)
