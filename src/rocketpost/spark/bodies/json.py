"""Bodies that are JSON objects, read and written by the types of a Spark schema.

A value of another type than in the schema is an error, not a guess: ``"7"`` is not a number. Whole
numbers are accepted as doubles, times are RFC 3339 (UTC without a zone), binary is base64. Fields
that are not in the schema are skipped; fields that the body lacks are null. Null fields are not
written.
"""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Final, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies import listers
from rocketpost.spark.bodies.codec import Encoder, Parser, StructCodec, check_nullable, type_text
from rocketpost.spark.bodies.ddl import parse_fields
from rocketpost.spark.bodies.listers import Lister
from rocketpost.spark.bodies.type_checks import check_names, column_path
from rocketpost.spark.records.fields import TIME_MAX_MS, TIME_MIN_MS


def _int_type(bits: int) -> object:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return Annotated[int, msgspec.Meta(ge=low, le=high)]


_PLAIN: Final[dict[type[DataType], object]] = {
    BooleanType: bool,
    ByteType: _int_type(8),
    ShortType: _int_type(16),
    IntegerType: _int_type(32),
    LongType: _int_type(64),
    FloatType: float,
    DoubleType: float,
    DecimalType: Decimal,
    StringType: str,
    BinaryType: bytes,
    DateType: datetime.date,
    TimestampType: datetime.datetime,
    TimestampNTZType: Annotated[datetime.datetime, msgspec.Meta(tz=False)],
}
_YEARS_MS: Final = (TIME_MIN_MS, TIME_MAX_MS + 1)


class JsonCodec(StructCodec):
    """The codec of JSON bodies, by a schema in DDL or in Spark's JSON, or by that of a query."""

    name = "json"

    def __init__(self, schema: str) -> None:
        self.schema = ""
        if schema.strip():
            kind = _parse_schema(schema.strip())
            _annotation(kind, "body")  # refuses types that JSON does not have
            self.schema = type_text(kind)

    def words(self) -> str:
        """Return the type of a body as text for Spark.

        Raises:
            ConfigError: There is no schema.
        """
        if not self.schema:
            raise ConfigError(
                "bodyFormat=json needs bodySchema, such as 'customer string, amount double', "
                "or a schema of your own in which body is a struct"
            )
        return self.schema

    def check(self, wanted: DataType) -> None:
        """Accept any struct that JSON can represent.

        Raises:
            ConfigError: A type has no form in JSON.
        """
        if not isinstance(wanted, StructType):
            raise ConfigError(f"a JSON body must be a struct, not {wanted.simpleString()}")
        check_nullable(wanted)
        _annotation(wanted, "body")

    def parser(self, wanted: DataType) -> Parser:
        """Return a function that parses one body."""
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_annotation(wanted, "body"))
        return decoder.decode

    def encoder(self, given: StructType, where: str) -> Encoder:
        """Return a function that encodes bodies.

        Raises:
            ConfigError: A type has no form in JSON.
        """
        _annotation(given, where)
        lister = _make_lister(given, where)
        encode = msgspec.json.Encoder(decimal_format="number").encode
        return lambda structs: list(map(encode, lister(structs)))


def _parse_schema(schema: str) -> StructType:
    if not schema.startswith("{"):
        kind = parse_fields(schema)
        check_nullable(kind)
        return kind
    try:
        return StructType.fromJson(json.loads(schema))
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"bodySchema is not a Spark schema in JSON: {error}") from None


def _annotation(kind: DataType, where: str) -> Any:
    """Return the Python type for parsing JSON of a Spark type."""
    match kind:
        case StructType():
            fields = {
                field.name: _annotation(field.dataType, column_path(where, field.name)) | None
                for field in kind.fields
            }
            return TypedDict(where, fields, total=False)  # type: ignore[operator]
        case ArrayType():
            return list[_annotation(kind.elementType, where) | None]  # type: ignore[misc]
        case MapType(keyType=StringType()):
            return dict[str, _annotation(kind.valueType, where) | None]  # type: ignore[misc]
    found = _PLAIN.get(type(kind))
    if found is None:
        raise ConfigError(f"{where}: JSON cannot hold the type {kind.simpleString()}")
    return found


# Writing.


def _make_lister(kind: DataType, where: str) -> Lister:
    match kind:
        case StructType():
            check_names(kind, where)
            _check_writable(kind, where)
            parts = [
                _make_lister(each.dataType, column_path(where, each.name)) for each in kind.fields
            ]
            return listers.list_structs(partial(map, _make_struct(kind)), parts)
        case ArrayType():
            return listers.list_arrays(_make_lister(kind.elementType, where))
        case MapType():
            return listers.list_maps(listers.list_values, _make_lister(kind.valueType, where))
        case FloatType() | DoubleType():
            return _list_finite(where)
        case DateType():
            return listers.skip_nulls(_list_times(where, "D", ""))
        case TimestampType():
            return listers.skip_nulls(_list_times(where, "us", "Z"))
        case TimestampNTZType():
            return listers.skip_nulls(_list_times(where, "us", ""))
    return listers.list_values


def _make_struct(kind: StructType) -> type[msgspec.Struct]:
    """Return a class whose objects are encoded as JSON without null fields."""
    names = {f"f{at}": name for at, name in enumerate(kind.names)}
    fields = [(name, Any, None) for name in names]
    return msgspec.defstruct("Body", fields, omit_defaults=True, rename=names, gc=False)


def _check_writable(kind: StructType, where: str) -> None:
    for name in kind.names:
        if json.dumps(name, ensure_ascii=False) != f'"{name}"':
            raise ConfigError(
                f"the name of the column {column_path(where, name)!r} contains a quote, a "
                "backslash or a control character, which cannot be written as JSON; "
                "rename it"
            )


def _list_finite(where: str) -> Lister:
    def list_slots(array: pa.Array) -> list[Any]:
        if pc.all(pc.is_finite(array)).as_py() is False:
            raise ValueError(f"{where} is infinite or NaN, which JSON cannot represent")
        return listers.list_values(array)

    return list_slots


def _list_times(where: str, unit: str, zone: str) -> Lister:
    low, end = (np.datetime64(each, "ms").astype(f"M8[{unit}]") for each in _YEARS_MS)

    def list_slots(array: pa.Array) -> list[Any]:
        times = listers.list_stored_numbers(array).view(f"M8[{unit}]")
        if len(times) and not (low <= times.min() and times.max() < end):
            raise ValueError(f"{where} is outside the years 1 to 9999")
        return [text + zone for text in np.datetime_as_string(times).tolist()]

    return list_slots
