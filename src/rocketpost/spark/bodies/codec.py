"""The interface of body formats: the type in Spark, a parser of one body, an encoder of many.

A codec is pickled into tasks, so it has text or bytes and no compiled objects. Parsers return plain
Python values (dictionaries, lists, dates), from which Arrow makes a column of the requested type.
Encoders take a column of structs and return the bytes of each.
"""

from __future__ import annotations

import decimal
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from rocketpost.errors import ConfigError

Parser = Callable[[bytes], object]
Encoder = Callable[[pa.StructArray], list[bytes]]
"""Encodes structs, none of which is null."""

UNREADABLE: Final = (
    ValueError,
    TypeError,
    ArithmeticError,
    EOFError,
    LookupError,
    RecursionError,
    decimal.DecimalException,
)
"""Errors of parsers, and of Arrow after them, for bytes that do not match the schema."""


class Codec(ABC):
    """One format with its schema."""

    name: str
    """The value of ``bodyFormat``."""

    @abstractmethod
    def words(self) -> str:
        """Return the type of a body as text for Spark.

        Raises:
            ConfigError: The schema is not known.
        """

    @abstractmethod
    def check(self, wanted: DataType) -> None:
        """Check the type of the body in a user's schema.

        Raises:
            ConfigError: Bodies of this format cannot have that type.
        """

    @abstractmethod
    def parser(self, wanted: DataType) -> Parser:
        """Return a function that parses one body, or raises one of :data:`UNREADABLE`."""


class StructCodec(Codec):
    """A format whose bodies are structs, which can also be written."""

    @abstractmethod
    def encoder(self, given: StructType, where: str) -> Encoder:
        """Return a function that encodes bodies, or raises one of :data:`UNREADABLE`.

        Args:
            given: The type of the structs.
            where: The name of a struct in errors; empty for a row.

        Raises:
            ConfigError: Such structs cannot become bodies of this format.
        """


class TypedCodec(StructCodec):
    """A format whose schemas determine the type of a body."""

    _kind: DataType

    def words(self) -> str:
        """Return the type of a body as text for Spark."""
        return type_text(self._kind)

    def check(self, wanted: DataType) -> None:
        """Accept some or all of the fields.

        Raises:
            ConfigError: A field is unknown, or has another type.
        """
        check_subset(wanted, self._kind)
        check_nullable(wanted)


class TextCodec(Codec):
    """The codec of bodies that are UTF-8 text."""

    name = "string"

    def words(self) -> str:
        """Return the type of a body as text for Spark."""
        return "string"

    def check(self, wanted: DataType) -> None:
        """Accept only text."""
        if not isinstance(wanted, StringType):
            raise ConfigError(f"the column body is string, not {wanted.simpleString()}")

    def parser(self, wanted: DataType) -> Parser:
        """Return a function that parses one body."""
        return lambda body: str(body, "utf-8")


def type_text(kind: DataType) -> str:
    """Return a type as text for Spark, with quoted names of fields."""
    if isinstance(kind, StructType):
        fields = (f"{_quote(field.name)}: {type_text(field.dataType)}" for field in kind.fields)
        return f"struct<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.keyType)}, {type_text(kind.valueType)}>"
    return kind.simpleString()


def check_nullable(kind: DataType, where: str = "body") -> None:
    """Check that everything inside a type is nullable, as any part of a body may be null.

    Raises:
        ConfigError: A field is NOT NULL.
    """
    match kind:
        case StructType():
            inside = [(f"{where}.{each.name}", each.nullable, each.dataType) for each in kind]
        case ArrayType():
            inside = [(f"the elements of {where}", kind.containsNull, kind.elementType)]
        case MapType():
            inside = [(f"the values of {where}", kind.valueContainsNull, kind.valueType)]
        case _:
            inside = []
    for name, is_nullable, child in inside:
        if not is_nullable:
            raise ConfigError(f"{name} may be null; remove NOT NULL from the schema")
        check_nullable(child, name)


def check_subset(wanted: DataType, whole: DataType, where: str = "body") -> None:
    """Check that a type is a subset of another: some of its fields, with the same types.

    Raises:
        ConfigError: A field is unknown, or has another type.
    """
    match wanted, whole:
        case StructType(), StructType():
            known = {field.name: field for field in whole.fields}
            for field in wanted.fields:
                if field.name not in known:
                    raise ConfigError(
                        f"{where} has no field {field.name!r}; its fields are {', '.join(known)}"
                    )
                check_subset(field.dataType, known[field.name].dataType, f"{where}.{field.name}")
        case ArrayType(), ArrayType():
            check_subset(wanted.elementType, whole.elementType, f"the elements of {where}")
        case MapType(), MapType() if wanted.keyType == whole.keyType:
            check_subset(wanted.valueType, whole.valueType, f"the values of {where}")
        case _ if wanted != whole:
            raise ConfigError(f"{where} is {whole.simpleString()}, not {wanted.simpleString()}")


def nullable_field(name: str, kind: DataType) -> StructField:
    """Return a nullable field."""
    return StructField(name, kind, nullable=True)


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
