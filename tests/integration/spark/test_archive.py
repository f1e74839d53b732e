"""Topics into a lake and back, exactly once."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from rocketpost.admin.main import mqadmin
from rocketpost.cli import rocketpost
from rocketpost.errors import ClientError, ConfigError, StoreError
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.lake.lake import DELTA, FORMATS, PARQUET, Batch, Lake, Snapshot, open_lake
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines import archive as archive_module
from rocketpost.spark.pipelines.archive import (
    ArchiveConfig,
    archive,
    archive_once,
    archived,
    set_hold,
)
from rocketpost.spark.pipelines.audit import AuditConfig, audit
from rocketpost.spark.pipelines.compaction import compact
from rocketpost.spark.pipelines.copying import CopyConfig
from rocketpost.spark.pipelines.replay import replay
from rocketpost.spark.pipelines.selection import Selection
from rocketpost.spark.pipelines.verification import verify
from rocketpost.spark.source.plan import Bounds

from .conftest import Topics

pytestmark = pytest.mark.slow


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


def texts(bodies: list[bytes]) -> list[str]:
    return [body.decode() for body in bodies]


def config(topics: Topics, topic: str, lake: Path, **more: object) -> ArchiveConfig:
    source = SourceOptions(name_servers=topics.cluster.addresses, topic=topic)
    return ArchiveConfig(source=source, lake=str(lake), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", FORMATS)
def test_every_message_is_archived_once_over_several_runs(
    topics: Topics, tmp_path: Path, kind: str
) -> None:
    topic = f"Kept-{kind}"
    topics.send(topic, numbered(60), tags="A", properties={"a": "b"})
    options = config(topics, topic, tmp_path, format=kind, offsets_max=40)
    report = archive(topics.spark, options)
    assert (report.rows, report.batches) == (60, 2)
    assert archive(topics.spark, options).batches == 0
    topics.send(topic, numbered(5, 60))
    assert archive(topics.spark, options).rows == 5
    frame = archived(topics.spark, str(tmp_path))
    live = topics.read(topic)
    assert frame.columns == live.columns
    assert frame.count() == 65
    texted = ["to_json(properties) AS properties"]
    wanted = [name for name in frame.columns if name != "properties"] + texted
    assert frame.selectExpr(*wanted).exceptAll(live.selectExpr(*wanted)).isEmpty()
    assert verify(topics.spark, str(tmp_path)) == []


@pytest.mark.parametrize("kind", FORMATS)
def test_no_column_of_any_file_is_required(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic = f"Optional-{kind}"
    options = config(topics, topic, tmp_path, format=kind)
    for start in (0, 10):
        topics.send(topic, numbered(10, start))
        archive(topics.spark, options)
    lake = open_lake(str(tmp_path))
    written = [pq.read_schema(tmp_path / file.path) for file in lake.snapshot().files]
    assert compact(topics.spark, str(tmp_path)) is not None
    written += [pq.read_schema(tmp_path / file.path) for file in lake.snapshot().files]
    assert [field for schema in written for field in schema if not field.nullable] == []


def test_a_delta_reader_reads_what_spark_has_archived(topics: Topics, tmp_path: Path) -> None:
    topics.send("Other", numbered(10), tags="A", keys="k", properties={"a": "b"})
    archive(topics.spark, config(topics, "Other", tmp_path, format=DELTA))
    table = DeltaTable(tmp_path)
    rows = table.to_pyarrow_table().to_pylist()
    assert sorted(row["body"] for row in rows) == numbered(10)
    live = {row.msgId: row for row in topics.read("Other").collect()}
    for row in rows:
        other = live[row["msgId"]]
        assert dict(row["properties"]) == other.properties
        assert row["storeTimestamp"].timestamp() == other.storeTimestamp.timestamp()
        assert str(row["date"]) == row["storeTimestamp"].date().isoformat()
    # As the guide says it: the files of the table, by Spark.
    frame = topics.spark.read.option("basePath", f"{tmp_path}/data").parquet(*table.file_uris())
    assert topics.bodies(frame) == texts(numbered(10))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("moment", ["list_files", "commit"])
def test_a_run_that_dies_leaves_nothing_that_counts(
    topics: Topics, tmp_path: Path, kind: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"Killed-{kind}-{moment}"
    topics.send(topic, numbered(20))
    options = config(topics, topic, tmp_path, format=kind)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    lake = type(options.open())
    monkeypatch.setattr(lake, moment, die)
    monkeypatch.setattr(archive_module, "discard_if_unused", lambda *_: None)  # as kill -9 does
    with pytest.raises(KeyboardInterrupt):
        archive(topics.spark, options)
    monkeypatch.undo()
    assert options.open().snapshot().files == []
    assert list(tmp_path.glob("data/batch=*/topic=*/date=*/*.parquet"))
    assert archive(topics.spark, options).rows == 20
    assert verify(topics.spark, str(tmp_path)) == []
    assert topics.bodies(archived(topics.spark, str(tmp_path))) == texts(numbered(20))


def test_a_failed_batch_removes_its_files(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.send("Failed", numbered(4))
    options = config(topics, "Failed", tmp_path)

    def fail(lake: Lake, batch: Batch, *, base: Snapshot | None = None) -> None:
        raise StoreError("no")

    monkeypatch.setattr(type(options.open()), "commit", fail)
    with pytest.raises(StoreError):
        archive(topics.spark, options)
    assert list(tmp_path.glob("data/*")) == []


@pytest.mark.parametrize("kind", FORMATS)
def test_compaction_changes_files_and_nothing_else(
    topics: Topics, tmp_path: Path, kind: str
) -> None:
    topic = f"Compacted-{kind}"
    topics.send(topic, numbered(40))
    options = config(topics, topic, tmp_path, format=kind, offsets_max=20)
    archive(topics.spark, options)
    frame = archived(topics.spark, str(tmp_path))
    done = compact(topics.spark, str(tmp_path))
    assert done is not None
    assert (done.before, done.after) == (2, 1)
    assert frame.count() == 40  # of the files from before
    assert compact(topics.spark, str(tmp_path)) is None
    topics.send(topic, numbered(5, 40))
    assert archive(topics.spark, options).rows == 5
    assert topics.bodies(archived(topics.spark, str(tmp_path))) == texts(numbered(45))
    assert verify(topics.spark, str(tmp_path)) == []
    again = CopyConfig(name_servers=topics.cluster.addresses, name="again", topic=f"{topic}-Again")
    selection = Selection(topics=(topic,), lake=str(tmp_path))
    assert replay(topics.spark, selection, again, dry_run=True).messages == 45
    assert audit(topics.spark, AuditConfig(topics=(topic,), lake=str(tmp_path))).messages == 45


@pytest.mark.parametrize("kind", FORMATS)
def test_a_second_compaction_finds_nothing_to_do(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic = f"Settled-{kind}"
    topics.send(topic, [bytes(1000) + secrets.token_bytes(1000) for _ in range(120)])
    archive(topics.spark, config(topics, topic, tmp_path, format=kind, offsets_max=12))
    before = len(open_lake(str(tmp_path)).snapshot().files)
    # Of this size are neither the files that are there nor one for all of them.
    done = compact(topics.spark, str(tmp_path), file_bytes=50_000)
    assert done is not None
    assert 1 < done.after < done.before == before
    held = open_lake(str(tmp_path)).snapshot()
    assert compact(topics.spark, str(tmp_path), file_bytes=50_000) is None
    assert open_lake(str(tmp_path)).snapshot() == held
    assert (held.rows, verify(topics.spark, str(tmp_path))) == (120, [])


def test_a_compaction_that_makes_no_fewer_files_ends_and_changes_nothing(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send("Bounded", numbered(40))
    archive(topics.spark, config(topics, "Bounded", tmp_path, offsets_max=20))
    held = open_lake(str(tmp_path)).snapshot()
    topics.spark.conf.set("spark.sql.files.maxRecordsPerFile", 20)
    try:
        assert compact(topics.spark, str(tmp_path)) is None
    finally:
        topics.spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert open_lake(str(tmp_path)).snapshot() == held
    assert len(list(tmp_path.glob("data/batch=*"))) == 2


def test_files_that_delta_tools_rewrote_are_read_as_well(topics: Topics, tmp_path: Path) -> None:
    topics.send("Optimized", numbered(20), properties={"a": "b"})
    options = config(topics, "Optimized", tmp_path, format=DELTA, offsets_max=10)
    archive(topics.spark, options)
    before = archived(topics.spark, str(tmp_path)).drop("properties").collect()
    table = DeltaTable(tmp_path)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    topics.send("Optimized", numbered(1, 20))
    assert archive(topics.spark, options).rows == 1
    frame = archived(topics.spark, str(tmp_path))
    assert set(before) < set(frame.drop("properties").collect())
    assert frame.filter("properties['a'] = 'b'").count() == 20
    assert verify(topics.spark, str(tmp_path)) == []


def test_a_topic_that_looks_like_a_number_stays_a_string(topics: Topics, tmp_path: Path) -> None:
    topics.send("2026", numbered(2))
    archive(topics.spark, config(topics, "2026", tmp_path))
    assert archived(topics.spark, str(tmp_path)).dtypes[0] == ("topic", "string")
    assert archived(topics.spark, str(tmp_path)).filter("topic = '2026'").count() == 2


def test_deleted_messages_are_reported_before_anything_is_written(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send("Shrunk", numbered(8))
    options = config(topics, "Shrunk", tmp_path, allow_loss=True)
    archive(topics.spark, options)
    manifest = tmp_path / "manifest/00000000.json"
    manifest.write_text(manifest.read_text().replace('"0": 2', '"0": 99', 2))
    with pytest.raises(ClientError, match="ends at offset 2, but 99 are archived"):
        archive_once(topics.spark, options)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_gap_larger_than_a_batch_is_skipped(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    topic = f"Gap{kind}"
    topics.send(topic, numbered(160))
    options = config(topics, topic, tmp_path, format=kind, offsets_max=8, allow_loss=True)
    archive_once(topics.spark, options)
    have = archive_module._list_bounds(options)
    gone, left, *_ = have
    bounds = {queue: Bounds(30, bound.end) for queue, bound in have.items()}
    bounds[gone] = Bounds(have[gone].end, have[gone].end)
    monkeypatch.setattr(archive_module, "_list_bounds", lambda _: bounds)
    report = archive(topics.spark, options)
    assert report.rows == sum(bound.end - bound.first for bound in bounds.values())
    held = options.open().snapshot()
    assert held.watermark == {queue: bound.end for queue, bound in bounds.items()}
    assert len(report.lost) == len(bounds)  # each hole is told once
    # What is all gone is noted too.
    monkeypatch.setitem(bounds, left, Bounds(99, 99))
    report = archive(topics.spark, options)
    assert (report.rows, len(report.lost)) == (0, 1)
    assert archive(topics.spark, options).batches == 0
    assert verify(topics.spark, str(tmp_path)) == []


def test_options_that_an_archive_cannot_honour_are_refused(tmp_path: Path) -> None:
    def refused(**options: object) -> str:
        source = SourceOptions(name_servers="x:1", topic="T", **options)  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as caught:
            ArchiveConfig(source=source, lake=str(tmp_path))
        return str(caught.value)

    assert "startingTimestamp cannot be used here" in refused(starting_timestamp=5)
    ends = '{"T": {"broker-0": {"0": 1}}}'
    assert "endingOffsets cannot be used here" in refused(ending_offsets=ends)
    assert "propertiesFormat must be map" in refused(properties_format="string")
    assert "bodyFormat must be bytes" in refused(body_format="string")
    assert "readDecoded true" in refused(read_decoded=False)


def test_the_command_says_what_it_would_do(topics: Topics, tmp_path: Path) -> None:
    topics.send("Asked", numbered(4))
    file = tmp_path / "options.yaml"
    file.write_text(f"name-server: {topics.cluster.addresses}\ntopic: [Asked]\nformat: delta\n")
    run = CliRunner().invoke
    asked = ["pipeline", "archive", "--config", str(file), "--lake", str(tmp_path / "lake")]
    result = run(rocketpost, [*asked, "--dry-run", "--json", "-", "--max-offsets", "1"])
    assert result.exit_code == 0, result.output
    assert "would be archived" in result.stderr
    report = json.loads(result.stdout)
    assert sum(queue["until"] for queue in report["queues"]) == 4
    assert not (tmp_path / "lake").exists()
    for only in ("--verify", "--compact"):
        result = run(rocketpost, [*asked, only])
        assert (result.exit_code, "nothing is archived in" in result.stderr) == (2, True)
    file.write_text("topics: Asked\n")
    result = run(rocketpost, [*asked, "--dry-run"])
    assert result.exit_code == 2
    assert "no option 'topics'; did you mean topic?" in result.output


def test_the_command_archives_verifies_and_compacts(topics: Topics, tmp_path: Path) -> None:
    topics.send("Told", numbered(8))
    run = CliRunner().invoke
    to = ["pipeline", "archive", "--lake", str(tmp_path / "lake"), "--json", "-"]
    source = ["-n", topics.cluster.addresses, "-t", "Told"]
    result = run(rocketpost, [*to, *source, "--format", "delta", "--max-offsets", "4"])
    assert result.exit_code == 0, result.output
    assert "archiving: 4 of 8 messages" in result.stderr
    report = json.loads(result.stdout)
    assert (report["ok"], report["messages"], report["batches"]) == (True, 8, 2)
    result = run(rocketpost, [*to, "--compact"])
    assert json.loads(result.stdout)["filesAfter"] == 1
    result = run(rocketpost, [*to, "--verify"])
    assert (result.exit_code, json.loads(result.stdout)["flaws"]) == (0, [])
    (file,) = open_lake(str(tmp_path / "lake")).snapshot().files
    (tmp_path / "lake" / file.path).unlink()
    result = run(rocketpost, [*to, "--verify"])
    assert result.exit_code == 1
    assert json.loads(result.stdout)["ok"] is False
    result = run(rocketpost, [*to, *source, "--format", PARQUET])
    assert result.exit_code == 2
    assert "of the format delta, not parquet" in result.stderr
    result = run(rocketpost, [*to, "--verify", "--every", "5"])
    assert result.exit_code == 2
    assert "--verify and --every cannot be combined" in result.stderr


@pytest.mark.parametrize("kind", FORMATS)
def test_a_damaged_file_is_found_and_named(topics: Topics, tmp_path: Path, kind: str) -> None:
    topic = f"Damaged-{kind}"
    topics.send(topic, numbered(40))
    archive(topics.spark, config(topics, topic, tmp_path, format=kind, offsets_max=20))
    lake = open_lake(str(tmp_path))
    files = lake.snapshot().files
    assert len(files) > 1
    damaged = tmp_path / files[0].path
    # In a column that is not counted, and where a compressed page may well seem to be whole.
    chunks = pq.ParquetFile(damaged).metadata.row_group(0)
    names = [chunks.column(number).path_in_schema for number in range(chunks.num_columns)]
    body = chunks.column(names.index("body"))
    content = bytearray(damaged.read_bytes())
    content[body.data_page_offset + body.total_compressed_size - 3] ^= 0xFF
    damaged.write_bytes(content)
    command = ["pipeline", "archive", "--lake", str(tmp_path), "--verify", "--json", "-"]
    sums = damaged.with_name(f".{damaged.name}.crc")
    for has_sums in (True, False):  # those of Hadoop; the file has its own
        assert sums.exists() == has_sums
        result = CliRunner().invoke(rocketpost, command)
        assert result.exit_code == 1, result.output
        report = json.loads(result.stdout)
        assert (report["ok"], report["error"]) == (False, None)
        assert report["flaws"] == [f"{files[0].path} cannot be read: it is damaged"]
        sums.unlink(missing_ok=True)


def test_a_hold_is_at_the_end_of_the_lake(topics: Topics, tmp_path: Path) -> None:
    topics.send("Held", numbered(20))
    source = SourceOptions(name_servers=topics.cluster.addresses, topic="Held", group="keeper")
    options = ArchiveConfig(source=source, lake=str(tmp_path), hold="keeper")
    set_hold(options)
    with BrokerSession(source) as broker_session:
        assert set(broker_session.group_offsets(broker_session.queues()).values()) == {0}
        archive(topics.spark, options)
        assert (
            broker_session.group_offsets(broker_session.queues())
            == options.open().snapshot().watermark
        )
    status = CliRunner().invoke(
        mqadmin,
        ["getConsumerConfig", "-g", "keeper", "--json"],
        env={"NAMESRV_ADDR": topics.cluster.addresses},
    )
    assert '"retention.hold": "true"' in status.output
    with pytest.raises(ConfigError, match="cannot be used to hold"):
        ArchiveConfig(source=source, lake=str(tmp_path), hold="a b")
