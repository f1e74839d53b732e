"""Columns that become bodies; the source reads what the sink has written."""

from __future__ import annotations

import datetime
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rocketpost.errors import ConfigError, MessageRefused
from rocketpost.spark.bodies.codec import nullable_field
from rocketpost.spark.bodies.sink_bodies import SinkBodies
from rocketpost.spark.bodies.type_checks import arrow_type
from rocketpost.spark.row_options import RowOptions
from rocketpost.spark.sink.options import SinkOptions

from .kinds import LEAVES, SMALL, TEXTS, structs, values
from .rows import show
from .test_protobuf import SET, kind

AVRO: dict[type[DataType], Any] = {
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "long",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
    DateType: {"type": "int", "logicalType": "date"},
    TimestampType: {"type": "long", "logicalType": "timestamp-micros"},
    TimestampNTZType: {"type": "long", "logicalType": "local-timestamp-micros"},
}


class AvroNames:
    """Makes schemas of Avro of types; every record needs a name of its own."""

    def __init__(self) -> None:
        self._count = 0

    def schema(self, of: DataType) -> Any:
        match of:
            case StructType():
                self._count += 1
                name = f"R{self._count}"
                fields = [
                    {"name": each.name, "type": ["null", self.schema(each.dataType)]}
                    for each in of.fields
                ]
                return {"type": "record", "name": name, "fields": fields}
            case ArrayType():
                return {"type": "array", "items": ["null", self.schema(of.elementType)]}
            case MapType():
                return {"type": "map", "values": [self.schema(of.valueType), "null"]}
            case DecimalType():
                digits = {"precision": of.precision, "scale": of.scale}
                return {"type": "bytes", "logicalType": "decimal", **digits}
        return AVRO[type(of)]


def sink(**more: Any) -> SinkOptions:
    return SinkOptions(name_servers="x:1", topic="T", **more)


