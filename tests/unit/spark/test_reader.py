"""Readers refuse options that they could not honour."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import DataSourceReader, EqualTo, InputPartition
from pyspark.sql.types import StringType, StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.codec import field_of
from rocketpost.spark.bodies.shape import Shape
from rocketpost.spark.options import SourceOptions, parsed
from rocketpost.spark.reader import BatchReader, FilteringReader, StreamReader

BASE = {"nameServer": "x:1", "topic": "T"}


def made(**more: str) -> tuple[SourceOptions, Shape]:
    options = parsed(SourceOptions, BASE | more)
    return options, Shape(StructType([field_of("topic", StringType())]), options)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"endingTimestamp": "5"}, "a stream has no end"),
        ({"filterPushdown": "once"}, "filterPushdown is for batches"),
    ],
)
def test_a_stream_refuses_what_only_batches_have(more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        StreamReader(*made(**more))


def test_trap_only_a_reader_that_was_asked_to_takes_filters() -> None:
    # One that overrides pushFilters makes every read fail where Spark's conf is off.
    assert BatchReader.pushFilters is DataSourceReader.pushFilters
    assert FilteringReader.pushFilters is not DataSourceReader.pushFilters


def test_filters_stay_sparks_business_too() -> None:
    reader = FilteringReader(*made(filterPushdown="once"))
    filters = [EqualTo(("tags",), "A"), EqualTo(("bodyCrc",), 7)]
    assert list(reader.pushFilters(list(filters))) == filters
    assert reader.options.expression == "A"


def test_trap_spark_makes_a_part_where_there_is_none() -> None:
    assert list(BatchReader(*made()).read(InputPartition(None))) == []
