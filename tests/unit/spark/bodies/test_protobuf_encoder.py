"""Values that Protobuf cannot hold are refused before they are lost."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.codec import nullable_field
from rocketpost.spark.bodies.protobuf import ProtobufCodec
from rocketpost.spark.bodies.type_checks import arrow_type

from .test_protobuf import codec, field


def frame(*fields: tuple[str, DataType]) -> StructType:
    return StructType([nullable_field(*each) for each in fields])


def encode(of: StructType, *rows: Any, by: ProtobufCodec | None = None) -> list[bytes]:
    return (by or codec()).encoder(of, "")(pa.array(rows, arrow_type(of)))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("nam", StringType())], "shop.Order has no field for the column nam; it has id, count"),
        ([("small", LongType())], "the column small is bigint, but its schema requires int"),
        ([("at", StringType())], "the column at is string, but its schema requires timestamp"),
        (
            [("tags", StringType())],
            "the column tags is string, but its schema requires array<string>",
        ),
        ([("item", StringType())], "the column item is string, but its schema requires struct<"),
        ([("item", frame(("x", StringType())))], "shop.Item has no field for the column item.x"),
        ([("name", ArrayType(StringType()))], "the column name is array<string>, but its"),
        ([("stock", ArrayType(StringType()))], "the column stock is array<string>, but its"),
    ],
)
def test_columns_that_do_not_fit_are_named(fields: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        codec().encoder(frame(*fields), "")


@pytest.mark.parametrize(
    ("fields", "row", "said"),
    [
        ([("count", LongType())], {"count": 2**32}, "count: Integer value 4294967296 not in"),
        ([("id", LongType())], {"id": -1}, "id: Integer value -1 not in range"),
        ([("state", StringType())], {"state": "GONE"}, "state is 'GONE', which shop.State does"),
        ([("tags", ArrayType(StringType()))], {"tags": [None]}, "tags is null"),
        (
            [("stock", MapType(StringType(), IntegerType()))],
            {"stock": [("a", None)]},
            "stock is null",
        ),
    ],
)
def test_values_that_cannot_be_written_are_named(fields: Any, row: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        encode(frame(*fields), row)


def test_a_time_outside_of_protobufs_years_is_refused() -> None:
    of = frame(("at", TimestampType()))
    late = pa.array([{"at": 2**60}], pa.struct([("at", pa.int64())])).cast(arrow_type(of))
    with pytest.raises(ValueError, match="at is outside the years 1 to 9999"):
        codec().encoder(of, "")(late)
    first = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)
    assert encode(of, {"at": first}, {"at": None})[1] == b""


def chosen(syntax: str) -> ProtobufCodec:
    """Return a message with a choice between a and b, and in proto 2 one that must be set."""
    message = DescriptorProto(name="M")
    message.field.extend([field("a", 1, "INT32"), field("b", 2, "INT32"), field("c", 3, "INT32")])
    message.oneof_decl.add(name="either")
    for each in message.field[:2]:
        each.oneof_index = 0
    if syntax == "proto2":
        message.field[2].label = 2
    file = FileDescriptorProto(name="m.proto", syntax=syntax, message_type=[message])
    return ProtobufCodec(FileDescriptorSet(file=[file]).SerializeToString(), "M")


def test_only_one_of_a_choice_can_be_set() -> None:
    of = frame(("a", IntegerType()), ("b", IntegerType()))
    by = chosen("proto3")
    assert encode(of, {"a": 1}, {"b": 2}, by=by) == [b"\x08\x01", b"\x10\x02"]
    with pytest.raises(ValueError, match="a and b are set, but only one of them can be"):
        encode(of, {"a": 1, "b": 2}, by=by)


def test_required_fields_need_a_column_and_a_value() -> None:
    by = chosen("proto2")
    with pytest.raises(ConfigError, match="there is no column c, which M needs"):
        by.encoder(frame(("a", IntegerType())), "")
    with pytest.raises(ValueError, match="c is null"):
        encode(frame(("c", IntegerType())), {"c": None}, by=by)
