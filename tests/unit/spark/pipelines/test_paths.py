"""Paths are refused before Spark starts, if they are of this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.spark.pipelines.paths import check_readable, local_path


@pytest.fixture(autouse=True)
def plain_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("orders.csv", "orders.csv"),
        ("/a/b.csv", "/a/b.csv"),
        ("file:/a/b.csv", "/a/b.csv"),
        ("file:///a/b.csv", "/a/b.csv"),
        ("hdfs://n/a.csv", None),
        ("s3a://bucket/a.csv", None),
        ("/a/orders-*.csv", None),
        ("/a/{b,c}.csv", None),
    ],
)
def test_paths_of_this_machine(path: str, local: str | None) -> None:
    assert local_path(path, {}) == local


def test_plain_paths_may_be_elsewhere_if_spark_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    assert local_path("/a.csv", {"spark.hadoop.fs.defaultFS": "hdfs://n"}) is None
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert local_path("/a.csv", {}) is None
    assert local_path("file:/a.csv", {}) == "/a.csv"


def test_unreadable_paths_are_refused_with_their_option(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("id\n")
    check_readable("--produced", str(file))
    check_readable("--store", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^--produced .*/b.csv cannot be read: No such file"):
        check_readable("--produced", str(tmp_path / "b.csv"))
    with pytest.raises(ConfigError, match="Not a directory"):
        check_readable("--produced", str(file / "c.csv"))
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(ConfigError, match="cannot be read: Too many levels"):
        check_readable("--produced", str(tmp_path / "loop"))
