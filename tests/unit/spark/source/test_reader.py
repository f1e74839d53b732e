"""The calls that Spark makes on a reader, in its order and more often than expected.

Tests named ``trap`` are about calls that look harmless and lose or double messages.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import StringType, StructType

from rocketpost.errors import ClientError, ConfigError, RouteNotFound
from rocketpost.spark.bodies.codec import nullable_field
from rocketpost.spark.bodies.shape import Shape
from rocketpost.spark.options import SourceOptions, parse_options
from rocketpost.spark.source import plan
from rocketpost.spark.source.batches import BATCH_BYTES
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey, Range
from rocketpost.spark.source.reader import BatchReader, FilteringReader, StreamReader, TaskRanges

from ..made_records import packed, record

BASE = {"nameServer": "x:1", "topic": "T"}
A, B, C = (QueueKey("T", "a", number) for number in range(3))


class FakeLink:
    """Queues in memory; every reader's link is this one."""

    def __init__(self) -> None:
        self.there = {A: Bounds(10, 100), B: Bounds(0, 50)}
        self.committed: Offsets = {}
        self.asked = 0
        self.gone: set[QueueKey] = set()

    def __call__(self, options: SourceOptions) -> FakeLink:
        return self

    def __enter__(self) -> FakeLink:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def queues(
        self, *, known: Collection[QueueKey] = (), given_up: Collection[QueueKey] = ()
    ) -> list[QueueKey]:
        self.asked += 1
        if self.gone.difference(known):
            raise RouteNotFound("no name server knows the topic")
        return sorted(self.there)

    def bounds(self, queues: Iterable[QueueKey]) -> dict[QueueKey, Bounds]:
        return {queue: self.there[queue] for queue in queues}

    def commit(self, offsets: Offsets) -> None:
        self.committed = offsets

    def mean_size(self, queue: QueueKey, offset: int) -> int:
        return 100


@pytest.fixture
def broker_session(monkeypatch: pytest.MonkeyPatch) -> FakeLink:
    fake = FakeLink()
    monkeypatch.setattr("rocketpost.spark.source.reader.BrokerSession", fake)
    return fake


def stream(**more: str) -> StreamReader:
    return StreamReader(*made(metadataCacheTtlMs="0", **more))


def ranges(parts: Iterable[InputPartition]) -> list[Range]:
    return sorted(each for part in parts if isinstance(part, TaskRanges) for each in part.ranges)


def everything() -> ReadAllAvailable:
    return ReadAllAvailable()


