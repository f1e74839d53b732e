"""Behaviour that all pipeline commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.pipelines.command import Run, pipeline_command, since_option
from rocketpost.spark.pipelines.commands import pipeline

GONE = "Spark ended before everything was done: its Java process has exited"
ERRORS = {
    "usage": ConfigError("the lake is required"),
    "client": ClientError("offset 5 was deleted"),
    "spark": PySparkException("Job aborted\nrocketpost.errors.ClientError: queue 1 is gone\nat x"),
    "system": PermissionError(13, "Permission denied", "/lake"),
    "java": PySparkException("Job aborted\nat java"),
    "full": PySparkException(
        "An error occurred while calling o7.parquet.\n: a.b.SparkException: [TASK] no\n"
        "\tat x\nCaused by: a.b.FSError: x\nCaused by: java.io.IOException: No space\n"
    ),
    "denied": PySparkException(
        "An error occurred while calling o7.parquet.\n: a.b.ParentNotDirectoryException: /x\n\tat x"
    ),
    "gone": Py4JError("An error occurred while calling o9.collectToPython"),
    "refused": ConnectionRefusedError(111, "Connection refused"),
    "python": PySparkException("From a worker:\nTraceback:\n  File x\nKeyError: 'q'\n\nat java"),
}


@click.command()
@pipeline_command("work")
@click.option("--fail")
@since_option
def work(run: Run, *, fail: str | None, since: int | None) -> None:
    """Do it."""
    run.say(f"since {since}" + (", dry" if run.dry_run else ""))
    if fail in ERRORS:
        raise ERRORS[fail]
    run.conclude({"messages": 7}, is_whole=fail != "found")


def run(*words: str) -> Result:
    return CliRunner().invoke(work, list(words))


def test_a_whole_run_exits_with_0_and_reports(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    result = run("--json", str(file), "--dry-run", "--since", "1970-01-01T00:00:01")
    assert (result.exit_code, result.stdout) == (0, "since 1000, dry\n")
    report = json.loads(file.read_text())
    assert report.pop("seconds") >= 0
    assert report == {
        "pipeline": "work",
        "dryRun": True,
        "ok": True,
        "error": None,
        "messages": 7,
    }


def test_times_are_exact_to_the_millisecond() -> None:
    for ms in range(1000):
        assert _time(f"2026-11-16T08:00:00.{ms:03d}") == 1_794_816_000_000 + ms
    assert _time("2026-11-16T10:00:00+02:00") == 1_794_816_000_000


def _time(text: str) -> object:
    (option,) = [each for each in work.params if each.name == "since"]
    return option.type.convert(text, option, None)


@pytest.mark.parametrize(
    ("fail", "code", "said"),
    [
        ("found", 1, ""),
        ("client", 1, "Error: offset 5 was deleted"),
        ("spark", 1, "Error: Spark failed: queue 1 is gone"),
        ("system", 1, "Error: [Errno 13] Permission denied: '/lake'"),
        ("java", 1, "Error: Spark failed: Job aborted"),
        ("full", 1, "Error: Spark failed: java.io.IOException: No space"),
        ("denied", 1, "Error: Spark failed: a.b.ParentNotDirectoryException: /x"),
        ("python", 1, "Error: Spark failed: KeyError: 'q'"),
        ("gone", 1, f"Error: {GONE}"),
        ("refused", 1, f"Error: {GONE}"),
        ("usage", 2, "Error: the lake is required"),
    ],
)
def test_exit_codes_and_reports_say_what_failed(fail: str, code: int, said: str) -> None:
    result = run("--fail", fail, "--json", "-")
    assert result.exit_code == code
    assert said in result.stderr
    report: dict[str, Any] = json.loads(result.stdout)  # and nothing else is on it
    assert report["ok"] is False
    assert (report["error"] or "") == said.removeprefix("Error: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sinse", "5"], "No such option"),
        (["--since", "soon"], "'soon' is neither milliseconds nor a time"),
        (["--conf", "spark.x"], "--conf spark.x must be KEY=VALUE"),
        (["--json", "/nowhere/at/all.json"], "there is no directory /nowhere/at"),
    ],
)
def test_invalid_options_exit_with_2_and_are_named(words: list[str], said: str) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert said in result.stderr


def test_only_continuous_runs_report_that_they_were_stopped() -> None:
    run = Run("work")
    assert run.stopped == "stopped before everything was done"
    run.can_go_on = True
    assert run.stopped.endswith("; start it again to continue from there")


def test_every_pipeline_has_the_options_of_all() -> None:
    for command in pipeline.commands.values():
        names = [option.name for option in command.params]
        assert names[-5:] == ["config", "dry_run", "json_file", "master", "conf"], command.name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit", "-t", "T", "--html", "no/such/x.html"], "there is no directory no/such"),
        (["dead-letters", "-g", "g", "--to", "T", "--rate", "5"], "takes --to, --rate"),
        (["dead-letters", "-g", "g", "--max-redrives", "2"], "only --redrive takes"),
        (["archive", "--lake", "l"], "exactly one of --topic (-t) and --topic-pattern"),
    ],
)
def test_options_without_effect_are_refused_before_any_work(words: list[str], said: str) -> None:
    result = CliRunner().invoke(pipeline, [*words, "-n", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit", "--produced", "no.csv"], "--produced no.csv cannot be read: No such file"),
        (["audit", "--produced", "no.csv", "--dry-run"], "--produced no.csv cannot be read"),
        (["audit", "--produced", "file:/no/such"], "--produced /no/such cannot be read"),
        (["audit", "--store", "here,gone"], "--store gone cannot be read: No such file"),
        (["audit", "--lake", "here"], "nothing is archived in here"),
        (["audit", "--lake", "here", "--dry-run"], "nothing is archived in here"),
        (["replay", "--name", "n", "--lake", "gone"], "nothing is archived in gone"),
        (["archive", "--lake", "file"], "file is a file, but a lake is a directory"),
    ],
)
def test_missing_inputs_are_refused_before_spark_starts(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session(*_: object, **__: object) -> None:
        raise AssertionError("Spark starts")

    monkeypatch.setattr("rocketpost.spark.pipelines.command.make_session", no_session)
    for name in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    Path("here", "commitlog").mkdir(parents=True)
    Path("file").touch()
    result = CliRunner().invoke(pipeline, [*words, "-t", "T", "-n", "127.0.0.1:1"])
    assert result.exit_code == 2, result.exception
    assert said in " ".join(result.output.split())


def test_an_archive_asks_for_name_servers_by_the_name_of_their_option() -> None:
    result = CliRunner().invoke(pipeline, ["archive", "-t", "T", "--lake", "l"])
    assert (result.exit_code, "--name-server (-n) is required" in result.output) == (2, True)


def test_options_of_an_archive_mean_nothing_to_a_check_of_it(tmp_path: Path) -> None:
    lake = ["archive", "--lake", str(tmp_path / "none")]
    result = CliRunner().invoke(pipeline, [*lake, "--verify", "-t", "T", "--max-offsets", "5"])
    assert result.exit_code == 2
    said = " ".join(result.output.split())
    assert "--verify works on the whole lake; leave out --topic, --max-offsets" in said
    file = tmp_path / "archive.yaml"  # which may serve both
    file.write_text("topic: T\nname-server: 127.0.0.1:1\n")
    result = CliRunner().invoke(pipeline, [*lake, "--compact", "--config", str(file)])
    assert (result.exit_code, "nothing is archived" in result.output) == (2, True)
