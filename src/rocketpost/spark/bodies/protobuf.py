"""Bodies that are Protobuf messages, by a descriptor set as ``protoc`` writes it.

Enums are strings (a number that has no name is its digits), unsigned numbers get the next wider
type, ``Timestamp`` and ``Duration`` are Spark's own, wrappers such as ``Int32Value`` are what they
wrap. A field that knows whether it was set is null when it was not; others have their default.
"""

from __future__ import annotations

from collections.abc import Callable
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
from rocketpost.spark.bodies.codec import (
    Parser,
    TypedCodec,
    field_of,
)
from rocketpost.spark.fields import TIME_MAX_MS, TIME_MIN_MS

Convert = Callable[[Any], object]

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
_WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in (
        *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32"),
        *("Bool", "String", "Bytes"),
    )
)
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_DURATION: Final = "google.protobuf.Duration"


class ProtobufCodec(TypedCodec):
    """One message of a descriptor set."""

    name = "protobuf"

    def __init__(self, descriptors: bytes, message: str) -> None:
        if not descriptors or not message:
            raise ConfigError(
                "bodyFormat=protobuf needs bodySchemaFile, which "
                "`protoc --include_imports --descriptor_set_out=FILE` writes, and bodyMessage"
            )
        self._descriptors = descriptors
        self._message = message
        self._kind = _struct(self._descriptor(), "body", ())

    def parser(self, wanted: DataType) -> Parser:
        """Return what reads one body."""
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        descriptor = self._descriptor()
        message = GetMessageClass(descriptor)
        convert = _converter_of_message(descriptor, wanted)

        def parse(body: bytes) -> object:
            try:
                return convert(message.FromString(body))
            except DecodeError as error:
                raise ValueError(str(error)) from None

        return parse

    def _descriptor(self) -> Any:
        try:
            from google.protobuf.descriptor_pb2 import FileDescriptorSet
            from google.protobuf.descriptor_pool import DescriptorPool
            from google.protobuf.message import DecodeError
        except ImportError:
            raise ConfigError(
                "bodyFormat=protobuf needs protobuf: pip install 'rocketpost[protobuf]'"
            ) from None
        pool = DescriptorPool()
        try:
            for file in FileDescriptorSet.FromString(self._descriptors).file:
                pool.Add(file)
            return pool.FindMessageTypeByName(self._message)
        except DecodeError:
            raise ConfigError("bodySchemaFile is no descriptor set of protoc") from None
        except KeyError:
            raise ConfigError(f"bodySchemaFile has no message {self._message}") from None
        except TypeError as error:
            raise ConfigError(
                f"bodySchemaFile lacks something; use protoc with --include_imports: {error}"
            ) from None


# Types.


def _struct(descriptor: Any, where: str, outer: tuple[str, ...]) -> DataType:
    if descriptor.full_name in outer:
        raise ConfigError(f"{where} holds itself, and Spark has no such types")
    if not descriptor.fields:
        raise ConfigError(f"{where} is the message {descriptor.full_name}, which has no fields")
    inner = (*outer, descriptor.full_name)
    return StructType(
        [
            field_of(field.name, _kind(field, f"{where}.{field.name}", inner))
            for field in descriptor.fields
        ]
    )


def _kind(field: Any, where: str, outer: tuple[str, ...]) -> DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return MapType(_single(key, where, outer), _single(value, where, outer))
    single = _single(field, where, outer)
    return ArrayType(single) if field.is_repeated else single


def _single(field: Any, where: str, outer: tuple[str, ...]) -> DataType:
    if field.message_type is None:
        return _KINDS[_type_name(field)]
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return TimestampType()
    if name == _DURATION:
        return DayTimeIntervalType()
    if name in _WRAPPERS:
        return _KINDS[_type_name(field.message_type.fields_by_name["value"])]
    return _struct(field.message_type, where, outer)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _type_name(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


# Values.


def _converter_of_message(descriptor: Any, wanted: DataType) -> Convert:
    assert isinstance(wanted, StructType)
    always: list[tuple[str, Convert]] = []
    if_set: list[tuple[str, Convert]] = []
    for each in wanted.fields:
        field = descriptor.fields_by_name[each.name]
        some = if_set if field.has_presence else always
        some.append((each.name, _converter(field, each.dataType)))

    def convert(message: Any) -> object:
        found = {name: of(getattr(message, name)) for name, of in always}
        for name, of in if_set:
            if message.HasField(name):
                found[name] = of(getattr(message, name))
        return found

    return convert


def _converter(field: Any, wanted: DataType) -> Convert:
    if _is_map(field):
        assert isinstance(wanted, MapType)
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        of_key = _converter_of_one(key, wanted.keyType)
        of_value = _converter_of_one(value, wanted.valueType)
        return lambda found: [(of_key(key), of_value(value)) for key, value in found.items()]
    if field.is_repeated:
        assert isinstance(wanted, ArrayType)
        of = _converter_of_one(field, wanted.elementType)
        return lambda found: [of(each) for each in found]
    return _converter_of_one(field, wanted)


def _converter_of_one(field: Any, wanted: DataType) -> Convert:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number) or str(number)
    if field.message_type is None:
        return _itself
    name = field.message_type.full_name
    if name == _TIMESTAMP:
        return _timestamp
    if name == _DURATION:
        return lambda value: value.seconds * 1_000_000 + value.nanos // 1000
    if name in _WRAPPERS:
        return lambda wrapper: wrapper.value
    return _converter_of_message(field.message_type, wanted)


def _itself(value: Any) -> object:
    return value


def _timestamp(value: Any) -> object:
    if not TIME_MIN_MS <= value.seconds * 1000 <= TIME_MAX_MS:
        raise ValueError("a Timestamp lies outside the years 1 to 9999")
    return value.seconds * 1_000_000 + value.nanos // 1000
