"""Replays and redriven dead letters: each message once, in order, whoever is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from rocketpost.cli import rocketpost
from rocketpost.client import (
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.properties import decode_properties
from rocketpost.errors import ClientError, ConfigError, RouteNotFound
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import dlq_topic
from rocketpost.model.properties import PRIORITY, RESERVED
from rocketpost.spark.options import SourceOptions, parse_options
from rocketpost.spark.pipelines import copying
from rocketpost.spark.pipelines import replay as replaying
from rocketpost.spark.pipelines.archive import ArchiveConfig, archive
from rocketpost.spark.pipelines.copying import MARKS, CopyConfig, Origin
from rocketpost.spark.pipelines.dead_letters import Choice, DeadLetters
from rocketpost.spark.pipelines.replay import replay
from rocketpost.spark.pipelines.selection import OffsetSpan, SelectedMessages, Selection, select
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.rows import Rows
from rocketpost.spark.source.plan import QueueKey
from rocketpost.testing.cluster import SMALL_STORE, Cluster

from .conftest import Topics

pytestmark = pytest.mark.slow


def how(topics: Topics, name: str, topic: str | None = None, **more: int) -> CopyConfig:
    return CopyConfig(name_servers=topics.cluster.addresses, name=name, topic=topic, **more)


def what(topics: Topics, *names: str, **more: object) -> Selection:
    return Selection(topics=names, name_servers=topics.cluster.addresses, **more)  # type: ignore[arg-type]


def by_origin(rows: list[Row]) -> dict[str, list[Row]]:
    """Return copies by the queue that they come from, in the order in which they were stored."""
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row.commitLogOffset):
        found.setdefault(row.properties["COPY_OF"].rpartition("/")[0], []).append(row)
    return found


def offsets(rows: list[Row]) -> list[int]:
    return [int(row.properties["COPY_OF"].rpartition("/")[2]) for row in rows]


def test_a_lake_is_replayed_in_order_and_once(topics: Topics, tmp_path: Path) -> None:
    topics.send(
        "Origin", [b"%d" % n for n in range(200)], tags="A", keys="k", properties={"a": "b"}
    )
    source = SourceOptions(name_servers=topics.cluster.addresses, topic="Origin")
    archive(topics.spark, ArchiveConfig(source=source, lake=str(tmp_path)))
    selection = Selection(topics=("Origin",), lake=str(tmp_path))
    for before in (0, 200):  # the second run continues the first, and finds nothing left to do
        report = replay(topics.spark, selection, how(topics, "again", "Copy"))
        assert (report.messages, report.before, len(report.queues)) == (200, before, 4)
    rows = topics.read("Copy").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(200))
    assert {(row.tags, row.keys, row.properties["a"]) for row in rows} == {("A", "k", "b")}
    assert not any("__SHARDINGKEY" in row.properties for row in rows)
    queues = by_origin(rows)
    assert len(queues) == 4
    assert len({row.queueId for row in rows}) == 4  # each queue has its own
    for copies in queues.values():
        assert len({row.queueId for row in copies}) == 1
        assert offsets(copies) == list(range(50))
    originals = {row.uniqKey for row in topics.read("Origin").select("uniqKey").collect()}
    assert {row.properties["COPY_ID"] for row in rows} == originals


@pytest.mark.long
def test_a_replay_that_fails_half_way_is_continued(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.send("Half", [b"%d" % number for number in range(100)])
    selection, config = what(topics, "Half"), how(topics, "half", "HalfCopy")
    found = select(topics.spark, selection)
    broken = found.whole.withColumn(
        "flag", f.when(f.col("queueOffset") == 15, f.raise_error(f.lit("broken"))).otherwise(0)
    )
    with monkeypatch.context() as patch:
        patch.setattr(replaying, "select", lambda *_: SelectedMessages(broken, found.narrow))
        with pytest.raises(PySparkException, match="broken"):
            replay(topics.spark, selection, config)
    replay(topics.spark, selection, config)
    rows = topics.read("HalfCopy").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(100))


@pytest.mark.parametrize("to", [None, "Round"])
def test_a_replay_to_its_own_topic_does_not_copy_its_copies(topics: Topics, to: str | None) -> None:
    if to is None:
        topics.send("Round", [b"%d" % number for number in range(20)])
    before = topics.read("Round").count()
    for _ in range(2):
        replay(topics.spark, what(topics, "Round"), how(topics, f"round-{to}", to))
        assert topics.read("Round").count() == 2 * before


def test_messages_are_selected_by_time_tags_keys_and_offsets(topics: Topics) -> None:
    topics.send("Various", [b"old"] * 8, tags="A", keys="one two")
    topics.send("Various", [b"new"] * 4, tags="B")
    every = topics.read("Various").orderBy("storeTimestamp").collect()
    middle = int(every[8].storeTimestamp.timestamp() * 1000)

    def count(**more: object) -> int:
        found = select(topics.spark, what(topics, "Various", **more))
        assert found.narrow.count() == found.whole.count()
        return found.whole.count()

    assert count() == 12
    assert count(tags=("A",)) == count(keys=("two", "x")) == 8
    assert count(tags=("A", "B")) == 12
    assert count(end_ms=middle) + count(start_ms=middle) == 12
    queue = QueueKey("Various", every[0].brokerName, every[0].queueId)
    assert count(offsets={queue: OffsetSpan(1, 3)}) == 2
    with pytest.raises(ConfigError, match="queue that does not exist"):
        count(offsets={queue._replace(queue_id=77): OffsetSpan(0, 1)})


def test_another_selection_of_the_same_name_is_another_copy_job(topics: Topics) -> None:
    for number in range(40):
        topics.send("Both", [b"%d" % number], tags="odd" if number % 2 else "even")
    config = how(topics, "both", "BothCopy")
    for tag in ("even", "odd", "even"):
        replay(topics.spark, what(topics, "Both", tags=(tag,)), config)
    rows = topics.read("BothCopy").collect()
    assert sorted(int(bytes(row.body)) for row in rows) == list(range(40))
    for copies in by_origin(rows).values():
        for tag in ("even", "odd"):
            some = offsets([row for row in copies if row.tags == tag])
            assert some == sorted(some)


def test_copies_are_neither_delayed_nor_retried_nor_answered_again(topics: Topics) -> None:
    async def send() -> None:
        # Long enough to be compressed.
        config = ProducerConfig(name_servers=topics.cluster.addresses, compress_bytes_min=100)
        async with Producer("p", config=config) as producer:
            await producer.send(
                Message("Odd", b"x" * 5000, sharding_key="k", properties={"a": "1"})
            )
            await producer.send(Message("Odd", b"delayed", delay_level=1))

    asyncio.run(send())
    while topics.read("Odd").count() < 2:  # the second comes after a second
        pass
    replay(topics.spark, what(topics, "Odd"), how(topics, "odd", "OddCopy"))
    rows = {bytes(row.body): row for row in topics.read("OddCopy").collect()}
    assert set(rows) == {b"x" * 5000, b"delayed"}
    assert rows[b"x" * 5000].properties["__SHARDINGKEY"] == "k"
    system = {"DELAY", "REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS"}
    assert not system & set(rows[b"delayed"].properties)
    with pytest.raises(ConfigError, match="name another topic for them"):
        replay(topics.spark, what(topics, "%RETRY%g"), how(topics, "odd"))


SYSTEM = RESERVED - {"KEYS", "TAGS", "__SHARDINGKEY", PRIORITY}
KEPT: list[tuple[dict[str, str], dict[str, str]]] = [
    ({"a": "b", "c": " d "}, {"a": "b", "c": " d "}),
    ({"a": " "}, {}),  # which no client can send
    ({"KEYS": "k l", "TAGS": "t"}, {"KEYS": "k l", "TAGS": "t"}),
    ({PRIORITY: "7"}, {PRIORITY: "7"}),
    ({PRIORITY: "high"}, {}),
    ({PRIORITY: "-1"}, {}),
    ({"__SHARDINGKEY": "s"}, {"__SHARDINGKEY": "s"}),
    ({"__SHARDINGKEY": "s", PRIORITY: "7"}, {"__SHARDINGKEY": "s"}),  # its order goes first
    (dict.fromkeys(SYSTEM, "1"), {}),
    ({"COPY_OF": "x", "COPY_BY": "y"}, {}),
]
"""The properties of a message, and what a copy has of them."""


def stored(spark: SparkSession, *given: dict[str, str], queue_id: int = 1) -> DataFrame:
    """Return messages of a queue, by their properties."""
    now = datetime.now(UTC)
    rows = [
        ("T", "b", queue_id, offset, "m", "u", each.get("KEYS"), each.get("TAGS"), 3, now, now,
         b"x", each)
        for offset, each in enumerate(given)
    ]  # fmt: skip
    return spark.createDataFrame(
        rows,
        "topic string, brokerName string, queueId int, queueOffset bigint, msgId string, "
        "uniqKey string, keys string, tags string, flag int, bornTimestamp timestamp, "
        "storeTimestamp timestamp, body binary, properties map<string,string>",
    )


def made(frame: DataFrame, count: int, *, tasks: int = 1, keep_order: bool = True) -> DataFrame:
    return copying.make_copies(
        frame,
        CopyConfig(name_servers="h:1", name="n", topic="Copy", keep_order=keep_order),
        selection="s",
        found=[Origin(QueueKey("T", "b", number), count, 0, count - 1, 0, 0) for number in (1, 2)],
        tasks=tasks,
        queues_of=lambda topic: [
            MessageQueue(broker, number, topic) for broker in "xy" for number in (0, 1)
        ],
    )


def test_copies_keep_user_properties_and_nothing_else(spark: SparkSession) -> None:
    rows = made(stored(spark, *[given for given, _ in KEPT]), len(KEPT))
    sink = Rows(parse_options(SinkOptions, {"nameServer": "h:1"}), None)
    sent = [each for batch in rows.toArrow().to_batches() for each in sink.messages(batch)]
    assert len(sent) == len(KEPT)
    for out, (given, kept) in zip(sent, KEPT, strict=True):
        has = decode_properties(out.message.property_text("unique").encode())
        users = {name: has[name] for name in has if name not in {*MARKS, "UNIQ_KEY", "WAIT"}}
        assert users == kept, given
        assert (has["COPY_OF"], has["COPY_BY"]) == (f"T/b/1/{out.sequence}", "n")
        assert (out.message.body, out.message.flag, out.message.topic) == (b"x", 3, "Copy")


def test_without_order_a_copy_has_one_queue_whichever_task_sends_it(spark: SparkSession) -> None:
    both = stored(spark, *[{}] * 1500).unionByName(stored(spark, *[{}] * 1500, queue_id=2))

    def places(frame: DataFrame, tasks: int) -> dict[tuple[str, int], tuple[str, int]]:
        rows = made(frame, 1500, tasks=tasks, keep_order=False).collect()
        return {(row.producerId, row.sequence): (row.brokerName, row.queueId) for row in rows}

    found = places(both, 1)
    assert len(found) == 3000
    assert set(found.values()) == {("x", 0), ("x", 1), ("y", 0), ("y", 1)}
    assert places(both.orderBy(f.rand()), 2) == found


@pytest.mark.long
def test_two_simultaneous_runs_of_a_copy_job_store_every_copy_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Cluster(tmp_path, brokers=2, settings=SMALL_STORE) as cluster:
        topics = Topics(spark, cluster, __name__)
        topics.send("Twins", [b"%d" % number for number in range(4000)])
        selection = what(topics, "Twins")
        for keep_order in (True, False):
            to = f"TwinsCopy-{keep_order}"
            config = CopyConfig(
                name_servers=cluster.addresses, name="twins", topic=to, keep_order=keep_order
            )
            with ThreadPoolExecutor(2) as pool:
                runs = [pool.submit(replay, spark, selection, config) for _ in range(2)]
                assert [run.result().messages for run in runs] == [4000, 4000]
            rows = topics.read(to).select("body").collect()
            assert sorted(int(bytes(row.body)) for row in rows) == list(range(4000))


def test_deleted_messages_are_reported(topics: Topics) -> None:
    topics.send("Gone", [b"x"] * 4)
    row = topics.read("Gone").first()
    assert row is not None
    queue = QueueKey("Gone", row.brokerName, row.queueId)
    gone = what(topics, "Gone", offsets={queue: OffsetSpan(0, 5)})
    assert replay(topics.spark, gone, how(topics, "gone", "GoneCopy"), dry_run=True).messages == 1
    nothing = what(topics, "Gone", tags=("none",))
    assert replay(topics.spark, nothing, how(topics, "gone", "GoneCopy")).messages == 0
    with pytest.raises(ClientError):
        replay(topics.spark, what(topics, "NeverThere"), how(topics, "gone", "GoneCopy"))


def test_dead_letters_are_redriven_by_cause_and_each_once(topics: Topics, tmp_path: Path) -> None:
    kill(topics, "Deadly", "mourners", count=12)
    letters = DeadLetters(topics.spark, topics.cluster.addresses, "mourners")
    report = letters.report()
    found = [(each.cause.rpartition(".")[2], each.topic, each.letters) for each in report.causes]
    assert found == [("KeyError", "Deadly", 8), ("ValueError", "Deadly", 4)]
    assert [(text.text, text.letters) for text in report.texts] == [
        ("'no customer #'", 8),
        ("bad amount", 4),
    ]
    assert sum(moment.messages for moment in report.timeline) == report.letters == 12
    choice = Choice(cause="BAD amount", topic="Deadly")
    some = DeadLetters(topics.spark, topics.cluster.addresses, "mourners", choice)
    before = topics.read("Deadly").count()
    assert some.redrive(how(topics, "second-chance"), dry_run=True).letters == 4
    assert topics.read("Deadly").count() == before
    for sent_before in (0, 4):
        sent = some.redrive(how(topics, "second-chance"))
        assert (sent.letters, sent.before) == (4, sent_before)
    copies = topics.read("Deadly").filter("properties['COPY_BY'] = 'second-chance'").collect()
    assert len(copies) == 4
    assert {row.properties["REDRIVES"] for row in copies} == {"1"}
    assert not any("CONSUME_FAILURE" in row.properties for row in copies)
    key = Choice(key="k3")
    assert DeadLetters(topics.spark, topics.cluster.addresses, "mourners", key).frame.count() == 1


def test_a_group_without_dead_letters_has_none_unless_nobody_knows_it(topics: Topics) -> None:
    async def create() -> None:
        async with AdminClient(name_servers=topics.cluster.addresses) as admin:
            group = GroupConfig(group_name="immortals")
            await admin.groups.create(topics.cluster.broker_addresses[0], group)

    asyncio.run(create())
    with pytest.raises(ConfigError, match=r"no broker knows the group imortals; .*: immortals"):
        DeadLetters(topics.spark, topics.cluster.addresses, "imortals")
    letters = DeadLetters(topics.spark, topics.cluster.addresses, "immortals")
    assert letters.report().letters == 0
    assert letters.redrive(how(topics, "r")).letters == 0


@pytest.mark.long
def test_dead_letters_redriven_too_often_are_skipped(topics: Topics, tmp_path: Path) -> None:
    for number in range(4):
        kill(topics, f"Worn{number}", f"worn{number}", count=1, redrives=number)
    sent = {}
    for number in range(4):
        letters = DeadLetters(topics.spark, topics.cluster.addresses, f"worn{number}")
        sent[number] = letters.redrive(how(topics, "w", "WornAgain")).letters
        assert letters.report().worn_out == (number == 3)
    assert sent == {0: 1, 1: 1, 2: 1, 3: 0}
    again = topics.read("WornAgain").collect()
    assert Counter(row.properties["REDRIVES"] for row in again) == {"1": 1, "2": 1, "3": 1}


def test_the_commands_say_what_they_did(topics: Topics, tmp_path: Path) -> None:
    def ran(*asked: str) -> dict[str, object]:
        file = tmp_path / "report.json"
        base = ["pipeline", asked[0], "-n", topics.cluster.addresses, "--json", str(file)]
        result = CliRunner().invoke(rocketpost, [*base, *asked[1:]])
        assert result.exit_code == 0, result.output
        said: dict[str, object] = json.loads(file.read_text()) | {"text": result.stdout}
        return said

    kill(topics, "Spoken", "told", count=3)
    asked = ("replay", "-t", "Spoken", "--key", "k1", "--to", "ToldCopy", "--rate", "1000")
    dry = ran(*asked, "--dry-run")
    assert (dry["messages"], dry["dryRun"]) == (1, True)
    assert "1 would be sent" in str(dry["text"])
    done = ran(*asked, "--name", "told")
    assert "1 sent as told" in str(done["text"])
    assert "0 sent as told, 1 had been sent before" in str(ran(*asked, "--name", "told")["text"])
    page = tmp_path / "letters.html"
    letters = ran("dead-letters", "-g", "told", "--html", str(page))
    assert letters["letters"] == 3
    assert "3 dead letters" in page.read_text()
    redriven = ran("dead-letters", "-g", "told", "--redrive", "--name", "r", "--to", "ToldCopy")
    assert redriven["redriven"] == {"name": "r", "letters": 3, "stored": 3, "before": 0}
    assert topics.read("ToldCopy").count() == 4
    base = ["pipeline", "replay", "-n", topics.cluster.addresses, "-t", "Spoken"]
    for wrong, text in (
        (["--to", "X"], "--name is required"),
        (["--name", "a/b"], "without /"),
        (["--name", "a", "--offsets", "[1]"], "offsets must look like"),
        (["--name", "a", "--since", "9", "--until", "5"], "time range is empty"),
    ):
        result = CliRunner().invoke(rocketpost, [*base, *wrong])
        assert (result.exit_code, text in result.output) == (2, True), result.output


def kill(topics: Topics, topic: str, group: str, *, count: int, redrives: int = 0) -> None:
    """Let a group fail to handle messages, until they are dead."""

    async def die() -> None:
        address = topics.cluster.addresses
        properties = {"REDRIVES": str(redrives)} if redrives else {}
        async with Producer("p", name_servers=address) as producer:
            for number in range(count):
                await producer.send(
                    Message(topic, b"%d" % number, keys=f"k{number}", properties=properties)
                )
        done = asyncio.Event()
        seen = 0

        async def handle(message: object) -> None:
            nonlocal seen
            seen += 1
            if seen == count:
                done.set()
            raise KeyError(f"no customer {seen}") if seen % 3 else ValueError("bad amount")

        consumer = PushConsumer(
            group,
            name_servers=address,
            config=PushConsumerConfig(start_from=StartFrom.FIRST, retry_max=0),
        )
        consumer.subscribe(topic, handle)
        async with consumer:
            await done.wait()
        async with PullConsumer("looker", name_servers=address) as puller:
            while True:
                with contextlib.suppress(RouteNotFound):  # until its broker has told
                    queues = await puller.queues(dlq_topic(group))
                    ends = [await puller.max_offset(queue) for queue in queues]
                    if sum(ends) == count:
                        return
                await asyncio.sleep(0.05)

    asyncio.run(die())


@pytest.mark.parametrize("name", ["", "a/b", "\x01", "n" * 65])
def test_a_copy_job_needs_a_name(topics: Topics, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        how(topics, name)
