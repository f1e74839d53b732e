"""Rows as a source shows them, from bodies alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from rocketpost.spark.bodies.codec import Codec, nullable_field
from rocketpost.spark.bodies.shape import Shape
from rocketpost.spark.records import columns
from rocketpost.spark.row_options import RowOptions


def read(codec: Codec, kind: DataType, body: bytes) -> Any:
    """Return a body by its schema, through Arrow, as Spark gets it."""
    from pyspark.sql.pandas.types import to_arrow_type

    codec.check(kind)
    array = pa.array([codec.parser(kind)(body)], to_arrow_type(kind, timezone="UTC"))
    return array.to_pylist(maps_as_pydicts="strict")[0]


def show(options: RowOptions, kind: DataType, bodies: list[bytes], *more: str) -> pa.RecordBatch:
    """Return what a query with the columns body and ``more`` sees of some bodies."""
    kinds = {"corruptBody": "binary"} | {each.name: each.spark for each in columns.ALL}
    words = {"binary": "binary", "int": "integer", "bigint": "long", "string": "string"}
    fields = [
        {"name": name, "type": words[kinds[name]], "nullable": True, "metadata": {}}
        for name in more
    ]
    others = StructType.fromJson({"type": "struct", "fields": fields})
    shape = Shape(StructType([nullable_field("body", kind), *others.fields]), options)
    values: dict[str, list[object]] = {
        "topic": ["T"] * len(bodies),
        "queueId": [3] * len(bodies),
        "queueOffset": list(range(len(bodies))),
        "body": list(bodies),
    }
    arrays = [pa.array(values[each.name], each.arrow) for each in shape.decoded]
    decoded = pa.RecordBatch.from_arrays(arrays, names=[each.name for each in shape.decoded])
    return shape.convert(decoded)
