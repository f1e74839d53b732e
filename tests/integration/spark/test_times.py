"""A time means the same to every table: what was stored at that very millisecond lies behind it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.log.options import LogOptions
from rocketpost.spark.log.reader import LogReader
from rocketpost.spark.options import SourceOptions, parse_options
from rocketpost.spark.pipelines.archive import ArchiveConfig, archive
from rocketpost.spark.pipelines.history import history
from rocketpost.spark.records import columns
from rocketpost.spark.source.offset_resolution import resolve_end, resolve_start

from .conftest import Topics

pytestmark = pytest.mark.slow

TOPIC = "Bordered"
Places = set[tuple[int, int]]


def placed(frame: DataFrame) -> Places:
    return {tuple(row) for row in frame.select("queueId", "queueOffset").collect()}


class Stored:
    """Stored messages by queue and offset, and the offsets that each reader finds for a time."""

    def __init__(self, topics: Topics, lake: Path) -> None:
        self.topics = topics
        self.lake = str(lake)
        self.source = SourceOptions(name_servers=topics.cluster.addresses, topic=TOPIC)
        rows = topics.read(TOPIC).selectExpr(
            "queueId", "queueOffset", "unix_millis(storeTimestamp) AS ms"
        )
        self.ms = {(row.queueId, row.queueOffset): row.ms for row in rows.collect()}

    def before(self, ms: int) -> Places:
        return {place for place, stored in self.ms.items() if stored < ms}

    def by_topic(self, ms: int) -> tuple[Places, Places]:
        """Return what a query reads that ends then, and one that begins then."""
        name_servers = self.topics.cluster.addresses
        to = SourceOptions(name_servers=name_servers, topic=TOPIC, ending_timestamp=ms)
        since = SourceOptions(name_servers=name_servers, topic=TOPIC, starting_timestamp=ms)
        with BrokerSession(to) as broker_session:
            ends = resolve_end(broker_session, to, broker_session.bounds(broker_session.queues()))
            starts = resolve_start(broker_session, since, default="earliest")
        end = {queue.queue_id: at for queue, at in ends.items()}
        start = {queue.queue_id: at for queue, at in starts.items()}
        return (
            {(queue, at) for queue, at in self.ms if at < end[queue]},
            {(queue, at) for queue, at in self.ms if at >= start[queue]},
        )

    def by_log(self, **times: int) -> Places:
        root = self.topics.cluster.broker_directory() / "store"
        given = {key: str(ms) for key, ms in times.items()}
        options = parse_options(LogOptions, {"path": str(root), "topic": TOPIC, **given})
        wanted = columns.select_columns([("queueId", "int"), ("queueOffset", "bigint")])
        reader = LogReader(options, wanted)
        return {
            (row["queueId"], row["queueOffset"])
            for part in reader.partitions()
            for batch in reader.read(part)
            for row in batch.to_pylist()
        }

    def by_history(self, ms: int) -> Places:
        return placed(history(self.topics.spark, self.source, self.lake, as_of_ms=ms))


@pytest.mark.long
def test_topic_log_and_history_agree_on_every_millisecond(topics: Topics, tmp_path: Path) -> None:
    for _ in range(4):  # at different times
        topics.send(TOPIC, [b"." for _ in range(50)])
    source = SourceOptions(name_servers=topics.cluster.addresses, topic=TOPIC)
    archive(topics.spark, ArchiveConfig(source=source, lake=str(tmp_path)))
    for _ in range(2):
        topics.send(TOPIC, [b"." for _ in range(50)])
    stored = Stored(topics, tmp_path)
    counts = Counter((queue, ms) for (queue, _), ms in stored.ms.items())
    assert max(counts.values()) > 1  # several messages of a queue in one millisecond
    every = sorted(set(stored.ms.values()))
    moments = sorted({ms + more for ms in every[:9] + every[-9:] for more in (0, 1)})
    for ms in moments:
        before = stored.before(ms)
        since = set(stored.ms) - before
        assert stored.by_topic(ms) == (before, since), ms
        assert stored.by_log(endingTimestamp=ms) == before, ms
        assert stored.by_log(startingTimestamp=ms) == since, ms
    for ms in (every[2], every[-1], every[-1] + 1):  # archived, live, and after all
        assert stored.by_history(ms) == stored.before(ms), ms
        assert placed(topics.read(TOPIC, endingTimestamp=ms)) == stored.before(ms), ms
