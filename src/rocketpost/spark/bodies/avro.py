"""Bodies in Avro's binary encoding: one datum of a known schema, without a file header or an id.

Types are those of Spark's own Avro functions: enums are strings, fixed is binary. ``decimal``,
``date``, ``timestamp-*`` and ``local-timestamp-*`` are supported; other logical types have the type
beneath them. A union is a nullable type, or the wider of two numbers. To write bodies, there must
be a column for every field that has no default and is not nullable.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
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

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies import listers
from rocketpost.spark.bodies.codec import Encoder, Parser, TypedCodec, nullable_field
from rocketpost.spark.bodies.listers import Lister
from rocketpost.spark.bodies.type_checks import arrow_type, check_fits, check_names, column_path

_PLAIN: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "bytes": BinaryType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: Final[dict[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
    "local-timestamp-millis": TimestampNTZType(),
    "local-timestamp-micros": TimestampNTZType(),
}
_WIDER: Final = ({"int", "long"}, {"float", "double"})
_PRECISION_MAX: Final = 38


class AvroCodec(TypedCodec):
    """The codec of Avro bodies, by the writer's schema."""

    name = "avro"

    def __init__(self, schema: str) -> None:
        if not schema.strip():
            raise ConfigError(
                "bodyFormat=avro needs bodySchema, the writer's schema as JSON, or bodySchemaFile"
            )
        self.schema = schema
        self._kind = _AvroTypes().of(_parse_schema(schema), "body")
        if not isinstance(self._kind, StructType):
            raise ConfigError("bodySchema must be an Avro record")

    def parser(self, wanted: DataType) -> Parser:
        """Return a function that parses one body."""
        fastavro = _import_fastavro()
        schema = _parse_schema(self.schema)

        def parse(body: bytes) -> object:
            stream = io.BytesIO(body)
            value = fastavro.schemaless_reader(stream, schema)
            if stream.tell() != len(body):
                raise ValueError(f"{len(body) - stream.tell()} bytes follow the end of the record")
            return value

        return parse

    def encoder(self, given: StructType, where: str) -> Encoder:
        """Return a function that encodes bodies.

        Raises:
            ConfigError: A column is missing, unknown or of another type.
        """
        write = _import_fastavro().schemaless_writer
        schema = _parse_schema(self.schema)
        lister = _AvroWriter(schema).record(schema, given, where)

        def encode(structs: pa.StructArray) -> list[bytes]:
            bodies, out = [], io.BytesIO()
            for value in lister(structs):
                out.seek(0)
                write(out, schema, value)
                out.truncate()
                bodies.append(out.getvalue())
            return bodies

        return encode


class _AvroTypes:
    """The Spark types of one Avro schema, whose named types may be used repeatedly."""

    def __init__(self) -> None:
        self._named: dict[str, DataType] = {}
        self._open: set[str] = set()

    def of(self, schema: Any, where: str) -> DataType:
        """Return the type of a schema; ``where`` names it in errors."""
        if isinstance(schema, list):
            return self._union(schema, where)
        if isinstance(schema, str):
            if schema in self._open:
                raise ConfigError(f"{where} contains itself, and Spark has no recursive types")
            found = _PLAIN.get(schema) or self._named.get(schema)
            if found is None:
                raise ConfigError(f"{where} is {schema}, which has no equivalent type in Spark")
            return found
        kind = schema["type"]
        if kind == "record":
            return self._record(schema, where)
        if kind == "array":
            return ArrayType(self.of(schema["items"], f"the items of {where}"))
        if kind == "map":
            return MapType(StringType(), self.of(schema["values"], f"the values of {where}"))
        found = self._logical(schema, where) or self.of(kind, where)
        if "name" in schema:
            self._named[schema["name"]] = found
        return found

    def _logical(self, schema: dict[str, Any], where: str) -> DataType | None:
        name = schema.get("logicalType", "")
        if name != "decimal":
            return _LOGICAL.get(name)
        precision = schema["precision"]
        if precision > _PRECISION_MAX:
            raise ConfigError(
                f"{where} has {precision} digits; Spark's decimals have at most {_PRECISION_MAX}"
            )
        return DecimalType(precision, schema.get("scale", 0))

    def _record(self, schema: dict[str, Any], where: str) -> DataType:
        name = schema["name"]
        if not schema["fields"]:
            raise ConfigError(f"{where} is a record without fields")
        self._open.add(name)
        kind = StructType(
            [
                nullable_field(each["name"], self.of(each["type"], f"{where}.{each['name']}"))
                for each in schema["fields"]
            ]
        )
        self._open.discard(name)
        self._named[name] = kind
        return kind

    def _union(self, schemas: list[Any], where: str) -> DataType:
        rest = [each for each in schemas if each != "null"]
        if len(rest) == 1:
            return self.of(rest[0], where)
        for names in _WIDER:
            if rest and all(isinstance(each, str) and each in names for each in rest):
                return _PLAIN[max(names, key=("int", "long", "float", "double").index)]
        raise ConfigError(
            f"{where} is a union of {len(rest)} types; only a union of null and one other "
            "type is supported"
        )


