"""The columns of a message, as names and types of Spark and Arrow. Pure.

A user's schema is a projection: it names the columns to read, and no others are decoded. The types
of columns are fixed, except that ``properties`` may be a map or the raw text.

Columns that every message has are NOT NULL, so that Spark does not check each row. A user's schema
may say so or not; Spark compares the schema of batches with the one it got.
"""

from __future__ import annotations

import difflib
from typing import Final, NamedTuple

import pyarrow as pa

from rocketpost.errors import ConfigError

_TIME: Final = pa.timestamp("us", tz="UTC")
_MAP: Final = pa.map_(pa.string(), pa.string())


class Column(NamedTuple):
    """One column: its name, and its type in Arrow and in Spark."""

    name: str
    arrow: pa.DataType
    spark: str
    nullable: bool = False

    @property
    def field(self) -> pa.Field[pa.DataType]:
        """The column in the schema of a batch."""
        return pa.field(self.name, self.arrow, nullable=self.nullable)


ALL: Final = (
    Column("topic", pa.string(), "string"),
    Column("brokerName", pa.string(), "string", nullable=True),
    Column("queueId", pa.int32(), "int"),
    Column("queueOffset", pa.int64(), "bigint"),
    Column("commitLogOffset", pa.int64(), "bigint"),
    Column("msgId", pa.string(), "string"),
    Column("uniqKey", pa.string(), "string", nullable=True),
    Column("keys", pa.string(), "string", nullable=True),
    Column("tags", pa.string(), "string", nullable=True),
    Column("flag", pa.int32(), "int"),
    Column("sysFlag", pa.int32(), "int"),
    Column("bodyCrc", pa.int32(), "int"),
    Column("bornTimestamp", _TIME, "timestamp"),
    Column("bornHost", pa.string(), "string"),
    Column("storeTimestamp", _TIME, "timestamp"),
    Column("storeHost", pa.string(), "string"),
    Column("reconsumeTimes", pa.int32(), "int"),
    Column("preparedTransactionOffset", pa.int64(), "bigint"),
    Column("storeSize", pa.int32(), "int"),
    Column("body", pa.binary(), "binary"),
    Column("properties", _MAP, "map<string,string>"),
)
"""Every column, in the order of the full schema."""

_TEXT_PROPERTIES: Final = Column("properties", pa.string(), "string")
_BY_NAME: Final = {column.name: column for column in ALL}
_BY_LOWER: Final = {column.name.lower(): column for column in ALL}


def all_columns(properties_format: str = "map") -> tuple[Column, ...]:
    """Return every column; ``properties_format`` is ``map``, ``string`` or ``none``."""
    if properties_format == "none":
        return ALL[:-1]
    return (*ALL[:-1], _TEXT_PROPERTIES) if properties_format == "string" else ALL


def ddl(columns: tuple[Column, ...]) -> str:
    """Return the schema as text for Spark."""
    return ", ".join(
        f"{column.name} {column.spark}{'' if column.nullable else ' NOT NULL'}"
        for column in columns
    )


def make_nullable(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the same columns as nullable columns."""
    return tuple(column._replace(nullable=True) for column in columns)


def select_columns(wanted: list[tuple[str, str]]) -> tuple[Column, ...]:
    """Return the columns that a user's schema names.

    Args:
        wanted: Names and Spark's simple type names.

    Raises:
        ConfigError: A name is unknown, or a type is wrong.
    """
    columns = []
    for name, kind in wanted:
        column = _BY_LOWER.get(name.lower())
        if column is None:
            near = difflib.get_close_matches(name, _BY_NAME, 1)
            hint = (
                f"; did you mean {near[0]}?" if near else f"; the columns are {', '.join(_BY_NAME)}"
            )
            raise ConfigError(f"there is no column {name!r}{hint}")
        if column.name == "properties" and kind == "string":
            column = _TEXT_PROPERTIES
        if column.spark != kind:
            raise ConfigError(f"the column {column.name} is {column.spark}, not {kind}")
        # The name as the user wrote it, because Spark compares names.
        columns.append(column._replace(name=name))
    return tuple(columns)
