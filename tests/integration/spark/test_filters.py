"""Filters of a query prune what is read, where Spark hands them over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException

from .conftest import Topics

pytestmark = pytest.mark.slow

CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushing(topics: Topics) -> Iterator[Topics]:
    topics.spark.conf.set(CONF, "true")
    yield topics
    topics.spark.conf.unset(CONF)


def test_a_query_with_filters_has_the_same_rows_and_reads_less(pushing: Topics) -> None:
    for tag in ("A", "B"):
        pushing.send("Filtered", [b"%03d" % number for number in range(100)], tags=tag)
    plain = pushing.read("Filtered").cache()
    middle = plain.selectExpr("percentile_approx(storeTimestamp, 0.5)").collect()[0][0]
    options = {"filterPushdown": "once", "maxClockStepMs": 0}
    for condition in (
        "queueId IN (0, 3) AND queueOffset BETWEEN 5 AND 20",
        "topic = 'Other'",
        "tags IN ('A', 'C') AND queueOffset >= 40",
        "tags IS NULL OR queueId = 1",
        f"storeTimestamp > '{middle}'",
        f"storeTimestamp <= '{middle}' AND tags <> 'B'",
    ):
        found, expected = (
            sorted((row.queueId, row.queueOffset) for row in frame.where(condition).collect())
            for frame in (pushing.read("Filtered", **options), plain)
        )
        assert found == expected, condition
    pruned = pushing.read("Filtered", **options)
    assert pruned.where("queueId = 2").rdd.getNumPartitions() == 1
    # Why it is only for once: Spark reads what the first query of a frame left, and no more.
    assert pruned.count() == plain.where("queueId = 2").count()


def test_a_missing_setting_is_named_and_other_reads_do_not_need_it(topics: Topics) -> None:
    topics.send("Unfiltered", [b"x"])
    assert topics.read("Unfiltered").where("queueId >= 0").count() == 1
    with pytest.raises(PySparkException, match=CONF):
        topics.read("Unfiltered", filterPushdown="once").count()