class _AvroWriter:
    """Makes listers for one Avro schema, whose named types may be used repeatedly."""

    def __init__(self, schema: Any) -> None:
        self._named = dict(_find_named(schema))

    def of(self, schema: Any, given: DataType, where: str) -> Lister:
        """Return the lister of a column for a schema."""
        if not isinstance(schema, list):
            return listers.refuse_nulls(self._one(schema, given, where), where)
        rest = [each for each in schema if each != "null"]
        is_one = len(rest) == 1
        lister = self._one(rest[0], given, where) if is_one else _list_wider(rest, given, where)
        return lister if "null" in schema else listers.refuse_nulls(lister, where)

    def record(self, schema: Any, given: StructType, where: str) -> Lister:
        """Return the lister of structs as dictionaries."""
        check_names(given, where)
        fields = {each["name"]: each for each in schema["fields"]}
        for name in given.names:
            if name not in fields:
                raise ConfigError(
                    f"bodySchema has no field for the column {column_path(where, name)}; "
                    f"it has {', '.join(fields)}"
                )
        for name in fields.keys() - set(given.names):
            if "default" not in fields[name] and not _may_be_null(fields[name]["type"]):
                raise ConfigError(
                    f"there is no column {column_path(where, name)}, which bodySchema requires"
                )
        parts = [
            self.of(fields[each.name]["type"], each.dataType, column_path(where, each.name))
            for each in given.fields
        ]
        return listers.list_structs(partial(_make_dictionaries, given.names), parts)

    def _one(self, schema: Any, given: DataType, where: str) -> Lister:
        if isinstance(schema, str):
            schema = self._named.get(schema) or {"type": schema}
        match schema["type"], given:
            case "record", StructType():
                return self.record(schema, given, where)
            case "array", ArrayType():
                return listers.list_arrays(self.of(schema["items"], given.elementType, where))
            case "map", MapType(keyType=StringType()):
                values = self.of(schema["values"], given.valueType, where)
                return listers.list_maps(listers.list_values, values)
        wanted = _AvroTypes().of(schema, where)
        check_fits(given, wanted, where)
        return listers.cast_and_list(arrow_type(wanted), where, _leaf(schema))


def _find_named(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named schemas inside a schema."""
    if isinstance(schema, list):
        for each in schema:
            yield from _find_named(each)
    elif isinstance(schema, dict):
        if "name" in schema and "type" in schema:
            yield schema["name"], schema
        for key in ("type", "items", "values"):
            yield from _find_named(schema.get(key))
        for each in schema.get("fields", ()):
            yield from _find_named(each["type"])


def _list_wider(schemas: list[Any], given: DataType, where: str) -> Lister:
    """Return the lister of numbers of two widths, tagged so that none becomes a float."""
    wanted = _AvroTypes().of(schemas, where)
    check_fits(given, wanted, where)
    lister = listers.cast_and_list(arrow_type(wanted), where)
    if not isinstance(wanted, DoubleType):
        return lister
    return listers.skip_nulls(lambda array: [("double", value) for value in lister(array)])


def _leaf(schema: Any) -> Lister:
    name = schema.get("logicalType", "")
    if name not in _LOGICAL:
        return listers.list_values
    divisor = 1000 if name.endswith("-millis") else 1
    return listers.skip_nulls(
        lambda array: (listers.list_stored_numbers(array) // divisor).tolist()
    )


def _may_be_null(schema: Any) -> bool:
    return isinstance(schema, list) and "null" in schema


def _make_dictionaries(names: list[str], *columns: list[Any]) -> list[dict[str, Any]]:
    rows = zip(*columns, strict=True)
    return [dict(zip(names, values, strict=True)) for values in rows]


def _parse_schema(schema: str) -> Any:
    fastavro = _import_fastavro()
    try:
        value = json.loads(schema)
    except ValueError as error:
        raise ConfigError(f"bodySchema is not JSON: {error}") from None
    try:
        return fastavro.parse_schema(_drop_unknown_logical_types(value))
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"bodySchema is not an Avro schema: {error!r}") from None


def _drop_unknown_logical_types(schema: Any) -> Any:
    """Return a schema without logical types that have no type in Spark."""
    if isinstance(schema, list):
        return [_drop_unknown_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    logical = schema.get("logicalType")
    return {
        name: _drop_unknown_logical_types(value)
        for name, value in schema.items()
        if name != "logicalType" or logical == "decimal" or logical in _LOGICAL
    }


def _import_fastavro() -> Any:
    try:
        import fastavro.schema
    except ImportError:
        raise ConfigError(
            "bodyFormat=avro needs fastavro: pip install 'rocketpost[avro]'"
        ) from None
    return fastavro