def packed(options: SinkOptions, of: StructType, rows: list[Any]) -> list[bytes | None]:
    """Return the bodies that a frame with a column body comes to."""
    packing = pickle.loads(
        pickle.dumps(SinkBodies(StructType([nullable_field("body", of)]), options))
    )
    batch = pa.RecordBatch.from_arrays([pa.array(rows, arrow_type(of))], names=["body"])
    # Spark's batches are cut, and so their arrays do not begin at their first slot.
    found = packing.pack(batch.slice(len(rows) // 3), len(rows) // 3)
    whole = packing.pack(batch, 0).column("body").to_pylist()
    assert found.column("body").to_pylist() == whole[len(rows) // 3 :]
    return whole


def check_round_trip(of: StructType, rows: list[Any], **more: Any) -> None:
    bodies = packed(sink(**more), of, rows)
    if more["body_format"] == "json":
        more["body_schema"] = of.json()
    found = show(RowOptions(**more), of, bodies).column(0)
    assert found.equals(pa.array(rows, found.type)), (found, rows)


@pytest.mark.slow
@settings(deadline=None)
@given(st.data())
def test_rows_written_as_json_are_read_back_unchanged(data: st.DataObject) -> None:
    of = data.draw(structs(SMALL + LEAVES))
    check_round_trip(of, data.draw(st.lists(values(of), max_size=3)), body_format="json")


@pytest.mark.slow
@settings(deadline=None)
@given(st.data())
def test_rows_written_as_avro_are_read_back_unchanged(data: st.DataObject) -> None:
    of = data.draw(structs(LEAVES))
    schema = json.dumps(AvroNames().schema(of))
    rows = data.draw(st.lists(values(of), max_size=3))
    check_round_trip(of, rows, body_format="avro", body_schema=schema)


ORDER = st.fixed_dictionaries(
    {
        "id": st.integers(0, 2**64 - 1).map(Decimal),
        "count": st.integers(0, 2**32 - 1),
        "small": st.integers(-(2**31), 2**31 - 1),
        "ratio": st.floats(allow_nan=False),
        "name": TEXTS,
        "raw": st.binary(max_size=5),
        "state": st.sampled_from(["NEW", "PAID", "9"]),
        "at": st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
        "took": st.none() | st.timedeltas(datetime.timedelta(-9999), datetime.timedelta(9999)),
        "score": st.none() | st.integers(-(2**31), 2**31 - 1),
        "item": st.none() | st.fixed_dictionaries({"sku": st.just("é"), "n": st.integers(0, 9)}),
        "more": st.lists(st.fixed_dictionaries({"sku": st.just("s"), "n": st.integers(0, 9)})),
        "tags": st.lists(st.sampled_from(["", "x"])),
        "stock": st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=1).map(
            lambda found: list(found.items())
        ),
        "maybe": st.none() | st.integers(0, 1),
    }
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(ORDER, min_size=1, max_size=4))
def test_rows_written_as_protobuf_are_read_back_unchanged(rows: list[Any]) -> None:
    path = Path("schema")  # never opened
    more = {"body_format": "protobuf", "body_schema_file": str(path), "body_message": "shop.Order"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda _: SET)
        check_round_trip(kind(), rows, **more)


def frame(*fields: tuple[str, DataType]) -> StructType:
    return StructType([nullable_field(*each) for each in fields])


def test_columns_not_used_for_routing_become_the_body() -> None:
    schema = frame(("tags", StringType()), ("customer", StringType()), ("amount", LongType()))
    packing = SinkBodies(schema, sink(body_format="json"))
    assert packing.columns == [("tags", "string"), ("body", "binary")]
    rows = {"tags": ["t", None], "customer": ["a", None], "amount": [7, None]}
    found = packing.pack(pa.RecordBatch.from_pydict(rows), 0)
    assert found.to_pylist() == [
        {"tags": "t", "body": b'{"customer":"a","amount":7}'},
        {"tags": None, "body": b"{}"},
    ]


def test_bytes_and_strings_keep_their_types() -> None:
    schema = frame(("body", StringType()), ("tags", StringType()))
    packing = SinkBodies(schema, sink())
    assert packing.columns == [("body", "string"), ("tags", "string")]
    batch = pa.RecordBatch.from_pydict({"body": ["a"], "tags": ["t"]})
    assert packing.pack(batch, 0) is batch


def test_a_body_that_is_null_stays_null() -> None:
    of = frame(("n", LongType()))
    assert packed(sink(body_format="json"), of, [{"n": 1}, None, {"n": 2}]) == [
        b'{"n":1}',
        None,
        b'{"n":2}',
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (frame(("body", StringType())), "the column body is string; with bodyFormat it must be"),
        (frame(("body", frame(("n", LongType()))), ("m", LongType())), "the column m beside"),
        (frame(("topic", StringType())), "the body needs a column"),
        (
            frame(("a", MapType(LongType(), LongType()))),
            r"a: JSON cannot hold the type map<bigint,bigint>",
        ),
        (frame(("a", LongType()), ("a", LongType())), "there are two columns a"),
        (frame(('a"b', LongType())), "contains a quote, a backslash or a control"),
    ],
)
def test_columns_that_are_no_body_are_named(schema: StructType, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SinkBodies(schema, sink(body_format="json"))


NUMBERS = {
    "type": "record",
    "name": "N",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "note", "type": "string", "default": "none"},
        {"name": "rate", "type": ["null", "float", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "default": 0},
    ],
}


def avro(*fields: tuple[str, DataType]) -> SinkBodies:
    options = sink(body_format="avro", body_schema=json.dumps(NUMBERS))
    return SinkBodies(frame(*fields), options)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("n", LongType())], "the column n is bigint, but its schema requires int; cast it"),
        ([("note", StringType())], "there is no column n, which bodySchema requires"),
        ([("n", IntegerType()), ("m", LongType())], "has no field for the column m; it has n,"),
    ],
)
def test_columns_that_do_not_fit_their_schema_are_named(fields: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        avro(*fields)


def test_columns_that_may_be_missing_have_their_default() -> None:
    batch = pa.RecordBatch.from_pydict({"n": pa.array([7], pa.int32())})
    body = avro(("n", IntegerType())).pack(batch, 0).column("body")[0].as_py()
    assert body == b"\x0e\x08none\x00\x00"


def test_a_double_is_never_written_as_a_float() -> None:
    rows = {"n": pa.array([1, 2], pa.int32()), "rate": pa.array([0.1, None], pa.float64())}
    packing = avro(("n", IntegerType()), ("rate", DoubleType()))
    bodies = packing.pack(pa.RecordBatch.from_pydict(rows), 0).column("body").to_pylist()
    of = frame(("rate", DoubleType()))
    more = {"body_format": "avro", "body_schema": json.dumps(NUMBERS)}
    found = show(RowOptions(**more), of, bodies).column(0).to_pylist()
    assert found == [{"rate": 0.1}, {"rate": None}]


def test_the_row_and_the_value_that_cannot_be_written_are_named() -> None:
    batch = pa.RecordBatch.from_pydict({"n": pa.array([1, None], pa.int32())})
    said = "row 11 of the task cannot be written as avro: n is null, which its schema"
    with pytest.raises(MessageRefused, match=said):
        avro(("n", IntegerType())).pack(batch, 10)
    packing = SinkBodies(frame(("x", DoubleType())), sink(body_format="json"))
    with pytest.raises(MessageRefused, match=r"row 1 of the task .* json: x is infinite or NaN"):
        packing.pack(pa.RecordBatch.from_pydict({"x": [1.0, float("nan"), 2.0]}), 0)
