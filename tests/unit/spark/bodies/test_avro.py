"""Avro bodies, as another library writes them."""

from __future__ import annotations

import contextlib
import io
import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, DoubleType, LongType, StringType, StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.avro import AvroCodec
from rocketpost.spark.bodies.codec import UNREADABLE, nullable_field

from .rows import read

MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "amount", "type": MONEY},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-micros"}},
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "was", "type": ["null", "State"]},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {
                    "type": "record",
                    "name": "Item",
                    "fields": [{"name": "sku", "type": "string"}, {"name": "n", "type": "int"}],
                },
            },
        },
        {"name": "gift", "type": ["null", "Item"]},
        {"name": "labels", "type": {"type": "map", "values": ["null", "int"]}},
        {"name": "rate", "type": ["null", "float", "double"]},
    ],
}
TEXT = json.dumps(ORDER)
WORDS = (
    "struct<`id`: bigint, `note`: string, `amount`: decimal(9,2), `day`: date, `at`: timestamp, "
    "`local`: timestamp_ntz, `ref`: string, `state`: string, `was`: string, `hash`: binary, "
    "`items`: array<struct<`sku`: string, `n`: int>>, `gift`: struct<`sku`: string, `n`: int>, "
    "`labels`: map<string, int>, `rate`: double>"
)
VALUE: dict[str, Any] = {
    "id": 7,
    "note": None,
    "amount": Decimal("12.50"),
    "day": date(2026, 11, 16),
    "at": datetime(2026, 11, 16, 8, 0, 0, 123_000, UTC),
    "local": datetime(2026, 11, 16, 8, 0, 0, 1),
    "ref": str(uuid.UUID(int=5)),
    "state": "PAID",
    "was": "NEW",
    "hash": b"\x00\xff",
    "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": 2}],
    "gift": None,
    "labels": {"x": 1, "y": None},
    "rate": 0.5,
}


def written(schema: Any, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def kind(codec: AvroCodec) -> StructType:
    assert isinstance(codec._kind, StructType)
    return codec._kind


def test_every_kind_of_value() -> None:
    codec = AvroCodec(TEXT)
    assert codec.words() == WORDS
    assert read(codec, kind(codec), written(ORDER, VALUE)) == VALUE


def test_some_fields_can_be_asked_for() -> None:
    codec = AvroCodec(TEXT)
    items = ArrayType(StructType([nullable_field("sku", StringType())]))
    part = StructType([nullable_field("items", items), nullable_field("id", LongType())])
    expected = {"items": [{"sku": "a"}, {"sku": "b"}], "id": 7}
    assert read(codec, part, written(ORDER, VALUE)) == expected


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (nullable_field("idd", LongType()), "body has no field 'idd'; its fields are id, note"),
        (nullable_field("id", StringType()), "body.id is bigint, not string"),
        (nullable_field("items", ArrayType(DoubleType())), "the elements of body.items is struct"),
    ],
)
def test_other_fields_cannot(field: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AvroCodec(TEXT).check(StructType([field]))


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    codec = AvroCodec(TEXT)
    with contextlib.suppress(UNREADABLE):
        read(codec, kind(codec), body)


def test_a_truncated_or_too_long_body_is_refused() -> None:
    codec = AvroCodec(TEXT)
    body = written(ORDER, VALUE)
    for wrong in (b"", body[:-1], body + b"\0"):
        with pytest.raises(UNREADABLE):
            read(codec, kind(codec), wrong)


def record(of: object) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "f", "type": of}]})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("", "needs bodySchema"),
        ("{", "is not JSON"),
        ('"int"', "must be an Avro record"),
        ('{"type": "recort"}', "is not an Avro schema"),
        (record("Nothing"), "is not an Avro schema"),
        (record(["null", "R"]), "body.f contains itself"),
        (record(["string", "int"]), "body.f is a union of 2 types"),
        (record("null"), "body.f is null, which has no equivalent type in Spark"),
        (record({"type": "array", "items": "null"}), "the items of body.f is null"),
        (record({"type": "record", "name": "E", "fields": []}), "a record without fields"),
        (
            record({"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}),
            "has 40 digits",
        ),
    ],
)
def test_schemas_that_are_not_understood(schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        AvroCodec(schema)
