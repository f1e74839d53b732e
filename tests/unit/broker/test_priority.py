"""Levels: a message goes into the queue of its level and is popped, and comes again, by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpost.broker.pop.targets import PopRequest
from rocketpost.broker.priority import by_level, factor_of, has_levels, queue_of
from rocketpost.codec.faults import MessageIllegal
from rocketpost.codec.headers.pop import pop_retry_topic
from rocketpost.model.topic import TopicConfig

from .pop_world import World

LEVELS = {"message.type": "PRIORITY"}
TOPIC = TopicConfig(topic_name="T", write_queue_nums=4, attributes=LEVELS)
PLAIN = TopicConfig(topic_name="T", write_queue_nums=4)


class LevelQueue(NamedTuple):
    retry: int
    queue_id: int


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    world.topics.update(
        TopicConfig(
            topic_name="T",
            read_queue_nums=4,
            write_queue_nums=4,
            attributes={"+message.type": "PRIORITY"},
        )
    )
    yield world
    world.close()


def test_only_a_topic_of_that_type_has_levels() -> None:
    assert has_levels(TOPIC)
    assert not has_levels(PLAIN)
    assert not has_levels(TopicConfig(attributes={"message.type": "FIFO"}))


@pytest.mark.parametrize(
    ("properties", "config", "queue"),
    [
        ({"_SYS_MSG_PRIORITY_": "2"}, TOPIC, 2),
        ({"_SYS_MSG_PRIORITY_": "0"}, TOPIC, 0),
        ({"_SYS_MSG_PRIORITY_": "9"}, TOPIC, 3),
        ({"_SYS_MSG_PRIORITY_": "2"}, PLAIN, 2),
        ({"_SYS_MSG_PRIORITY_": "2"}, TopicConfig(write_queue_nums=0), 0),
        ({}, TOPIC, 0),
        ({}, PLAIN, None),
        ({"_SYS_MSG_PRIORITY_": "2", "__SHARDINGKEY": "k"}, TOPIC, 0),
        ({"_SYS_MSG_PRIORITY_": "2", "__SHARDINGKEY": "k"}, PLAIN, None),
    ],
)
def test_the_queue_is_the_level(
    properties: dict[str, str], config: TopicConfig, queue: int | None
) -> None:
    assert queue_of(properties, config) == queue


@pytest.mark.parametrize("text", ["", "-1", "high", "1.5", "²", "9" * 11])
def test_a_priority_is_a_number(text: str) -> None:
    with pytest.raises(MessageIllegal, match="not a whole number"):
        queue_of({"_SYS_MSG_PRIORITY_": text}, TOPIC)


def test_the_factor_is_a_percentage_and_all_by_default() -> None:
    assert factor_of({}) == 100
    assert factor_of({"priority.factor": "30"}) == 30
    assert factor_of({"priority.factor": "500"}) == 100
    assert factor_of({"priority.factor": "some"}) == 100


def test_levels_are_read_from_the_highest_down() -> None:
    places = [
        LevelQueue(0, 0),
        LevelQueue(0, 1),
        LevelQueue(0, 2),
        LevelQueue(1, 0),
        LevelQueue(1, 2),
    ]
    first = by_level(places, retry_first=True)
    assert first == [
        LevelQueue(1, 2),
        LevelQueue(0, 2),
        LevelQueue(0, 1),
        LevelQueue(1, 0),
        LevelQueue(0, 0),
    ]
    last = by_level(places, retry_first=False)
    assert last == [
        LevelQueue(0, 2),
        LevelQueue(1, 2),
        LevelQueue(0, 1),
        LevelQueue(0, 0),
        LevelQueue(1, 0),
    ]


def test_a_pop_drains_higher_levels_first(world: World) -> None:
    low = [world.send(0) for _ in range(3)]
    middle = [world.send(1), world.send(1)]
    high = [world.send(3)]
    assert world.pop_names(world.request(count_max=2)) == [high[0], middle[0]]
    high.append(world.send(3))
    assert world.pop_names(world.request(count_max=2)) == [high[1], middle[1]]
    assert world.pop_names() == low


def test_a_redelivered_message_keeps_its_level(world: World) -> None:
    lows = [world.send(0) for _ in range(40)]
    high = world.send(3)
    [popped] = world.pop(world.request(count_max=1, invisible_ms=1000))
    assert popped.name == high
    for times in (1, 2, 3):
        world.clock.advance(1001)
        world.revive()
        assert world.topics.require(pop_retry_topic("g", "T")).write_queue_nums == 4
        [popped] = world.pop(world.request(count_max=1, invisible_ms=1000))
        assert (popped.name, popped.record.reconsume_times) == (high, times)
    world.ack(popped)
    assert world.pop_names(world.request(count_max=32)) == lows[:32]


def test_a_retry_topic_from_before_is_widened(world: World) -> None:
    world.topics.create_internal(pop_retry_topic("g", "T"), queue_nums=1)
    world.send(2)
    world.pop(world.request(invisible_ms=1000))
    world.clock.advance(1001)
    world.revive()
    retry = world.topics.require(pop_retry_topic("g", "T"))
    assert (retry.read_queue_nums, retry.write_queue_nums) == (4, 4)
    [again] = world.pop()
    assert again.key.queue_id == 2


def test_a_group_may_pop_some_messages_in_random_order(world: World) -> None:
    low, high = world.send(0), world.send(3)
    by_chance: PopRequest = world.request(count_max=1, priority_factor=0)
    assert world.pop_names(by_chance) == [low]  # chance is queue 0 here
    assert world.pop_names(world.request(count_max=1)) == [high]
