"""Bodies that are JSON objects, read and written by the types of a Spark schema.

A value of another type than the schema's is an error, not a guess: ``"7"`` is no number. Whole
numbers pass for doubles, times are RFC 3339 (UTC if they say no zone), binary is base64. Fields
that the schema does not name are skipped; those that the body lacks are null. Fields that are null
are not written.
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
from rocketpost.spark.bodies import listing
from rocketpost.spark.bodies.codec import Encoder, Parser, StructCodec, check_nullable, words_of
from rocketpost.spark.bodies.ddl import fields_of
from rocketpost.spark.bodies.fitting import check_names, inside
from rocketpost.spark.bodies.listing import Lister
from rocketpost.spark.records.fields import TIME_MAX_MS, TIME_MIN_MS


def _int_of(bits: int) -> object:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return Annotated[int, msgspec.Meta(ge=low, le=high)]


_PLAIN: Final[dict[type[DataType], object]] = {
    BooleanType: bool,
    ByteType: _int_of(8),
    ShortType: _int_of(16),
    IntegerType: _int_of(32),
    LongType: _int_of(64),
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
    """JSON by a schema in Spark's words, or as Spark's own JSON, or by the schema of a query."""

    name = "json"

    def __init__(self, schema: str) -> None:
        self.schema = ""
        if schema.strip():
            kind = _kind_of(schema.strip())
            _annotation(kind, "body")  # refuses what JSON does not have
            self.schema = words_of(kind)

    def words(self) -> str:
        """Return the type of a body in Spark's words.

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
        """Take any struct that JSON can fill.

        Raises:
            ConfigError: A type has no form in JSON.
        """
        if not isinstance(wanted, StructType):
            raise ConfigError(f"a body of JSON is a struct, not {wanted.simpleString()}")
        check_nullable(wanted)
        _annotation(wanted, "body")

    def parser(self, wanted: DataType) -> Parser:
        """Return what reads one body."""
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_annotation(wanted, "body"))
        return decoder.decode

    def encoder(self, given: StructType, where: str) -> Encoder:
        """Return what writes bodies.

        Raises:
            ConfigError: A type has no form in JSON.
        """
        _annotation(given, where)
        listed = _lister(given, where)
        encode = msgspec.json.Encoder(decimal_format="number").encode
        return lambda structs: list(map(encode, listed(structs)))


def _kind_of(schema: str) -> StructType:
    if not schema.startswith("{"):
        kind = fields_of(schema)
        check_nullable(kind)
        return kind
    try:
        return StructType.fromJson(json.loads(schema))
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"bodySchema is no schema of Spark as JSON: {error}") from None


def _annotation(kind: DataType, where: str) -> Any:
    """Return the Python type by which JSON of a Spark type is read."""
    match kind:
        case StructType():
            fields = {
                field.name: _annotation(field.dataType, inside(where, field.name)) | None
                for field in kind.fields
            }
            return TypedDict(where, fields, total=False)  # type: ignore[operator]
        case ArrayType():
            return list[_annotation(kind.elementType, where) | None]  # type: ignore[misc]
        case MapType(keyType=StringType()):
            return dict[str, _annotation(kind.valueType, where) | None]  # type: ignore[misc]
    found = _PLAIN.get(type(kind))
    if found is None:
        raise ConfigError(f"{where}: JSON has no {kind.simpleString()}")
    return found


# Writing.


def _lister(kind: DataType, where: str) -> Lister:
    match kind:
        case StructType():
            check_names(kind, where)
            _check_writable(kind, where)
            parts = [_lister(each.dataType, inside(where, each.name)) for each in kind.fields]
            return listing.structs(partial(map, _struct(kind)), parts)
        case ArrayType():
            return listing.arrays(_lister(kind.elementType, where))
        case MapType():
            return listing.maps(listing.as_is, _lister(kind.valueType, where))
        case FloatType() | DoubleType():
            return _finite(where)
        case DateType():
            return listing.dense(_times(where, "D", ""))
        case TimestampType():
            return listing.dense(_times(where, "us", "Z"))
        case TimestampNTZType():
            return listing.dense(_times(where, "us", ""))
    return listing.as_is


def _struct(kind: StructType) -> type[msgspec.Struct]:
    """Return a class whose objects become JSON without the fields that are null."""
    names = {f"f{at}": name for at, name in enumerate(kind.names)}
    fields = [(name, Any, None) for name in names]
    return msgspec.defstruct("Body", fields, omit_defaults=True, rename=names, gc=False)


def _check_writable(kind: StructType, where: str) -> None:
    for name in kind.names:
        if json.dumps(name, ensure_ascii=False) != f'"{name}"':
            raise ConfigError(
                f"the name of the column {inside(where, name)!r} has a quote, a backslash or a "
                "control character in it, which is not written as JSON; rename it"
            )


def _finite(where: str) -> Lister:
    def listed(array: pa.Array) -> list[Any]:
        if pc.all(pc.is_finite(array)).as_py() is False:
            raise ValueError(f"{where} is infinite or no number, which JSON cannot say")
        return listing.as_is(array)

    return listed


def _times(where: str, unit: str, zone: str) -> Lister:
    low, end = (np.datetime64(each, "ms").astype(f"M8[{unit}]") for each in _YEARS_MS)

    def listed(array: pa.Array) -> list[Any]:
        times = listing.whole_numbers(array).view(f"M8[{unit}]")
        if len(times) and not (low <= times.min() and times.max() < end):
            raise ValueError(f"{where} lies outside the years 1 to 9999")
        return [text + zone for text in np.datetime_as_string(times).tolist()]

    return listed
