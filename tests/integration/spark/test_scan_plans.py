"""Scans are planned without a second copy of each row, and every query has the same rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count_distinct, max_by

from rocketpost.spark import scan_plans
from rocketpost.spark.scan_plans import CLASS_NAME, save_copies

from .conftest import Topics

pytestmark = pytest.mark.slow

QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "all": lambda frame: frame,
    "sorted": lambda frame: frame.orderBy("queueId", "queueOffset"),
    "filtered": lambda frame: frame.where("queueOffset % 2 = 0"),
    "some columns": lambda frame: frame.select("body", "queueId"),
    "joined": lambda frame: frame.join(frame.select("msgId", col("body").alias("again")), "msgId"),
    "twice": lambda frame: frame.union(frame),
    "shuffled": lambda frame: frame.repartition(3, "msgId"),
    "distinct": lambda frame: frame.drop("properties").distinct(),
    "grouped": lambda frame: frame.groupBy("queueId").agg(
        count_distinct("body"), max_by("body", "queueOffset")
    ),
    "cached": lambda frame: frame.cache(),
    "one task": lambda frame: frame.coalesce(1),
}


def strategies(spark: SparkSession) -> Any:
    return spark._jsparkSession.experimental()


def names(spark: SparkSession) -> list[str]:
    every = strategies(spark).extraStrategies()
    return [every.apply(at).getClass().getName() for at in range(every.length())]


@pytest.fixture
def without(spark: SparkSession) -> Iterator[None]:
    """Plan as Spark does by itself."""
    ours = strategies(spark).extraStrategies()
    set_strategies = getattr(strategies(spark), "extraStrategies_$eq")
    set_strategies(ours.take(0))
    yield
    set_strategies(ours)


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def rows(frame: DataFrame) -> list[str]:
    return sorted(str(row) for row in frame.collect())


@pytest.fixture(scope="module")
def expected() -> dict[str, list[str]]:
    return {}


def read(topics: Topics) -> DataFrame:
    return topics.read("PlannedScans")


@pytest.mark.usefixtures("without")
def test_spark_itself_copies_each_row_again(topics: Topics, expected: dict[str, list[str]]) -> None:
    topics.send("PlannedScans", [b"%d" % at * 50 for at in range(60)], tags="A", keys="k")
    assert names(topics.spark) == []
    assert "Project" in plan(read(topics))
    expected |= {name: rows(query(read(topics))) for name, query in QUERIES.items()}
    topics.spark.catalog.clearCache()
    assert len(expected["all"]) == 60


def test_rows_are_the_same_with_one_copy_less(
    topics: Topics, expected: dict[str, list[str]]
) -> None:
    frame = read(topics)
    assert names(topics.spark) == [CLASS_NAME]
    assert "BatchScan" in plan(frame)
    assert "Project" not in plan(frame)
    # A projection that selects columns is needed.
    assert "Project" in plan(QUERIES["some columns"](frame))
    for name, query in QUERIES.items():
        assert rows(query(read(topics))) == expected[name], name
    topics.spark.catalog.clearCache()


def test_a_session_gets_one_strategy(spark: SparkSession) -> None:
    save_copies(spark)
    assert names(spark) == [CLASS_NAME]
    assert names(spark.newSession()) == []


def test_another_spark_plans_as_before(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its classes are not those that the source names."""
    other = Path(__file__)
    monkeypatch.setattr(scan_plans, "_SOURCE", other)
    session = spark.newSession()
    with caplog.at_level(logging.WARNING):
        save_copies(session)
    assert "copies each row" in caplog.text
    assert names(session) == []


def test_a_session_without_a_jvm_is_left_alone() -> None:
    class Remote:
        """A session of Spark Connect, as far as this is concerned."""

    save_copies(Remote())  # type: ignore[arg-type]
