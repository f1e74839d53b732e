"""Replays and redriven dead letters: each message once, in order, whoever is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from rocketpost.client import Message, Producer, PushConsumer, PushConsumerConfig, StartFrom
from rocketpost.errors import ConfigError
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import ArchiveConfig, archive
from rocketpost.spark.pipelines.copying import CopyConfig
from rocketpost.spark.pipelines.dead_letters import Choice, causes, chosen, dead_letters, redrive
from rocketpost.spark.pipelines.replay import between, from_broker, from_lake, replay

from .conftest import Topics

pytestmark = pytest.mark.slow


def config(topics: Topics, name: str, topic: str | None = None, **more: int) -> CopyConfig:
    return CopyConfig(name_servers=topics.cluster.addresses, name=name, topic=topic, **more)


def test_a_lake_is_replayed_in_order_and_once(topics: Topics, tmp_path: Path) -> None:
    topics.send(
        "Origin", [b"%d" % n for n in range(200)], tags="A", keys="k", properties={"a": "b"}
    )
    source = SourceOptions(name_servers=topics.cluster.addresses, topic="Origin")
    archive(topics.spark, ArchiveConfig(source=source, lake=str(tmp_path)))
    frame = from_lake(topics.spark, str(tmp_path), topics=["Origin"])
    for _ in range(2):  # the second run continues the first, and finds nothing left to do
        assert replay(frame, config(topics, "again", "Copy")).messages == 200
    rows = topics.read("Copy").orderBy("queueId", "queueOffset").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(200))
    assert {(row.tags, row.keys, row.properties["a"]) for row in rows} == {("A", "k", "b")}
    by_origin: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        origin, _, offset = row.properties["COPY_OF"].rpartition("/")
        by_origin.setdefault(origin, []).append((row.queueId, int(offset)))
    assert len(by_origin) == 4
    for places in by_origin.values():
        assert len({queue for queue, _ in places}) == 1
        assert [offset for _, offset in places] == list(range(50))


def test_a_replay_that_fails_half_way_is_continued(topics: Topics) -> None:
    topics.send("Half", [b"%d" % number for number in range(100)])
    source = SourceOptions(name_servers=topics.cluster.addresses, topic="Half")
    frame = from_broker(topics.spark, source)
    broken = frame.withColumn(
        "flag", f.when(f.col("queueOffset") == 15, f.raise_error(f.lit("broken"))).otherwise(0)
    )
    with pytest.raises(PySparkException, match="broken"):
        replay(broken, config(topics, "half", "HalfCopy"))
    replay(frame, config(topics, "half", "HalfCopy"))
    rows = topics.read("HalfCopy").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(100))


def test_a_time_range_is_replayed(topics: Topics) -> None:
    topics.send("Timed", [b"old"])
    frame = topics.read("Timed")
    stored = frame.selectExpr("max(unix_millis(storeTimestamp))").first()
    assert stored is not None
    assert between(frame, stored[0], None).count() == 1
    assert between(frame, None, stored[0]).count() == 0
    assert between(frame, stored[0] + 1, None).count() == 0


def test_dead_letters_go_by_cause_and_each_once(topics: Topics) -> None:
    async def die() -> None:
        address = topics.cluster.addresses
        async with Producer("p", name_servers=address) as producer:
            for number in range(12):
                await producer.send(Message("Deadly", b"%d" % number, keys=f"k{number}"))
        done = asyncio.Event()
        seen = 0

        async def handle(message: object) -> None:
            nonlocal seen
            seen += 1
            if seen == 12:
                done.set()
            raise KeyError("no customer") if seen % 3 else ValueError("bad amount")

        consumer = PushConsumer(
            "mourners",
            name_servers=address,
            config=PushConsumerConfig(start_from=StartFrom.FIRST, retry_max=0),
        )
        consumer.subscribe("Deadly", handle)
        async with consumer:
            await done.wait()

    asyncio.run(die())
    letters = dead_letters(topics.spark, topics.cluster.addresses, "mourners")
    found = [(row.cause.rpartition(".")[2], row.origin, row.letters) for row in causes(letters)]
    assert found == [("KeyError", "Deadly", 8), ("ValueError", "Deadly", 4)]
    some = chosen(letters, Choice(cause="bad amount", topic="Deadly"))
    before = topics.read("Deadly").count()
    for _ in range(2):
        assert redrive(some, config(topics, "second-chance")) == 4
    assert topics.read("Deadly").count() == before + 4
    assert chosen(letters, Choice(key="k3")).count() == 1
    assert chosen(letters, Choice(start_ms=2**41)).count() == 0


@pytest.mark.parametrize("name", ["", "a/b", "\x01"])
def test_a_copying_needs_a_name(topics: Topics, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        config(topics, name)
