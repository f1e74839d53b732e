"""What a format of bodies offers: its type in Spark, a parser of one body, an encoder of many.

A codec is pickled into tasks, so it holds text or bytes and no compiled thing. Parsers return plain
Python values (dictionaries, lists, dates) from which Arrow makes a column of the type wanted.
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
"""Takes structs of which none is null."""

UNREADABLE: Final = (
    ValueError,
    TypeError,
    ArithmeticError,
    EOFError,
    LookupError,
    RecursionError,
    decimal.DecimalException,
)
"""What parsers, and Arrow after them, raise for bytes that are not of their schema."""


class Codec(ABC):
    """One format with its schema."""

    name: str
    """What ``bodyFormat`` calls it."""

    @abstractmethod
    def words(self) -> str:
        """Return the type of a body in Spark's words.

        Raises:
            ConfigError: The schema is not known.
        """

    @abstractmethod
    def check(self, wanted: DataType) -> None:
        """Check a type that a user's schema gives the body.

        Raises:
            ConfigError: Bodies of this format cannot become that.
        """

    @abstractmethod
    def parser(self, wanted: DataType) -> Parser:
        """Return what reads one body; it raises one of :data:`UNREADABLE` if it cannot."""


class StructCodec(Codec):
    """A format whose bodies are structs, which can be written as well."""

    @abstractmethod
    def encoder(self, given: StructType, where: str) -> Encoder:
        """Return what writes bodies; it raises one of :data:`UNREADABLE` for what it cannot.

        Args:
            given: The structs that there are.
            where: What errors call a struct; empty for a row.

        Raises:
            ConfigError: Such structs cannot become bodies of this format; the column is named.
        """


class TypedCodec(StructCodec):
    """A format whose schemas say the type of a body."""

    _kind: DataType

    def words(self) -> str:
        """Return the type of a body in Spark's words."""
        return words_of(self._kind)

    def check(self, wanted: DataType) -> None:
        """Take some or all of the fields.

        Raises:
            ConfigError: A field is unknown, or has another type.
        """
        check_part(wanted, self._kind)
        check_nullable(wanted)


class TextCodec(Codec):
    """Bodies that are UTF-8."""

    name = "string"

    def words(self) -> str:
        """Return the type of a body in Spark's words."""
        return "string"

    def check(self, wanted: DataType) -> None:
        """Take text alone."""
        if not isinstance(wanted, StringType):
            raise ConfigError(f"the column body is string, not {wanted.simpleString()}")

    def parser(self, wanted: DataType) -> Parser:
        """Return what reads one body."""
        return lambda body: str(body, "utf-8")


def words_of(kind: DataType) -> str:
    """Return a type in Spark's words, with names of fields that may be any text."""
    if isinstance(kind, StructType):
        fields = (f"{_quoted(field.name)}: {words_of(field.dataType)}" for field in kind.fields)
        return f"struct<{', '.join(fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{words_of(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{words_of(kind.keyType)}, {words_of(kind.valueType)}>"
    return kind.simpleString()


def check_nullable(kind: DataType, where: str = "body") -> None:
    """Check that everything inside a type may be null, as any part of a body may be.

    Raises:
        ConfigError: Something is said to be never null.
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
            raise ConfigError(f"{name} may be null; leave NOT NULL out of the schema")
        check_nullable(child, name)


def check_part(wanted: DataType, whole: DataType, where: str = "body") -> None:
    """Check that a type is part of another: some of the fields, each with its own type.

    Raises:
        ConfigError: A field is unknown, or has another type.
    """
    match wanted, whole:
        case StructType(), StructType():
            known = {field.name: field for field in whole.fields}
            for field in wanted.fields:
                if field.name not in known:
                    raise ConfigError(
                        f"{where} has no field {field.name!r}; there are {', '.join(known)}"
                    )
                check_part(field.dataType, known[field.name].dataType, f"{where}.{field.name}")
        case ArrayType(), ArrayType():
            check_part(wanted.elementType, whole.elementType, f"the elements of {where}")
        case MapType(), MapType() if wanted.keyType == whole.keyType:
            check_part(wanted.valueType, whole.valueType, f"the values of {where}")
        case _ if wanted != whole:
            raise ConfigError(f"{where} is {whole.simpleString()}, not {wanted.simpleString()}")


def field_of(name: str, kind: DataType) -> StructField:
    """Return a field that may be null."""
    return StructField(name, kind, nullable=True)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
