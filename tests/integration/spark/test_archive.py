"""Topics into a lake and back, exactly once."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.cli import rocketpost
from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.lake import Lake
from rocketpost.spark.link import Link
from rocketpost.spark.options import SourceOptions
from rocketpost.spark.pipelines.archive import (
    ArchiveConfig,
    archive,
    archive_once,
    archived,
    compact,
    hold,
    verify,
)
from rocketpost.spark.pipelines.history import history

from .conftest import Topics

pytestmark = pytest.mark.slow


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%05d" % number for number in range(start, start + count)]


def texts(bodies: list[bytes]) -> list[str]:
    return [body.decode() for body in bodies]


def config(topics: Topics, topic: str, lake: Path, **more: int) -> ArchiveConfig:
    source = SourceOptions(name_servers=topics.cluster.addresses, topic=topic)
    return ArchiveConfig(source=source, lake=str(lake), offsets_max=more.get("offsets_max"))


def test_every_message_is_archived_once_over_several_runs(topics: Topics, tmp_path: Path) -> None:
    topics.send("Kept", numbered(200), tags="A", properties={"a": "b"})
    options = config(topics, "Kept", tmp_path, offsets_max=80)
    report = archive(topics.spark, options)
    assert (report.rows, report.batches) == (200, 3)
    assert archive(topics.spark, options).batches == 0
    topics.send("Kept", numbered(30, 200))
    assert archive(topics.spark, options).rows == 30
    frame = archived(topics.spark, str(tmp_path))
    assert topics.bodies(frame) == texts(numbered(230))
    live = topics.read("Kept")
    assert sorted(frame.columns) == sorted(live.columns)
    wanted = ["msgId", "uniqKey", "queueOffset", "storeTimestamp", "tags", "bornHost"]
    assert frame.select(*wanted).exceptAll(live.select(*wanted)).count() == 0
    assert verify(topics.spark, str(tmp_path)) == []


def test_what_a_killed_run_left_is_replaced(topics: Topics, tmp_path: Path) -> None:
    topics.send("Killed", numbered(50))
    options = config(topics, "Killed", tmp_path)
    lake = Lake(str(tmp_path))
    topics.read("Killed").write.partitionBy("topic").parquet(lake.batch_uri(0))  # and no manifest
    assert archive(topics.spark, options).rows == 50
    assert topics.bodies(archived(topics.spark, str(tmp_path))) == texts(numbered(50))
    assert verify(topics.spark, str(tmp_path)) == []


def test_compaction_changes_files_and_nothing_else(topics: Topics, tmp_path: Path) -> None:
    topics.send("Compacted", numbered(60))
    options = config(topics, "Compacted", tmp_path, offsets_max=20)
    archive(topics.spark, options)
    before = len(Lake(str(tmp_path)).file_uris())
    batch = compact(topics.spark, str(tmp_path))
    assert batch is not None
    assert len(batch.files) < before
    assert compact(topics.spark, str(tmp_path)) is None
    topics.send("Compacted", numbered(5, 60))
    assert archive(topics.spark, options).rows == 5
    assert topics.bodies(archived(topics.spark, str(tmp_path))) == texts(numbered(65))
    assert verify(topics.spark, str(tmp_path)) == []


def test_history_is_the_lake_and_what_came_since(topics: Topics, tmp_path: Path) -> None:
    topics.send("Long", numbered(40))
    options = config(topics, "Long", tmp_path)
    archive_once(topics.spark, options)
    topics.send("Long", numbered(15, 40))
    frame = history(topics.spark, options.source, str(tmp_path))
    assert topics.bodies(frame) == texts(numbered(55))
    newest = frame.selectExpr("max(unix_millis(storeTimestamp))").first()
    assert newest is not None
    before = history(topics.spark, options.source, str(tmp_path), as_of_ms=newest[0])
    assert before.count() < 55


def test_messages_that_are_gone_are_told_before_anything_is_written(
    topics: Topics, tmp_path: Path
) -> None:
    topics.send("Shrunk", numbered(8))
    options = config(topics, "Shrunk", tmp_path)
    archive(topics.spark, options)
    manifest = tmp_path / "manifest/00000000.json"
    manifest.write_text(manifest.read_text().replace('"0": 2', '"0": 99', 2))
    with pytest.raises(ClientError, match="--allow-loss"):
        archive_once(topics.spark, options)


def test_the_command_says_what_it_would_do(topics: Topics, tmp_path: Path) -> None:
    topics.send("Asked", numbered(4))
    file = tmp_path / "options.yaml"
    file.write_text(f"name-server: {topics.cluster.addresses}\ntopic: Asked\n")
    run = CliRunner().invoke
    asked = ["pipeline", "archive", "--config", str(file), "--lake", str(tmp_path / "lake")]
    result = run(rocketpost, [*asked, "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "would be archived" in result.output
    assert not (tmp_path / "lake").exists()
    file.write_text("topics: Asked\n")
    result = run(rocketpost, [*asked, "--dry-run"])
    assert result.exit_code == 2
    assert "no option 'topics'" in result.output


def test_a_hold_stands_where_the_lake_ends(topics: Topics, tmp_path: Path) -> None:
    topics.send("Held", numbered(20))
    source = SourceOptions(name_servers=topics.cluster.addresses, topic="Held", group="keeper")
    options = ArchiveConfig(source=source, lake=str(tmp_path), hold="keeper")
    hold(options)
    with Link(source) as link:
        assert set(link.group_offsets(link.queues()).values()) == {0}
        archive(topics.spark, options)
        assert link.group_offsets(link.queues()) == Lake(str(tmp_path)).watermark()
    status = CliRunner().invoke(
        mqadmin,
        ["getConsumerConfig", "-g", "keeper", "--json"],
        env={"NAMESRV_ADDR": topics.cluster.addresses},
    )
    assert '"retention.hold": "true"' in status.output
    with pytest.raises(ConfigError, match="cannot hold"):
        ArchiveConfig(source=source, lake=str(tmp_path), hold="a b")