def made(**more: str) -> tuple[SourceOptions, Shape]:
    options = parse_options(SourceOptions, BASE | more)
    return options, Shape(StructType([nullable_field("topic", StringType())]), options)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"endingTimestamp": "5"}, "a stream has no end: endingTimestamp"),
        ({"endingOffsetsByTimestamp": '{"T": {"a": {"0": 5}}}'}, "a stream has no end"),
        ({"filterPushdown": "once"}, "filterPushdown is for batches"),
    ],
)
def test_a_stream_refuses_batch_options(more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StreamReader(*made(**more))


def test_trap_only_a_reader_that_was_asked_to_takes_filters() -> None:
    # One that overrides pushFilters makes every read fail where Spark's conf is off.
    assert BatchReader.pushFilters is DataSourceReader.pushFilters
    assert FilteringReader.pushFilters is not DataSourceReader.pushFilters


def test_spark_still_applies_filters() -> None:
    reader = FilteringReader(*made(filterPushdown="once"))
    filters = [EqualTo(("tags",), "A"), EqualTo(("bodyCrc",), 7)]
    assert list(reader.pushFilters(list(filters))) == filters
    assert reader.options.expression == "A"


def test_trap_spark_makes_a_part_where_there_is_none() -> None:
    assert list(BatchReader(*made()).read(InputPartition(None))) == []


def test_trap_the_initial_offset_is_asked_for_twice(broker_session: FakeLink) -> None:
    reader = stream()
    first = reader.initialOffset()
    broker_session.there[A] = Bounds(10, 120)  # latest moves on
    assert reader.initialOffset() == first


def test_trap_the_initial_offset_is_asked_for_again_after_a_restart(
    broker_session: FakeLink,
) -> None:
    reader = stream()
    start = reader.initialOffset()
    broker_session.there[A] = Bounds(10, 120)
    end = reader.latestOffset(start, everything())
    # The driver dies in batch 0. The next one plans it by the end that was written down.
    broker_session.there[A] = Bounds(10, 150)
    again = stream()
    assert ranges(again.partitions(again.initialOffset(), end)) == [Range(A, 100, 120)]


def test_trap_an_empty_first_batch_keeps_where_the_query_began(broker_session: FakeLink) -> None:
    reader = stream()
    start = reader.initialOffset()
    end = reader.latestOffset(start, everything())
    assert end == start
    assert end["initial"]
    assert ranges(reader.partitions(start, end)) == []
    broker_session.there[B] = Bounds(0, 60)
    assert reader.latestOffset(end, everything())["base"] == start["queues"]


def test_trap_commit_comes_late_and_stop_never(broker_session: FakeLink) -> None:
    assert StreamReader.commit is DataSourceStreamReader.commit
    assert StreamReader.stop is DataSourceStreamReader.stop
    reader = stream(group="g", commitOffsetsToBroker="true", startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, everything())
    assert broker_session.committed == {}  # where a query begins was not processed by it
    assert reader.latestOffset(end, everything()) == end
    assert broker_session.committed == {A: 100, B: 50}


def test_trap_a_task_that_runs_again_reads_the_same(broker_session: FakeLink) -> None:
    reader = stream(startingOffsets="earliest", minPartitions="7")
    start = reader.initialOffset()
    end = reader.latestOffset(start, everything())
    parts = ranges(reader.partitions(start, end))
    broker_session.there[A] = Bounds(10, 500)
    assert ranges(stream(startingOffsets="earliest", minPartitions="7").partitions(start, end)) == (
        parts
    )


def test_trap_all_that_is_available_means_all(broker_session: FakeLink) -> None:
    bounded = {"maxOffsetsPerTrigger": "10", "maxBytesPerTrigger": "2000"}
    for more, limit, count in (
        (bounded, ReadMaxRows(10), 10),
        ({"maxBytesPerTrigger": "2000"}, ReadMaxBytes(2000), 20),
        ({}, everything(), 140),
    ):
        reader = stream(startingOffsets="earliest", **more)
        assert reader.getDefaultReadLimit() == limit
        start = reader.initialOffset()
        for asked, expected in ((limit, count), (everything(), 140)):
            end = plan.checkpoint_offsets(reader.latestOffset(start, asked))
            assert end[A] - 10 + end[B] - expected in (0, 1)  # each queue is rounded up


def test_queues_created_while_a_stream_runs_are_read_from_their_first_message(
    broker_session: FakeLink,
) -> None:
    reader = stream()
    start = reader.initialOffset()
    broker_session.there[C] = Bounds(3, 7)
    end = reader.latestOffset(start, everything())
    assert ranges(reader.partitions(start, end)) == [Range(C, 3, 7)]


def test_new_queues_are_noticed_when_what_is_known_is_too_old(broker_session: FakeLink) -> None:
    reader = StreamReader(*made(metadataCacheTtlMs="3600000"))
    start = reader.initialOffset()
    reader.latestOffset(start, everything())
    asked = broker_session.asked
    broker_session.there[C] = Bounds(3, 7)
    assert reader.latestOffset(start, everything()) == start
    assert broker_session.asked == asked
    assert StreamReader(*made()).latestOffset(start, everything()) != start


def gone_and_back(broker_session: FakeLink, **more: str) -> tuple[StreamReader, Any, Any]:
    """Return a stream of which a queue was deleted between two batches."""
    reader = stream(startingOffsets="earliest", **more)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(20))
    del broker_session.there[B]
    broker_session.gone = {B}
    return reader, start, end


def test_a_queue_that_disappears_stops_a_running_stream(broker_session: FakeLink) -> None:
    reader, start, end = gone_and_back(broker_session)
    with pytest.raises(
        ClientError, match="queue 1 of T on a no longer exists, nor do its offsets 0 to"
    ):
        reader.partitions(start, end)
    with pytest.raises(
        ClientError, match="queue 1 of T on a no longer exists, nor do its messages"
    ):
        reader.latestOffset(end, everything())


def test_a_lost_topic_may_be_skipped_and_read_again_when_it_returns(
    broker_session: FakeLink,
) -> None:
    reader, start, end = gone_and_back(broker_session, failOnDataLoss="false")
    assert [piece.queue for piece in ranges(reader.partitions(start, end))] == [A]
    after = reader.latestOffset(end, everything())
    assert [piece.queue for piece in ranges(reader.partitions(end, after))] == [A]
    broker_session.there[A] = Bounds(10, 110)  # a batch that has nothing to do with what is gone
    alone = reader.latestOffset(after, everything())
    assert ranges(reader.partitions(after, alone)) == [Range(A, 100, 110)]
    after = alone
    broker_session.there[B] = Bounds(0, 4)  # made anew, and shorter than what was read of it
    broker_session.gone = set()
    last = reader.latestOffset(after, everything())
    assert ranges(reader.partitions(after, last)) == [Range(B, 0, 4)]


def test_a_query_with_a_limit_ends_its_pulls_before_its_link(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[str] = []

    class Pulling(FakeLink):
        def __exit__(self, *_: object) -> None:
            ended.append("link")

        def pull(self, wanted: Range) -> Generator[bytes, None, None]:
            try:
                for at in range(wanted.start, wanted.end):
                    yield packed(record(queue_offset=at, body=bytes(BATCH_BYTES)))
            finally:
                ended.append("pull")

    monkeypatch.setattr("rocketpost.spark.source.reader.BrokerSession", Pulling())
    found = BatchReader(*made()).read(TaskRanges([Range(A, 10, 100)]))
    assert isinstance(found, Generator)
    assert next(found).num_rows == 1
    found.close()
    assert ended == ["pull", "link"]
