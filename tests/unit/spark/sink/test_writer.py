"""The driver's work after the tasks of a batch have ended."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyspark.sql.types import BinaryType, StructType

from rocketpost.spark.bodies.codec import nullable_field
from rocketpost.spark.bodies.sink_bodies import SinkBodies
from rocketpost.spark.options import parse_options
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.writer import BatchWriter, StreamWriter, TaskResult
from rocketpost.spark.source.plan import QueueKey

QUEUE, OTHER = (QueueKey("T", "a", number) for number in range(2))
MARKED = {"nameServer": "x:1", "delivery": "effectivelyOnce", "sinkId": "job"}


def sink(given: Mapping[str, str]) -> tuple[SinkOptions, SinkBodies]:
    options = parse_options(SinkOptions, given)
    return options, SinkBodies(StructType([nullable_field("body", BinaryType())]), options)


class FakeMarks:
    """Keeps what is marked."""

    def __init__(self) -> None:
        self.marked: list[tuple[int, dict[QueueKey, int]]] = []

    def __call__(self, options: SinkOptions) -> FakeMarks:
        return self

    def commit(self, batch_id: int, firsts: Mapping[QueueKey, int]) -> None:
        self.marked.append((batch_id, dict(firsts)))


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> FakeMarks:
    fake = FakeMarks()
    monkeypatch.setattr("rocketpost.spark.sink.writer.Marks", fake)
    return fake


def test_trap_a_frame_in_for_each_batch_is_marked_as_the_batch_of_its_tasks(
    marks: FakeMarks,
) -> None:
    # Its tasks find the number of the stream's batch, and look behind the marks of the one before.
    tasks = [TaskResult(1, 0, {QUEUE: 7}, 3), TaskResult(2, 0, {QUEUE: 5, OTHER: 9}, 3)]
    BatchWriter(*sink(MARKED)).commit([*tasks])
    assert marks.marked == [(3, {QUEUE: 5, OTHER: 9})]


def test_a_batch_of_a_stream_is_marked_as_that_of_its_tasks(marks: FakeMarks) -> None:
    StreamWriter(*sink(MARKED | {"epoch": "8"})).commit([TaskResult(1, 0, {}, 8)], 4)
    assert marks.marked == [(8, {})]
