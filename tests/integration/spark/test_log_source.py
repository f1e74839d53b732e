"""A store directory as a table has the rows that its broker hands out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketpost.client import Compression, Message, Producer, ProducerConfig
from rocketpost.testing.cluster import SMALL_STORE, Cluster

pytestmark = pytest.mark.slow

TOPICS = ("Plain", "Small")


def load(cluster: Cluster) -> None:
    """Send singles, batches and compressed bodies to several topics, over several segments."""

    async def send() -> None:
        config = ProducerConfig(compress_bytes_min=2000, compression=Compression.ZSTD)
        async with Producer("p", name_servers=cluster.addresses, config=config) as producer:
            for round_ in range(30):
                big = bytes([round_]) * 5000
                await asyncio.gather(
                    producer.send(Message("Plain", b"%d" % round_, tags="A", keys=f"k{round_}")),
                    producer.send(Message("Plain", big, properties={"n": str(round_)})),
                    producer.send(Message("Small", os.urandom(1900), delay_level=0)),
                    producer.send_batch(
                        [Message("Small", b"in batch %d %d" % (round_, at)) for at in range(5)]
                    ),
                )

    asyncio.run(send())


def table(frame: DataFrame) -> list[tuple[object, ...]]:
    rows = frame.drop("brokerName").collect()
    return sorted(
        tuple(sorted(value.items()) if isinstance(value, dict) else value for value in row)
        for row in rows
    )


def test_rows_of_the_log_are_rows_of_the_broker(spark: SparkSession, tmp_path: Path) -> None:
    settings = {**SMALL_STORE, "mappedFileSizeCommitLog": str(64 * 1024), "maxMessageSize": "16384"}
    with Cluster(tmp_path, settings=settings) as cluster:
        load(cluster)
        source = spark.read.format("rocketmq").option("nameServer", cluster.addresses)
        by_broker = table(source.option("topic", ",".join(TOPICS)).load())
        root = str(cluster.broker_directory() / "store")
        log = spark.read.format("rocketmq-log").option("topic", ",".join(TOPICS))
        live = table(log.load(root))
        assert len(by_broker) == 30 * 8
        assert live == by_broker
    assert table(log.load(root)) == by_broker
    assert len(list(Path(root, "commitlog").glob("0*"))) > 2
    nullable = [field.name for field in log.load(root).schema if field.nullable]
    assert nullable == ["brokerName", "uniqKey", "keys", "tags"]
    words = "brokerName string, body binary NOT NULL, topic string"
    rows = spark.read.format("rocketmq-log").schema(words).load(root).distinct().collect()
    assert {row.brokerName for row in rows} == {None}
    assert log.option("tags", "A").load(root).count() == 30
    assert log.option("startingTimestamp", str(2**41)).load(root).count() == 0
