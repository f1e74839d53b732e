"""Spark types of the fields of Protobuf messages."""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.codec import nullable_field

_INT, _LONG, _UNSIGNED = IntegerType(), LongType(), DecimalType(20, 0)
_KINDS: Final[dict[str, DataType]] = {
    "BOOL": BooleanType(),
    "BYTES": BinaryType(),
    "DOUBLE": DoubleType(),
    "ENUM": StringType(),
    "FIXED32": _LONG,
    "FIXED64": _UNSIGNED,
    "FLOAT": FloatType(),
    "INT32": _INT,
    "INT64": _LONG,
    "SFIXED32": _INT,
    "SFIXED64": _LONG,
    "SINT32": _INT,
    "SINT64": _LONG,
    "STRING": StringType(),
    "UINT32": _LONG,
    "UINT64": _UNSIGNED,
}
WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in (
        *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32"),
        *("Bool", "String", "Bytes"),
    )
)
TIMESTAMP: Final = "google.protobuf.Timestamp"
DURATION: Final = "google.protobuf.Duration"


def message_type(descriptor: Any, where: str, outer: tuple[str, ...]) -> DataType:
    """Return the type of a message; ``outer`` are the messages that contain it.

    Raises:
        ConfigError: The message has no fields, or contains itself.
    """
    if descriptor.full_name in outer:
        raise ConfigError(f"{where} contains itself, and Spark has no recursive types")
    if not descriptor.fields:
        raise ConfigError(f"{where} is the message {descriptor.full_name}, which has no fields")
    inner = (*outer, descriptor.full_name)
    return StructType(
        [
            nullable_field(field.name, field_type(field, f"{where}.{field.name}", inner))
            for field in descriptor.fields
        ]
    )


def field_type(field: Any, where: str, outer: tuple[str, ...]) -> DataType:
    """Return the type of a field."""
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapType(element_type(key, where, outer), element_type(value, where, outer))
    single = element_type(field, where, outer)
    return ArrayType(single) if field.is_repeated else single


def element_type(field: Any, where: str, outer: tuple[str, ...]) -> DataType:
    """Return the type of a field, or of one of its elements if it is repeated."""
    if field.message_type is None:
        return _KINDS[type_name(field)]
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return TimestampType()
    if name == DURATION:
        return DayTimeIntervalType()
    if name in WRAPPERS:
        return _KINDS[type_name(field.message_type.fields_by_name["value"])]
    return message_type(field.message_type, where, outer)


def is_map(field: Any) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def type_name(field: Any) -> str:
    """Return the Protobuf name of the type of a field, such as ``SINT32``."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")
