"""JSON bodies by the types of a Spark schema."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.codec import UNREADABLE, nullable_field
from rocketpost.spark.bodies.json import JsonCodec

from .rows import read


def one(kind: DataType) -> StructType:
    return StructType([nullable_field("a", kind)])


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BooleanType(), "true", True),
        (ByteType(), "-128", -128),
        (LongType(), "9223372036854775807", 2**63 - 1),
        (DoubleType(), "3", 3.0),
        (DecimalType(10, 2), "1.25", Decimal("1.25")),
        (DecimalType(10, 2), '"1.2"', Decimal("1.20")),
        (StringType(), '"é\\n"', "é\n"),
        (BinaryType(), '"aGk="', b"hi"),
        (DateType(), '"2026-11-16"', date(2026, 11, 16)),
        (
            TimestampType(),
            '"2026-11-16T08:00:00.5+01:00"',
            datetime(2026, 11, 16, 7, 0, 0, 500_000, UTC),
        ),
        (TimestampType(), '"2026-11-16T08:00:00"', datetime(2026, 11, 16, 8, tzinfo=UTC)),
        (TimestampNTZType(), '"2026-11-16T08:00:00"', datetime(2026, 11, 16, 8)),
        (ArrayType(IntegerType()), "[1, null]", [1, None]),
        (MapType(StringType(), ArrayType(LongType())), '{"x": [1]}', {"x": [1]}),
        (one(one(StringType())), '{"a": {"a": "deep", "b": 1}}', {"a": {"a": "deep"}}),
        (StringType(), "null", None),
    ],
)
def test_values_by_their_types(kind: DataType, text: str, value: object) -> None:
    assert read(JsonCodec(""), one(kind), b'{"b": [1], "a": %s}' % text.encode()) == {"a": value}


def test_missing_fields_of_a_body_are_null() -> None:
    assert read(JsonCodec(""), one(StringType()), b"{}") == {"a": None}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (StringType(), b""),
        (StringType(), b"null"),
        (StringType(), b"[]"),
        (StringType(), b'{"a": "x"'),
        (StringType(), b'{"a": "\xff"}'),
        (StringType(), b'{"b": ' + b"[" * 100_000),
        (StringType(), b'{"a": 7}'),
        (LongType(), b'{"a": "7"}'),
        (LongType(), b'{"a": 9223372036854775808}'),
        (ByteType(), b'{"a": 128}'),
        (DecimalType(4, 2), b'{"a": 1.234}'),
        (DecimalType(4, 2), b'{"a": 123.4}'),
        (TimestampNTZType(), b'{"a": "2026-11-16T08:00:00Z"}'),
        (ArrayType(one(LongType())), b'{"a": [{"a": {}}]}'),
    ],
)
def test_values_that_do_not_match_the_schema_are_an_error(kind: DataType, body: bytes) -> None:
    with pytest.raises(UNREADABLE):
        read(JsonCodec(""), one(kind), body)


@given(st.dictionaries(st.sampled_from("abc"), st.integers(-(2**63), 2**63 - 1)))
def test_any_numbers_are_read(values: dict[str, int]) -> None:
    kind = StructType([nullable_field(name, LongType()) for name in "abc"])
    expected = dict.fromkeys("abc") | values
    assert read(JsonCodec(""), kind, json.dumps(values).encode()) == expected


def test_the_schema_as_spark_ddl() -> None:
    assert JsonCodec("a int, b string").words() == "struct<`a`: int, `b`: string>"
    assert JsonCodec(" struct<a: int> ").words() == "struct<`a`: int>"
    strict = StructType([StructField("a", StringType(), nullable=False)])  # of a frame, perhaps
    assert JsonCodec(strict.json()).words() == "struct<`a`: string>"
    kind = StructType([nullable_field("a`b", ArrayType(one(DecimalType(9, 3))))])
    assert JsonCodec(kind.json()).words() == "struct<`a``b`: array<struct<`a`: decimal(9,3)>>>"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (StringType(), "a JSON body must be a struct, not string"),
        (one(DayTimeIntervalType()), "body.a: JSON cannot hold the type interval day to second"),
        (one(MapType(IntegerType(), StringType())), r"JSON cannot hold the type map<int,string>"),
        (StructType([StructField("a", StringType(), nullable=False)]), "remove NOT NULL"),
        (one(ArrayType(StringType(), containsNull=False)), "the elements of body.a may be null"),
    ],
)
def test_types_that_json_does_not_have(kind: DataType, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        JsonCodec("").check(kind)


def test_a_schema_is_needed_and_must_be_one() -> None:
    for text, said in (
        ("a wat", "at character 3: wat is not a type"),
        ("a int NOT NULL", "remove NOT NULL"),
        ("a map<int,string>", "JSON cannot hold the type map<int,string>"),
    ):
        with pytest.raises(ConfigError, match=said):
            JsonCodec(text)
    with pytest.raises(ConfigError, match="needs bodySchema"):
        JsonCodec("").words()
    with pytest.raises(ConfigError, match="not a Spark schema"):
        JsonCodec("{}")
