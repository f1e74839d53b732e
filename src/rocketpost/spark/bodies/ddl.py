"""Schemas in Spark's DDL, parsed without Spark: processes that plan a query have no Spark session.

    fields  name type, name: type NOT NULL COMMENT 'text', ...
    type    bigint, decimal(10, 2), array<type>, map<type, type>, struct<fields>

The parser knows the types that JSON can have; Spark's parser knows more. A name that is not a plain
word is in backquotes.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

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
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rocketpost.errors import ConfigError

_PLAIN: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "byte": ByteType(),
    "smallint": ShortType(),
    "short": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}
_DECIMALS: Final = ("decimal", "dec", "numeric")
_PRECISION_MAX: Final = 38
_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.|'')*'|\w+|[<>(),:])", re.ASCII)
_DEPTH_MAX: Final = 64


def parse_fields(text: str) -> StructType:
    """Parse the fields of a schema.

    Raises:
        ConfigError: The text is not a schema; the message says where and why.
    """
    words = text.strip()
    if words.lower().startswith("struct<"):
        parser = _Parser(words)
        kind = parser.type()
        parser.end()
        assert isinstance(kind, StructType)
        return kind
    parser = _Parser(words)
    fields = parser.fields()
    parser.end()
    return fields


class _Parser:
    """Parses one schema."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._token = ""
        self._next()

    def fields(self) -> StructType:
        """Parse fields up to the first token that is not a field."""
        found = StructType([self._field()])
        while self._accept(","):
            found.add(self._field())
        return found

    def type(self) -> DataType:
        """Parse a type."""
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            self._refuse(f"it is nested more than {_DEPTH_MAX} deep")
        word = self._token.lower()
        kind = self._nested(word) or self._decimal(word) or _PLAIN.get(word)
        if kind is None:
            known = ", ".join([*_PLAIN, "decimal, array<>, map<> or struct<>"])
            self._refuse(f"{self._token or 'the end'} is not a type; the types are {known}")
        if word in _PLAIN:
            self._next()
        self._depth -= 1
        return kind

    def end(self) -> None:
        """Check that nothing is left."""
        if self._token:
            self._refuse(f"{self._token} is one word too many")

    def _field(self) -> StructField:
        name = self._token
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not re.fullmatch(r"\w+", name, re.ASCII):
            self._refuse(f"expected a name, not {name or 'the end'}")
        self._next()
        self._accept(":")
        kind = self.type()
        nullable = True
        if self._accept("not"):
            self._expect("null")
            nullable = False
        if self._accept("comment"):
            self._next()
        return StructField(name, kind, nullable)

    def _nested(self, word: str) -> DataType | None:
        if word not in ("array", "map", "struct"):
            return None
        self._next()
        self._expect("<")
        kind: DataType
        if word == "array":
            kind = ArrayType(self.type())
        elif word == "map":
            key = self.type()
            self._expect(",")
            kind = MapType(key, self.type())
        else:
            kind = self.fields()
        self._expect(">")
        return kind

    def _decimal(self, word: str) -> DataType | None:
        if word not in _DECIMALS:
            return None
        self._next()
        if not self._accept("("):
            return DecimalType()
        precision, scale = self._number(), 0
        if self._accept(","):
            scale = self._number()
        self._expect(")")
        if not scale <= precision <= _PRECISION_MAX:
            self._refuse(
                f"decimal({precision}, {scale}) is invalid: the precision must be at most "
                f"{_PRECISION_MAX}, and the scale at most the precision"
            )
        return DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._token
        if not token.isdecimal():
            self._refuse(f"expected a number, not {token or 'the end'}")
        self._next()
        return int(token)

    def _accept(self, word: str) -> bool:
        if self._token.lower() != word:
            return False
        self._next()
        return True

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            self._refuse(f"expected {word}, not {self._token or 'the end'}")

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            self._token = self._text[self._at :].strip()[:1]
            if self._token:
                self._at = self._text.index(self._token, self._at) + 1
                self._refuse(f"{self._token} cannot be part of a schema")
            return
        self._token = found[1]
        self._at = found.end()

    def _refuse(self, why: str) -> NoReturn:
        place = self._at - len(self._token) + 1
        raise ConfigError(f"bodySchema={self._text!r} is not a schema: at character {place}: {why}")
