"""The sources as Spark finds and asks them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.codec import nullable_field
from rocketpost.spark.bodies.shape import Shape
from rocketpost.spark.records import columns
from rocketpost.spark.records.chunk import Chunk
from rocketpost.spark.records.decode import decode
from rocketpost.spark.row_options import RowOptions
from rocketpost.spark.source.formats import RocketMQLogSource, RocketMQSource

from ..made_records import packed, record

KINDS: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType()),
}
DATA, STARTS = packed(record()), np.array([0], np.int64)
BLOCKED = """
import sys
for name in ("pyarrow", "numpy", "msgspec", "rocketpost.client", "fastavro", "google.protobuf"):
    sys.modules[name] = None
import pyspark_rocketmq, pyspark_rocketmq_log
print(pyspark_rocketmq.DefaultSource.name(), pyspark_rocketmq_log.DefaultSource.name())
"""


@pytest.mark.slow
def test_trap_discovery_needs_nothing_that_may_be_missing() -> None:
    # If one of the modules that Spark finds fails to import, Spark skips the sources of everybody.
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (["rocketmq", "rocketmq-log"], "")


def schema_of(some: tuple[columns.Column, ...]) -> StructType:
    return StructType([StructField(each.name, KINDS[each.spark], each.nullable) for each in some])


@pytest.mark.parametrize(
    "some",
    [
        *[columns.all_columns(how) for how in ("map", "string", "none")],
        *[(each,) for each in columns.ALL],
        tuple(reversed(columns.ALL)),
        columns.make_nullable(columns.ALL),
        (columns.ALL[0], *columns.make_nullable(columns.ALL[1:])),
    ],
    ids=lambda some: some[0].name + str(len(some)),
)
def test_trap_batches_have_exactly_the_schema_that_spark_compares(
    some: tuple[columns.Column, ...],
) -> None:
    schema = schema_of(some)
    shape = Shape(schema, RowOptions())
    batch = shape.convert(decode(Chunk(DATA, STARTS), shape.decoded, broker_name="a"))
    assert to_arrow_schema(schema, timezone="UTC").equals(batch.schema)


@pytest.mark.parametrize("nullable", [True, False])
def test_trap_bodies_too(nullable: bool) -> None:
    kind = StructType([nullable_field("n", LongType())])
    schema = StructType(
        [nullable_field("body", kind), StructField("topic", StringType(), nullable)]
    )
    shape = Shape(schema, RowOptions(body_format="json", body_errors="null"))
    batch = shape.convert(decode(Chunk(DATA, STARTS), shape.decoded, broker_name="a"))
    assert to_arrow_schema(schema, timezone="UTC").equals(batch.schema)


@pytest.mark.parametrize("name", ["brokerName", "uniqKey", "KEYS", "tags"])
def test_columns_that_may_be_null_cannot_be_required(name: str) -> None:
    schema = StructType([StructField(name, StringType(), nullable=False)])
    with pytest.raises(ConfigError, match=f"{name} may be null; remove NOT NULL"):
        Shape(schema, RowOptions())


@pytest.mark.parametrize("name", ["body", "corruptBody"])
def test_bodies_by_a_format_may_be_null(name: str) -> None:
    kinds = {"body": StringType(), "corruptBody": BinaryType()}
    schema = StructType([StructField(each, kinds[each], each != name) for each in kinds])
    with pytest.raises(ConfigError, match=f"column {name} may be null"):
        Shape(schema, RowOptions(body_format="string", body_errors="keep"))


def test_options_are_known_whatever_their_capitals() -> None:
    options = CaseInsensitiveDict({"NAMESERVER": "x:1", "topic": "T", "propertiesformat": "none"})
    assert "properties" not in RocketMQSource(options).schema()
    assert "properties" in RocketMQLogSource(CaseInsensitiveDict({"PATH": "/x"})).schema()
