"""Bodies that are Protobuf messages, by a descriptor set of ``protoc``.

Enums are strings (digits for an unknown number), unsigned numbers get the next wider type,
``Timestamp`` and ``Duration`` are Spark's own types, and wrappers such as ``Int32Value`` are the
wrapped values. A field with presence is null if it was not set; others have their defaults. Values
that are not null are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.codec import Encoder, Parser, TypedCodec
from rocketpost.spark.bodies.protobuf_encoder import make_message_encoder
from rocketpost.spark.bodies.protobuf_types import (
    DURATION,
    TIMESTAMP,
    WRAPPERS,
    is_map,
    message_type,
)
from rocketpost.spark.records.fields import TIME_MAX_MS, TIME_MIN_MS

Convert = Callable[[Any], object]


class ProtobufCodec(TypedCodec):
    """The codec of one message type of a descriptor set."""

    name = "protobuf"

    def __init__(self, descriptors: bytes, message: str) -> None:
        if not descriptors or not message:
            raise ConfigError(
                "bodyFormat=protobuf needs bodySchemaFile, which "
                "`protoc --include_imports --descriptor_set_out=FILE` writes, and bodyMessage"
            )
        self._descriptors = descriptors
        self._message = message
        self._kind = message_type(self._descriptor(), "body", ())

    def parser(self, wanted: DataType) -> Parser:
        """Return a function that parses one body."""
        from google.protobuf.message import DecodeError
        from google.protobuf.message_factory import GetMessageClass

        descriptor = self._descriptor()
        message = GetMessageClass(descriptor)
        convert = _make_message_converter(descriptor, wanted)

        def parse(body: bytes) -> object:
            try:
                return convert(message.FromString(body))
            except DecodeError as error:
                raise ValueError(str(error)) from None

        return parse

    def encoder(self, given: StructType, where: str) -> Encoder:
        """Return a function that encodes bodies.

        Raises:
            ConfigError: A column is unknown or of another type.
        """
        from google.protobuf.message import EncodeError

        listed = make_message_encoder(self._descriptor(), given, where)

        def encode(structs: pa.StructArray) -> list[bytes]:
            try:
                return [each.SerializeToString(deterministic=True) for each in listed(structs)]
            except EncodeError as error:
                raise ValueError(str(error)) from None

        return encode

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
            raise ConfigError("bodySchemaFile is not a descriptor set of protoc") from None
        except KeyError:
            raise ConfigError(f"bodySchemaFile has no message {self._message}") from None
        except TypeError as error:
            raise ConfigError(
                f"bodySchemaFile is incomplete; run protoc with --include_imports: {error}"
            ) from None


def _make_message_converter(descriptor: Any, wanted: DataType) -> Convert:
    assert isinstance(wanted, StructType)
    always: list[tuple[str, Convert]] = []
    if_set: list[tuple[str, Convert]] = []
    for each in wanted.fields:
        field = descriptor.fields_by_name[each.name]
        some = if_set if field.has_presence else always
        some.append((each.name, _make_converter(field, each.dataType)))

    def convert(message: Any) -> object:
        found = {name: of(getattr(message, name)) for name, of in always}
        for name, of in if_set:
            if message.HasField(name):
                found[name] = of(getattr(message, name))
        return found

    return convert


def _make_converter(field: Any, wanted: DataType) -> Convert:
    if is_map(field):
        assert isinstance(wanted, MapType)
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        of_key = _make_single_converter(key, wanted.keyType)
        of_value = _make_single_converter(value, wanted.valueType)
        return lambda found: [(of_key(key), of_value(value)) for key, value in found.items()]
    if field.is_repeated:
        assert isinstance(wanted, ArrayType)
        of = _make_single_converter(field, wanted.elementType)
        return lambda found: [of(each) for each in found]
    return _make_single_converter(field, wanted)


def _make_single_converter(field: Any, wanted: DataType) -> Convert:
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number) or str(number)
    if field.message_type is None:
        return _keep
    name = field.message_type.full_name
    if name == TIMESTAMP:
        return _convert_timestamp
    if name == DURATION:
        return lambda value: value.seconds * 1_000_000 + value.nanos // 1000
    if name in WRAPPERS:
        return lambda wrapper: wrapper.value
    return _make_message_converter(field.message_type, wanted)


def _keep(value: Any) -> object:
    return value


def _convert_timestamp(value: Any) -> object:
    if not TIME_MIN_MS <= value.seconds * 1000 <= TIME_MAX_MS:
        raise ValueError("a Timestamp is outside the years 1 to 9999")
    return value.seconds * 1_000_000 + value.nanos // 1000
