"""Archived and live messages as one table: no overlap, no hole, at any millisecond."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

from rocketpost.admin.main import mqadmin
from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines import history as history_module
from rocketpost.spark.pipelines.archive import ArchiveConfig, archive, archive_once
from rocketpost.spark.pipelines.compaction import compact
from rocketpost.spark.pipelines.history import history
from rocketpost.spark.source.plan import Bounds, QueueKey
from rocketpost.testing.cluster import Cluster

from .conftest import Topics

pytestmark = pytest.mark.slow

SEGMENT_BYTES = 64 * 1024
SMALL_SEGMENTS = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "maxMessageSize": "16384",
    "timerWheelEnable": "false",
    "cleanResourceInterval": "3600000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}


@pytest.fixture(scope="module")
def pair(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """Two brokers whose logs are in small segments."""
    directory = tmp_path_factory.mktemp("pair")
    with Cluster(directory, brokers=2, settings=SMALL_SEGMENTS) as cluster:
        yield Topics(spark, cluster, __name__)


def config(topics: Topics, topic: str, lake: Path, **more: object) -> ArchiveConfig:
    return ArchiveConfig(source=source(topics, topic), lake=str(lake), **more)  # type: ignore[arg-type]


def source(topics: Topics, topic: str, **more: object) -> SourceOptions:
    return SourceOptions(name_servers=topics.cluster.addresses, topic=topic, **more)  # type: ignore[arg-type]


def bodies(*numbers: int) -> list[bytes]:
    return [b"%05d" % number for number in range(*numbers)]


def seen(frame: DataFrame) -> Counter[str]:
    return Counter(bytes(row.body[:5]).decode() for row in frame.select("body").collect())


def once(*numbers: int) -> Counter[str]:
    return Counter(body.decode() for body in bodies(*numbers))


def test_the_lake_and_newer_messages_of_two_brokers(pair: Topics, tmp_path: Path) -> None:
    pair.send("Long", bodies(40))
    archive(pair.spark, config(pair, "Long", tmp_path, format="delta"))
    pair.send("Long", bodies(40, 55))
    frame = history(pair.spark, source(pair, "Long"), str(tmp_path))
    assert seen(frame) == once(55)
    assert frame.select("brokerName").distinct().count() == 2


def test_messages_archived_meanwhile_are_not_duplicated(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.send("Racing", bodies(20))
    options = config(topics, "Racing", tmp_path)
    archive(topics.spark, options)
    topics.send("Racing", bodies(20, 30))

    class Slow(BrokerSession):
        """A line that is so slow that a run of the archive fits in."""

        def bounds(self, queues: list[QueueKey]) -> dict[QueueKey, Bounds]:  # type: ignore[override]
            archive_once(topics.spark, options)
            topics.send("Racing", bodies(30, 33))
            return super().bounds(queues)

    monkeypatch.setattr(history_module, "BrokerSession", Slow)
    frame = history(topics.spark, options.source, str(tmp_path))
    assert seen(frame) == once(33)
    # Nor does it matter to a frame that is there what happens to the lake.
    archive(topics.spark, options)
    compact(topics.spark, str(tmp_path))
    topics.send("Racing", bodies(33, 35))
    assert seen(frame) == once(33)


def test_time_travel_to_a_millisecond(topics: Topics, tmp_path: Path) -> None:
    topics.send("Travelled", bodies(30))
    options = config(topics, "Travelled", tmp_path)
    archive(topics.spark, options)
    topics.send("Travelled", bodies(30, 50))
    rows = (
        topics.read("Travelled").selectExpr("body", "unix_millis(storeTimestamp) AS ms").collect()
    )
    at = {bytes(row.body).decode(): row.ms for row in rows}
    assert max(Counter(at.values()).values()) > 1  # several messages of one millisecond
    cold = [at[body.decode()] for body in bodies(30)]
    live = [at[body.decode()] for body in bodies(30, 50)]
    moments = [min(cold), sorted(cold)[15], max(cold) + 1, sorted(live)[10], max(live) + 1]
    for moment in moments:
        frame = history(topics.spark, options.source, str(tmp_path), as_of_ms=moment)
        assert seen(frame) == Counter(body for body, ms in at.items() if ms < moment), moment


def test_a_gap_between_lake_and_brokers_is_reported(
    pair: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filler = b"." * 4000
    pair.send("Holed", [body + filler for body in bodies(20)])
    archive(pair.spark, config(pair, "Holed", tmp_path))
    stored = pair.read("Holed").selectExpr(
        "substr(body, 1, 5) AS body",
        "unix_millis(storeTimestamp) AS ms",
        "concat(brokerName, queueId) AS queue",
    )
    rows = stored.collect()
    last = {row.queue: max(each.ms for each in rows if each.queue == row.queue) for row in rows}
    moment = min(last.values())  # up to then every queue is archived
    pair.send("Holed", [body + filler for body in bodies(20, 140)])
    for server in pair.cluster.brokers:  # only what was saved may go, and now everything is
        server.stop()
        server.start()
    for path in Path(pair.cluster.directory).glob("**/commitlog/*"):
        os.utime(path, (1, 1))
    result = CliRunner().invoke(
        mqadmin, ["deleteExpiredCommitLog", "--yes"], env={"NAMESRV_ADDR": pair.cluster.addresses}
    )
    assert result.exit_code == 0, result.output
    live = seen(pair.read("Holed"))
    lost = once(20, 140) - live
    assert 0 < lost.total() < 120
    with pytest.raises(ClientError, match=r"were deleted.*failOnDataLoss=false"):
        history(pair.spark, source(pair, "Holed"), str(tmp_path))
    tolerant = source(pair, "Holed", fail_on_data_loss=False)
    assert seen(history(pair.spark, tolerant, str(tmp_path))) == once(140) - lost
    assert "neither archived nor live" in caplog.text
    # The hole is later than this, so nothing is missing.
    before = history(pair.spark, source(pair, "Holed"), str(tmp_path), as_of_ms=moment)
    assert seen(before) == Counter(bytes(row.body).decode() for row in rows if row.ms < moment)
    with pytest.raises(ClientError, match="--allow-loss"):
        archive(pair.spark, config(pair, "Holed", tmp_path))
    report = archive(pair.spark, config(pair, "Holed", tmp_path, allow_loss=True))
    assert report.lost
    assert seen(history(pair.spark, source(pair, "Holed"), str(tmp_path))) == once(140) - lost


def test_a_broker_that_is_down_causes_no_silent_gap(
    pair: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair.send("Away", bodies(40))
    archive(pair.spark, config(pair, "Away", tmp_path))
    pair.send("Away", bodies(40, 60))
    rows = pair.read("Away").selectExpr("brokerName", "body", "unix_millis(storeTimestamp) AS ms")
    stored = rows.collect()
    gone = pair.cluster.brokers[1]
    hidden = {bytes(row.body).decode() for row in stored if row.brokerName == "broker-1"}
    cold = [row.ms for row in stored if bytes(row.body) < b"00040"]
    assert hidden & set(once(40, 60))
    gone.stop()
    try:
        brief = source(pair, "Away", outage_ms=500)
        said = (
            r"of Away on broker-1 is archived up to offset \d+; it no longer exists.*failOnDataLoss"
        )
        with pytest.raises(ClientError, match=said):
            history(pair.spark, brief, str(tmp_path))
        # What was stored by then is archived.
        early = history(pair.spark, brief, str(tmp_path), as_of_ms=min(cold))
        assert seen(early) == Counter()
        tolerant = source(pair, "Away", outage_ms=500, fail_on_data_loss=False)
        left = history(pair.spark, tolerant, str(tmp_path))
        assert seen(left) == once(60) - Counter(hidden & set(once(40, 60)))
        assert "broker-1 is archived up to" in caplog.text
    finally:
        gone.start()
    assert seen(history(pair.spark, source(pair, "Away"), str(tmp_path))) == once(60)


def test_a_history_has_the_queues_that_there_were(topics: Topics, tmp_path: Path) -> None:
    topics.send("Widened", bodies(20))
    archive(topics.spark, config(topics, "Widened", tmp_path))
    topics.send("Widened", bodies(20, 30))
    frame = history(topics.spark, source(topics, "Widened"), str(tmp_path))
    wider = ["updateTopic", "-t", "Widened", "-c", "DefaultCluster", "-r", "8", "-w", "8"]
    result = CliRunner().invoke(mqadmin, wider, env={"NAMESRV_ADDR": topics.cluster.addresses})
    assert result.exit_code == 0, result.output
    topics.send("Widened", bodies(30, 70))
    assert seen(frame) == once(30)
    assert seen(history(topics.spark, source(topics, "Widened"), str(tmp_path))) == once(70)


def test_selection_from_a_lake_works_as_from_brokers(topics: Topics, tmp_path: Path) -> None:
    topics.send("TagsKept", bodies(10), tags="A")
    archive(topics.spark, config(topics, "TagsKept", tmp_path))
    topics.send("TagsKept", bodies(10, 20), tags="A")
    topics.send("TagsKept", bodies(20, 30), tags="B")
    topics.send("Untold", bodies(30, 40))
    tagged = source(topics, "TagsKept", expression="A || C")
    assert seen(history(topics.spark, tagged, str(tmp_path))) == once(20)
    for every in ("", " * "):
        whole = source(topics, "TagsKept", expression=every)
        assert seen(history(topics.spark, whole, str(tmp_path))) == once(30)
    assign = f'{{"TagsKept": {{"{broker(topics)}": [0, 1]}}}}'
    some = SourceOptions(name_servers=topics.cluster.addresses, assign=assign)
    found = history(topics.spark, some, str(tmp_path)).select("queueId").distinct().collect()
    assert sorted(row.queueId for row in found) == [0, 1]
    for options, said in (
        ({"starting_timestamp": 5}, "startingTimestamp cannot be used here"),
        ({"properties_format": "string"}, "propertiesFormat=string cannot be used here"),
        ({"expression": "a > 5", "expression_type": "SQL92"}, "SQL92 cannot be used here"),
        ({"body_format": "string"}, "bodyFormat and readDecoded cannot be used here"),
        ({"read_decoded": False}, "bodyFormat and readDecoded cannot be used here"),
        ({"offsets_max": 5}, "maxOffsetsPerTrigger is for streams"),
    ):
        with pytest.raises(ConfigError, match=said):
            history(topics.spark, source(topics, "TagsKept", **options), str(tmp_path))
    with pytest.raises(ConfigError, match="nothing is archived"):
        history(topics.spark, source(topics, "TagsKept"), str(tmp_path / "none"))


def broker(topics: Topics) -> str:
    with BrokerSession(source(topics, "TagsKept")) as broker_session:
        return broker_session.queues()[0].broker
