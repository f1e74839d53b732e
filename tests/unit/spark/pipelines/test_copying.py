"""Copies are numbered by name, selection and origin, and shared out evenly."""

from __future__ import annotations

import pytest

from rocketpost.client import MessageQueue
from rocketpost.errors import ConfigError
from rocketpost.model.stamp import PRODUCER_ID_MAX
from rocketpost.spark.pipelines.copying import (
    CopyConfig,
    Origin,
    assign_tasks,
    choose_target_queue,
    choose_task_count,
    producer_id,
)
from rocketpost.spark.source.plan import QueueKey

QUEUE = QueueKey("Orders", "broker-a", 3)


def config(**more: object) -> CopyConfig:
    return CopyConfig(**{"name_servers": "h:1", "name": "monday"} | more)  # type: ignore[arg-type]


def origin(number: int, messages: int) -> Origin:
    return Origin(QUEUE._replace(queue_id=number), messages, 0, messages - 1, 0, 0)


def test_producer_ids_differ_by_job_selection_target_and_queue() -> None:
    names = {
        producer_id(config(), "a", QUEUE),
        producer_id(config(name="tuesday"), "a", QUEUE),
        producer_id(config(), "b", QUEUE),
        producer_id(config(topic="Other"), "a", QUEUE),
        producer_id(config(), "a", QUEUE._replace(queue_id=4)),
    }
    assert len(names) == 5
    assert producer_id(config(rate=5, tasks=9), "a", QUEUE) in names  # how fast does not matter


@pytest.mark.parametrize("topic", ["T" * 127, "Köln"])
def test_queues_of_long_and_foreign_names_have_one_as_well(topic: str) -> None:
    ids = {producer_id(config(name="n" * 64), "a", QueueKey(topic, "b", each)) for each in (0, 1)}
    assert len(ids) == 2
    assert all(len(each) <= PRODUCER_ID_MAX and each.isascii() for each in ids)


def test_tasks_have_about_the_same_work() -> None:
    found = [origin(0, 100), origin(1, 60), origin(2, 50), origin(3, 0)]
    tasks = assign_tasks(found, 2)
    assert [tasks[each.queue] for each in found] == [0, 1, 1, 0]
    assert set(assign_tasks(found, 1).values()) == {0}


def test_copies_go_to_the_queue_of_the_same_number_or_to_one_that_never_changes() -> None:
    queues = [MessageQueue("broker-a", number, "Copy") for number in range(4)]
    assert choose_target_queue(QUEUE, queues) == queues[3]
    elsewhere = [MessageQueue("other", number, "Copy") for number in range(4)]
    found = {choose_target_queue(QUEUE._replace(queue_id=number), elsewhere) for number in range(4)}
    assert found == set(elsewhere)
    assert choose_target_queue(QUEUE, elsewhere[::-1]) == choose_target_queue(QUEUE, elsewhere)


@pytest.mark.parametrize(
    ("rate", "queues", "at_once", "tasks"),
    [
        (None, 8, 2, 4),
        (None, 3, 2, 3),
        (100, 8, 2, 1),
        (10_001, 8, 8, 2),
        (10**6, 8, 8, 4),
        (10**6, 2, 8, 2),  # with shares of 500,000: there is no third queue to send
        (10**6, 8, 3, 3),
        (100, 0, 2, 1),
    ],
)
def test_a_rate_has_no_more_tasks_than_can_send_at_once(
    rate: int | None, queues: int, at_once: int, tasks: int
) -> None:
    found = [origin(number, 10) for number in range(queues)]
    assert choose_task_count(config(rate=rate), found, at_once) == tasks


@pytest.mark.parametrize("more", [{"name": "a/b"}, {"rate": 0}, {"tasks": 0}, {"name_servers": ""}])
def test_invalid_values_are_refused(more: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        config(**more)
