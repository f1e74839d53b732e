"""The output of the audit command, on terminals and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rocketpost.spark.lake.parquet import ParquetLake
from rocketpost.spark.pipelines.commands import pipeline
from rocketpost.spark.source.plan import Bounds, QueueKey, Range

from ...lakes import commit

A, B, C = (QueueKey("Orders", "a", number) for number in range(3))


def planned(folder: Path, *words: str) -> tuple[list[str], dict[str, Any]]:
    """Return what a dry run says in words and in JSON."""
    file = folder / "plan.json"
    asked = ["audit", "-t", "Orders", "--dry-run", "--json", str(file), *words]
    result = CliRunner().invoke(pipeline, asked)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines(), json.loads(file.read_text())


def queue(number: int, first: int | None, last: int | None, committed: int | None = None) -> Any:
    return {
        "topic": "Orders",
        "broker": "a",
        "queueId": number,
        "first": first,
        "last": last,
        "committed": committed,
    }


def test_a_dry_run_reports_the_same_to_programs_and_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    have = {A: Bounds(3, 9), B: Bounds(7, 7), C: Bounds(0, 1)}
    at: dict[QueueKey, int | None] = {A: 5, B: None, C: 0}
    told = "rocketpost.spark.pipelines.audit.sources.read_bounds"
    monkeypatch.setattr(told, lambda config: (have, at if config.group else {}))
    words, plan = planned(tmp_path, "-n", "x:1", "-g", "billing")
    assert words == [
        "would audit Orders in the brokers of x:1",
        "queue 0 of Orders on a: offsets 3 to 8, billing is at 5",
        "queue 1 of Orders on a: no messages, billing has no offset",
        "queue 2 of Orders on a: offsets 0 to 0, billing is at 0",
    ]
    assert (plan["dryRun"], plan["topics"], plan["group"]) == (True, ["Orders"], "billing")
    assert plan["queues"] == [queue(0, 3, 8, 5), queue(1, None, None), queue(2, 0, 0, 0)]
    words, plan = planned(tmp_path, "-n", "x:1")
    assert (words[1], plan["group"]) == ("queue 0 of Orders on a: offsets 3 to 8", None)


def test_a_dry_run_reports_what_a_lake_has_of_the_topics(tmp_path: Path) -> None:
    lake = ParquetLake(str(tmp_path / "lake"))
    other = QueueKey("Other", "a", 0)
    commit(lake, 0, Range(A, 2, 5), Range(other, 0, 1))
    commit(lake, 1, Range(A, 5, 6), Range(B, 0, 4))
    words, plan = planned(tmp_path, "--lake", lake.uri)
    assert words[1:] == [
        "queue 0 of Orders on a: offsets 2 to 5",
        "queue 1 of Orders on a: offsets 0 to 3",
    ]
    assert plan["queues"] == [queue(0, 2, 5), queue(1, 0, 3)]
