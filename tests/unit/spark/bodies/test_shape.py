"""Bodies as a query sees them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from rocketpost.errors import ClientError, ConfigError
from rocketpost.spark.bodies.codec import nullable_field
from rocketpost.spark.bodies.shape import Shape, ddl
from rocketpost.spark.row_options import RowOptions

from .rows import show

KIND = StructType([nullable_field("n", LongType())])
GOOD, BAD = b'{"n": 1}', b"\xff"


def options(**more: Any) -> RowOptions:
    made = RowOptions(**({"body_format": "json"} | more))
    made.check_rows()
    return made


def test_bodies_are_structs_beside_the_other_columns() -> None:
    found = show(options(), KIND, [GOOD, b"{}"], "queueOffset")
    assert found.schema.names == ["body", "queueOffset"]
    assert found.to_pylist() == [
        {"body": {"n": 1}, "queueOffset": 0},
        {"body": {"n": None}, "queueOffset": 1},
    ]


def test_a_body_that_does_not_match_its_schema_is_named() -> None:
    with pytest.raises(
        ClientError, match="offset 1 of queue 3 of T does not match its schema"
    ) as told:
        show(options(), KIND, [GOOD, BAD])
    assert "bodyErrors=null" in str(told.value)


def test_a_body_can_be_null_with_its_bytes_kept() -> None:
    bodies = [GOOD, BAD, GOOD]
    found = show(options(body_errors="null"), KIND, bodies)
    assert found.column(0).to_pylist() == [{"n": 1}, None, {"n": 1}]
    found = show(options(body_errors="keep"), KIND, bodies, "corruptBody")
    assert found.column(1).to_pylist() == [None, BAD, None]
    assert show(options(body_errors="keep"), KIND, [GOOD], "corruptBody").column(1).null_count == 1


def test_text_is_checked_too() -> None:
    text = options(body_format="string", body_errors="null")
    found = show(text, StringType(), ["é".encode(), BAD])
    assert found.column(0).to_pylist() == ["é", None]
    with pytest.raises(ConfigError, match="body is string, not bigint"):
        show(text, LongType(), [])


def test_without_a_format_nothing_changes() -> None:
    found = show(RowOptions(), BinaryType(), [BAD])
    assert found.to_pylist() == [{"body": BAD}]
    with pytest.raises(ConfigError, match="body is binary, not bigint"):
        show(RowOptions(), LongType(), [])


def test_no_body_is_decoded_that_nobody_asked_for() -> None:
    shape = Shape(StructType([nullable_field("topic", StringType())]), options())
    assert [each.name for each in shape.decoded] == ["topic"]


def test_corruptBody_needs_the_column_body() -> None:
    schema = StructType([nullable_field("corruptBody", BinaryType())])
    with pytest.raises(ConfigError, match="select both"):
        Shape(schema, options(body_errors="keep"))


def test_a_shape_travels_to_tasks() -> None:
    schema = StructType([nullable_field("BODY", KIND), nullable_field("TOPIC", StringType())])
    shape = pickle.loads(pickle.dumps(Shape(schema, options())))
    arrays = [pa.array(values) for values in (["T"], [0], [0], [GOOD])]
    names = ["TOPIC", "queueId", "queueOffset", "body"]
    found = shape.convert(pa.RecordBatch.from_arrays(arrays, names=names))
    assert found.to_pylist() == [{"BODY": {"n": 1}, "TOPIC": "T"}]


def test_the_whole_schema(tmp_path: Path) -> None:
    file = tmp_path / "order.ddl"
    file.write_text("n bigint")
    words = ddl(options(body_schema_file=str(file), body_errors="keep"))
    assert words.endswith(
        "body struct<`n`: bigint>, properties map<string,string> NOT NULL, corruptBody binary"
    )
    assert ddl(RowOptions(properties_format="none")).endswith(", body binary NOT NULL")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"body_format": "xml"}, "bodyFormat='xml' must be one of"),
        ({"body_errors": "skip"}, "bodyErrors='skip' must be one of fail, null, keep"),
        ({"body_schema": "n int", "body_schema_file": "x"}, "only one of"),
        ({"body_format": "string", "body_schema": "n int"}, "does not take a schema"),
        ({"body_format": "protobuf", "body_schema": "x"}, "takes its schema from bodySchemaFile"),
        ({"body_message": "M"}, "bodyMessage is for"),
        ({"body_format": "bytes", "body_errors": "null"}, "plain bytes are always valid"),
        ({"read_decoded": False}, "needs readDecoded=true"),
        ({"filter_pushdown": "true"}, "With filterPushdown=once"),
        ({"filter_pushdown": "yes"}, "one of false, once"),
    ],
)
def test_invalid_options(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        options(**more)


def test_a_schema_file_must_exist_and_be_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bodySchemaFile cannot be read"):
        ddl(options(body_schema_file=str(tmp_path / "none")))
    file = tmp_path / "binary"
    file.write_bytes(BAD)
    with pytest.raises(ConfigError, match="is not a text file"):
        ddl(options(body_schema_file=str(file)))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketpost\[avro\]'"):
        ddl(options(body_format="avro", body_schema='"int"'))
    monkeypatch.setitem(__import__("sys").modules, "google.protobuf", None)
    monkeypatch.setitem(__import__("sys").modules, "google.protobuf.descriptor_pb2", None)
    with pytest.raises(ConfigError, match=r"pip install 'rocketpost\[protobuf\]'"):
        ddl(options(body_format="protobuf", body_schema_file=__file__, body_message="M"))
