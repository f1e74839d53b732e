"""Topics that grow, appear and go while a stream reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from rocketpost.admin.main import mqadmin

from .conftest import Topics

pytestmark = pytest.mark.slow

_TRIES = 20


class Watched:
    """A stream that runs, and what it has seen."""

    def __init__(self, query: StreamingQuery, seen: list[str]) -> None:
        self.query = query
        self.seen = seen

    def wait_for(self, *bodies: bytes) -> None:
        """Wait until something was seen; the news of a topic takes a moment to get around."""
        wanted = {body.decode() for body in bodies}
        for _ in range(_TRIES):
            self.query.processAllAvailable()
            if wanted <= set(self.seen):
                return
        raise AssertionError(f"not seen: {sorted(wanted - set(self.seen))}")


@contextmanager
def running(frame: DataFrame, checkpoint: Path) -> Iterator[Watched]:
    seen: list[str] = []

    def take(rows: DataFrame, batch_id: int) -> None:
        seen.extend(bytes(row.body).decode() for row in rows.select("body").collect())

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    query = writer.start()
    try:
        yield Watched(query, seen)
    finally:
        query.stop()


def tell(topics: Topics, *words: str) -> None:
    arguments = [*words, "-c", "DefaultCluster"]
    result = CliRunner().invoke(mqadmin, arguments, env={"NAMESRV_ADDR": topics.cluster.addresses})
    assert result.exit_code == 0, (result.stdout, result.stderr)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [b"%s%d" % (prefix.encode(), number) for number in range(count)]


def test_queues_and_topics_created_while_a_stream_runs(topics: Topics, tmp_path: Path) -> None:
    first, more, others = numbered("a", 5), numbered("b", 40), numbered("c", 5)
    topics.send("GrowA", first)
    reader = topics.spark.readStream.format("rocketmq").options(
        nameServer=topics.cluster.addresses,
        topicPattern="Grow.",
        startingOffsets="earliest",
        metadataCacheTtlMs=0,
    )
    with running(reader.load(), tmp_path) as stream:
        stream.wait_for(*first)
        tell(topics, "updateTopic", "-t", "GrowA", "-r", "8", "-w", "8")
        topics.send("GrowA", more)
        topics.send("GrowB", others)
        stream.wait_for(*more, *others)
        assert len(stream.seen) == len(first + more + others)
    queues = topics.read("GrowA").select("queueId").distinct().count()
    assert queues == 8  # the new ones had messages, too


@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_that_is_deleted_while_a_stream_runs(
    topics: Topics, tmp_path: Path, fail: bool
) -> None:
    going, staying = f"Going{fail}", f"Staying{fail}"
    topics.send(going, [b"a"])
    topics.send(staying, [b"b"])
    options = {"startingOffsets": "earliest", "metadataCacheTtlMs": 0, "outageTimeoutMs": 100}
    frame = topics.stream(f"{going},{staying}", failOnDataLoss=fail, **options)
    with running(frame, tmp_path) as stream:
        stream.wait_for(b"a", b"b")
        tell(topics, "deleteTopic", "-t", going, "--yes")
        topics.send(staying, [b"c"])
        if fail:
            with pytest.raises(PySparkException, match=f"of {going} on broker-0"):
                stream.wait_for(b"never")
        else:
            stream.wait_for(b"c")
            assert sorted(stream.seen) == ["a", "b", "c"]
