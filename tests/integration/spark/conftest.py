"""One Spark session and one cluster for all of these tests: both take seconds to start."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketpost.client import Message, Producer
from rocketpost.spark.session import make_session
from rocketpost.testing.class_archive import java_options
from rocketpost.testing.cluster import SMALL_STORE, Cluster


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    options = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
        + java_options(),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
    }
    # In local mode a failed task is tried again only if the master says so.
    session = make_session("tests", master="local[2,3]", options=options)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), settings=SMALL_STORE) as cluster:
        yield cluster


class Topics:
    """Sends to topics of the shared cluster and reads them by Spark."""

    owners: ClassVar[dict[tuple[str, str], str]] = {}
    """The module that sends to each topic of each cluster: another one would disturb it."""

    def __init__(self, spark: SparkSession, cluster: Cluster, module: str) -> None:
        self.spark = spark
        self.cluster = cluster
        self._module = module

    def send(self, topic: str, bodies: list[bytes], **more: str) -> None:
        owner = self.owners.setdefault((self.cluster.addresses, topic), self._module)
        assert owner == self._module, f"the topic {topic} belongs to {owner}"

        async def send_all() -> None:
            async with Producer("loader", name_servers=self.cluster.addresses) as producer:
                messages = [Message(topic, body, **more) for body in bodies]
                await asyncio.gather(*[producer.send(message) for message in messages])

        asyncio.run(send_all())

    @contextlib.contextmanager
    def traffic(self, topic: str) -> Iterator[None]:
        """Send to a topic all the time, from a thread."""
        stop, under_way = threading.Event(), threading.Event()

        async def send() -> None:
            async with Producer("traffic", name_servers=self.cluster.addresses) as producer:
                while not stop.is_set():
                    await producer.send(Message(topic, b"traffic"))
                    under_way.set()

        thread = threading.Thread(target=lambda: asyncio.run(send()))
        thread.start()
        try:
            assert under_way.wait(60)
            yield
        finally:
            stop.set()
            thread.join()

    def read(self, topic: str, **options: object) -> DataFrame:
        reader = self.spark.read.format("rocketmq")
        for key, value in self._options(topic, options).items():
            reader = reader.option(key, value)
        return reader.load()

    def stream(self, topic: str, **options: object) -> DataFrame:
        reader = self.spark.readStream.format("rocketmq")
        for key, value in self._options(topic, options).items():
            reader = reader.option(key, value)
        return reader.load()

    def drain(self, frame: DataFrame, folder: Path) -> list[int]:
        """Run a stream until it has read what is there; returns the rows of each batch."""
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(folder / "out"))
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [progress["numInputRows"] for progress in query.recentProgress]

    def bodies(self, frame: DataFrame) -> list[str]:
        return sorted(bytes(row.body).decode() for row in frame.select("body").collect())

    def _options(self, topic: str, options: dict[str, object]) -> dict[str, str]:
        base = {"nameServer": self.cluster.addresses, "topic": topic}
        return base | {key: str(value) for key, value in options.items()}


@pytest.fixture
def topics(spark: SparkSession, cluster: Cluster, request: pytest.FixtureRequest) -> Topics:
    return Topics(spark, cluster, request.module.__name__)
