"""Audits find what is missing, doubled, damaged and out of order, and nothing else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from rocketpost.cli import rocketpost
from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.client.config import ClientConfig
from rocketpost.errors import ConfigError
from rocketpost.model.group import GroupConfig
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import ArchiveConfig, archive
from rocketpost.spark.pipelines.audit import AuditConfig, audit, checks, reconciliation
from rocketpost.spark.pipelines.audit.reconciliation import Produced
from rocketpost.spark.pipelines.audit.report import AuditReport
from rocketpost.spark.pipelines.audit.traces import select_handled, select_sent

from .conftest import Topics

pytestmark = pytest.mark.slow

STORED = (
    "topic string, broker string, queueId int, queueOffset bigint, id string, keys string, "
    "bornMs bigint, storedMs bigint, bytes bigint, isSound boolean"
)
TRACES = (
    "kind string, timeMs bigint, `group` string, topic string, uniqKey string, keys string, "
    "costMs bigint, success boolean, requestId string, isHalf boolean"
)


def config(topics: Topics, topic: str, **more: object) -> AuditConfig:
    return AuditConfig(topics=(topic,), name_servers=topics.cluster.addresses, **more)  # type: ignore[arg-type]


def ids(topics: Topics, topic: str) -> list[str]:
    return [row.uniqKey for row in topics.read(topic).select("uniqKey").collect()]


def counts(report: AuditReport) -> dict[str, int]:
    return {finding.name: finding.count for finding in report.findings if finding.count}


def rows(spark: SparkSession, *places: tuple[int, int, str]) -> DataFrame:
    """Return stored messages: queue offset, store time and id."""
    return spark.createDataFrame(
        [("T", "b", 0, offset, name, None, ms, ms, 100, True) for offset, ms, name in places],
        STORED,
    )


def test_a_topic_that_has_what_was_produced_is_whole(topics: Topics, tmp_path: Path) -> None:
    topics.send("Whole", [b"%d" % number for number in range(60)], keys="k same")
    table = tmp_path / "produced.csv"
    table.write_text("uniqKey,amount\n" + "".join(f"{each},1\n" for each in ids(topics, "Whole")))
    report = audit(topics.spark, config(topics, "Whole", produced=str(table)))
    assert report.is_whole
    assert (report.messages, len(report.queues)) == (60, 4)
    assert sum(queue.stored_bytes for queue in report.queues) == report.stored_bytes
    assert sum(moment.messages for moment in report.timeline) == 60
    assert [(hot.key, hot.messages) for hot in report.hot_keys] == [("k", 60), ("same", 60)]
    assert report.latencies[0].count == sum(report.latencies[0].buckets) == 60


@pytest.mark.long
def test_lake_and_store_directory_say_what_the_brokers_say(topics: Topics, tmp_path: Path) -> None:
    topics.send("Everywhere", [b"x" * number for number in range(1, 41)], tags="A")
    live = audit(topics.spark, config(topics, "Everywhere"))
    source = SourceOptions(name_servers=topics.cluster.addresses, topic="Everywhere")
    archive(topics.spark, ArchiveConfig(source=source, lake=str(tmp_path)))
    store = str(topics.cluster.broker_directory() / "store")
    for place in ({"lake": str(tmp_path)}, {"store": store}):
        other = audit(topics.spark, AuditConfig(topics=("Everywhere",), **place))
        assert other.is_whole
        assert other.stored_bytes == live.stored_bytes
        assert [queue.last for queue in other.queues] == [queue.last for queue in live.queues]
        middle = audit(
            topics.spark,
            AuditConfig(topics=("Everywhere",), **place, start_ms=live.last_ms),
        )
        assert 0 < middle.messages <= live.messages
        assert "holes" not in counts(middle)


def test_missing_and_duplicated_messages_are_named(topics: Topics, tmp_path: Path) -> None:
    for number in range(5):
        topics.send("Faulty", [b"x"], keys=f"order-{number}")
    topics.send("Faulty", [b"x"], keys="order-3")
    (tmp_path / "p.json").write_text(
        "".join(f'{{"keys": "order-{number}"}}\n' for number in range(1, 7))
    )
    report = audit(
        topics.spark,
        config(topics, "Faulty", identified_by="keys", produced=str(tmp_path / "p.json")),
    )
    assert not report.is_whole
    assert sorted(report.finding("missing").examples) == ["order-5", "order-6"]
    assert report.finding("duplicated").count == 1
    assert report.finding("duplicated").examples[0].startswith("order-3: 2 times, at Faulty/")
    assert report.finding("unexpected").examples[0].startswith("order-0 at Faulty/")


def test_holes_repeats_and_disorder_within_a_queue(spark: SparkSession) -> None:
    frame = rows(
        spark, (3, 10, "a"), (4, 20, "b"), (4, 25, "b"), (7, 15, "c"), (8, 30, "d"), (9, 29, "e")
    )
    facts, findings = checks.check_queues(frame)
    found = {each.name: each.count for each in findings}
    assert found == {"holes": 2, "repeats": 1, "damaged": 0, "disorder": 2, "overtaken": 2}
    assert findings[0].examples == ("2 missing before T/b/0/7",)
    assert (facts[0].first, facts[0].last, facts[0].messages) == (3, 9, 6)
    # One message that is there twice is a repeat, and no second message of its id.
    assert reconciliation.check_ids(frame, "uniqKey")[0].count == 0


def test_messages_without_id_or_stored_at_another_time_are_not_missing(spark: SparkSession) -> None:
    some = rows(spark, (0, 10, "a"))
    every = rows(spark, (0, 10, "a"), (1, 20, "b"))
    wanted = spark.createDataFrame([("a",), ("b",), ("c",), ("",), (None,)], "id string")
    made = Produced(wanted, "traces")
    missing, _ = reconciliation.compare_produced(some, made, everywhere=every)
    assert missing.examples == ("c",)
    missing, _ = reconciliation.compare_produced(some, made)
    assert missing.count == 2
    kept = spark.createDataFrame([("b",), ("x",), (None,)], "id string")
    missing, later, _ = reconciliation.compare_produced(some, made, not_due=lambda: kept)
    assert (missing.examples, later.examples, later.is_fault) == (("c",), ("b",), False)


def test_each_key_of_a_message_is_an_id_if_a_table_says_which_are(spark: SparkSession) -> None:
    frame = rows(
        spark,
        (0, 1, "o-1 c-7"),
        (1, 2, "o-2 c-7"),
        (2, 3, "o-2  c-8"),
        (3, 4, "c-7"),
        (4, 5, "o-3"),
    )

    def found(*ids: str) -> dict[str, tuple[str, ...]]:
        table = spark.createDataFrame([(each,) for each in ids], "id string")
        made = Produced(table, "the table", by_each_key=True)
        findings = reconciliation.check_ids(frame, "keys", made)
        findings += reconciliation.compare_produced(frame, made)
        return {each.name: each.examples for each in findings if each.count}

    twice = ("o-2: 2 times, at T/b/0/1 and T/b/0/2",)
    assert found("o-1", "o-2", "o-4") == {
        "duplicated": twice,
        "missing": ("o-4",),
        "unexpected": ("c-7 at T/b/0/3", "o-3 at T/b/0/4"),
    }
    # A table with all keys of every message says how many messages of each there are.
    assert found("o-1 c-7", "o-2 c-7", "c-8", "c-7", "o-3") == {"duplicated": twice}


@pytest.mark.long
def test_a_produced_message_stored_outside_the_times_is_not_missing(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send("Timed", [b"x"] * 4)
    (tmp_path / "p.csv").write_text("uniqKey\n" + "\n".join([*ids(topics, "Timed"), "never"]))
    asked = config(topics, "Timed", produced=str(tmp_path / "p.csv"), start_ms=1, end_ms=2)
    assert audit(topics.spark, asked).finding("missing").examples == ("never",)


def test_a_trace_that_is_stored_twice_is_one_handling(spark: SparkSession) -> None:
    def traces(*requests: str) -> DataFrame:
        after = [("SubAfter", 5, "g", "", "a", "", 1, True, request, False) for request in requests]
        return spark.createDataFrame(after, TRACES)

    assert select_handled(traces("r1", "r1"), "g").count() == 1
    assert select_handled(traces("r1", "r2"), "g").count() == 2


def test_halves_are_sent_when_committed_and_what_was_recalled_is_not(spark: SparkSession) -> None:
    def trace(
        kind: str, name: str, *, is_good: bool = True, is_half: bool = False
    ) -> tuple[object, ...]:
        return (kind, 5, "g", "T", name, "", 1, is_good, "", is_half)

    records = spark.createDataFrame(
        [
            trace("Pub", "plain"),
            trace("Pub", "failed", is_good=False),
            trace("Pub", "committed", is_half=True),
            trace("EndTransaction", "committed"),
            trace("EndTransaction", "committed"),
            trace("Pub", "rolled back", is_half=True),
            trace("EndTransaction", "rolled back", is_good=False),
            trace("Pub", "undecided", is_half=True),
            trace("Pub", "recalled"),
            trace("Recall", "recalled"),
            trace("Pub", "kept"),
            trace("Recall", "kept", is_good=False),
        ],
        TRACES,
    )
    found = sorted(row.uniqKey for row in select_sent(records, ("T",)).collect())
    assert found == ["committed", "kept", "plain"]


def test_a_clock_that_was_set_back_causes_no_gap(spark: SparkSession) -> None:
    frame = rows(spark, (0, 10, "a"), (1, 20, "b"), (2, 5, "c"), (3, 30, "d"), (4, 60, "e"))
    some = checks.select_between(frame, 15, 50)
    assert sorted(row.queueOffset for row in some.collect()) == [1, 2, 3]


def test_a_damaged_body_is_found_in_the_lake(topics: Topics, tmp_path: Path) -> None:
    topics.send("Rotten", [b"fresh"])
    source = SourceOptions(name_servers=topics.cluster.addresses, topic="Rotten")
    archive(topics.spark, ArchiveConfig(source=source, lake=str(tmp_path)))
    file = next((tmp_path / "data").rglob("*.parquet"))
    rotten = topics.spark.read.parquet(str(file)).selectExpr(
        "* EXCEPT (body)", "CAST('rotten' AS BINARY) AS body"
    )
    rotten.write.parquet(str(tmp_path / "other"))
    next((tmp_path / "other").glob("*.parquet")).replace(file)
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    report = audit(topics.spark, AuditConfig(topics=("Rotten",), lake=str(tmp_path)))
    assert counts(report)["damaged"] == 1


@pytest.mark.long
def test_traces_show_sent_and_handled_messages(topics: Topics) -> None:
    async def work() -> None:
        address = topics.cluster.addresses
        done, seen = asyncio.Event(), 0

        async def handle(message: ReceivedMessage) -> None:
            nonlocal seen
            seen += 1
            if seen == 10:
                done.set()

        producing = ProducerConfig(
            name_servers=address, enable_trace=True, trace_topic="AuditTraces"
        )
        async with Producer("p", config=producing) as producer:
            for number in range(10):
                await producer.send(Message("Followed", b"%d" % number))
        consumer = PushConsumer(
            "followers",
            config=PushConsumerConfig(
                name_servers=address,
                enable_trace=True,
                trace_topic="AuditTraces",
                start_from=StartFrom.FIRST,
            ),
        )
        consumer.subscribe("Followed", handle)
        async with consumer:
            await done.wait()

    asyncio.run(work())
    asked = config(topics, "Followed", group="followers", trace_topic="AuditTraces")
    report = audit(topics.spark, asked)
    assert report.is_whole, counts(report)
    assert [each.name for each in report.latencies] == [
        "born to stored", "send", "stored to handled", "handling",
    ]  # fmt: skip
    assert all(queue.lag == 0 for queue in report.queues)
    topics.send("Followed", [b"untraced"] * 3)
    report = audit(topics.spark, asked)
    assert counts(report) | {"overtaken": 0} == {"unexpected": 3, "waiting": 3, "overtaken": 0}
    everything = config(topics, "Followed", trace_topic="AuditTraces")
    assert audit(topics.spark, everything).finding("unhandled").count == 3


@pytest.mark.long
def test_messages_not_due_yet_are_not_missing(topics: Topics) -> None:
    async def send() -> None:
        sending = ProducerConfig(
            name_servers=topics.cluster.addresses, enable_trace=True, trace_topic="DelayTraces"
        )
        async with Producer("p", config=sending) as producer:
            await producer.send(Message("Later", b"now"))
            await producer.send(Message("Later", b"level", delay_level=18))
            await producer.send(Message("Later", b"timer", delay_seconds=3600))
            await producer.send(Message("Elsewhere", b"other", delay_level=18))

    asyncio.run(send())
    report = audit(topics.spark, config(topics, "Later", trace_topic="DelayTraces"))
    assert (report.messages, report.finding("missing").count) == (1, 0)
    assert report.finding("notDue").count == 2
    assert [each.name for each in report.findings if each.fails] == ["unhandled"]


def test_a_missing_topic_is_refused_and_existing_ones_are_named(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send("Spelled", [b"x"])
    source = SourceOptions(name_servers=topics.cluster.addresses, topic="Spelled")
    lake = tmp_path / "lake"
    archive(topics.spark, ArchiveConfig(source=source, lake=str(lake)))
    store = str(topics.cluster.broker_directory() / "store")
    asked = ["pipeline", "audit", "-t", "Spelled,Speled"]
    for place in (["--lake", str(lake)], ["--store", store]):
        for more in ([], ["--dry-run"]):
            result = CliRunner().invoke(rocketpost, [*asked, *place, *more])
            assert result.exit_code == 2, result.output
            assert "has no topic Speled; there are " in result.stderr.replace("\n", " ")
            assert "Spelled" in result.stderr
    replay = ["pipeline", "replay", "-n", topics.cluster.addresses, "-t", "Speled", "--name", "n"]
    result = CliRunner().invoke(rocketpost, [*replay, "--lake", str(lake)])
    assert (result.exit_code, "has no topic Speled" in result.stderr) == (2, True), result.output


def test_a_group_that_no_broker_knows_is_refused_and_not_created(topics: Topics) -> None:
    topics.send("Grouped", [b"x"] * 8)

    async def groups(*made: str) -> set[str]:
        async with AdminClient(config=ClientConfig(name_servers=topics.cluster.addresses)) as admin:
            (broker,) = (await admin.cluster.info()).broker_addr_table.values()
            assert broker.master is not None
            for name in made:
                await admin.groups.create(broker.master, GroupConfig(group_name=name))
            return set((await admin.groups.table(broker.master)).subscription_group_table)

    async def consume() -> None:
        asked = PullConsumerConfig(name_servers=topics.cluster.addresses)
        async with PullConsumer("grouped-one", config=asked) as consumer:
            for queue in await consumer.queues("Grouped"):
                await consumer.commit_offset(queue, 1)

    asyncio.run(consume())
    asked = ["pipeline", "audit", "-n", topics.cluster.addresses, "-t", "Grouped", "-g"]
    for more in ([], ["--dry-run"]):
        result = CliRunner().invoke(rocketpost, [*asked, "groupd-one", *more])
        assert result.exit_code == 2, result.output
        said = " ".join(result.stderr.split())
        assert "no broker knows the group groupd-one; the groups that consume Grouped are" in said
        assert "are grouped-one" in said
    assert "groupd-one" not in asyncio.run(groups("not-yet"))
    report = audit(topics.spark, config(topics, "Grouped", group="not-yet"))
    assert report.finding("waiting").count == 8


def test_the_command_fails_and_writes_what_it_found(topics: Topics, tmp_path: Path) -> None:
    topics.send("Escaped", [b"<b>"] * 8, keys="<script>[red]")
    options = tmp_path / "audit.yaml"
    options.write_text(f"name-server: {topics.cluster.addresses}\ntopic: Escaped\nlate: 5\n")
    asked = ["pipeline", "audit", "--config", str(options)]
    result = CliRunner().invoke(rocketpost, [*asked, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "would audit Escaped" in result.output
    files = ["--json", str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]
    result = CliRunner().invoke(rocketpost, [*asked, *files])
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "a.json").read_text())["isWhole"] is True
    result = CliRunner().invoke(rocketpost, [*asked, *files, "--by", "keys"])
    assert result.exit_code == 1, result.output
    assert "[red]: 8 times" in result.output  # and no markup
    found = json.loads((tmp_path / "a.json").read_text())
    assert [each["count"] for each in found["findings"] if each["name"] == "duplicated"] == [7]
    page = (tmp_path / "a.html").read_text()
    assert "7 duplicated" in page
    assert "<script>" not in page
    assert "http" not in page


def test_invalid_options_are_refused(topics: Topics, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name servers"):
        AuditConfig(topics=("T",))
    with pytest.raises(ConfigError, match="two audits"):
        AuditConfig(topics=("T",), lake="a", store="b")
    (tmp_path / "p.csv").write_text("a,b\n1,2\n")
    topics.send("Columns", [b"x"])
    with pytest.raises(ConfigError, match="no column uniqKey; its columns are a, b"):
        audit(topics.spark, config(topics, "Columns", produced=str(tmp_path / "p.csv")))
