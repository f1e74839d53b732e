"""Checks that values of a column fit a type of a schema without loss."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructType,
)

from rocketpost.errors import ConfigError

_WIDER: Final[dict[type[DataType], tuple[type[DataType], ...]]] = {
    ByteType: (ShortType, IntegerType, LongType, FloatType, DoubleType),
    ShortType: (IntegerType, LongType, FloatType, DoubleType),
    IntegerType: (LongType, DoubleType),
    FloatType: (DoubleType,),
}
_DIGITS: Final[dict[type[DataType], int]] = {
    ByteType: 3,
    ShortType: 5,
    IntegerType: 10,
    LongType: 19,
}


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type of a Spark type, with times in UTC."""
    return to_arrow_type(kind, timezone="UTC")


def check_fits(given: DataType, wanted: DataType, where: str) -> None:
    """Check that values of a column fit a leaf of a schema.

    Raises:
        ConfigError: Values of the column may not fit.
    """
    if not _fits(given, wanted):
        raise ConfigError(
            f"the column {where} is {given.simpleString()}, but its schema requires "
            f"{wanted.simpleString()}; cast it"
        )


def check_names(given: StructType, where: str) -> None:
    """Check that no two fields have one name.

    Raises:
        ConfigError: Two fields have the same name.
    """
    names: set[str] = set()
    for name in given.names:
        if name in names:
            raise ConfigError(f"there are two columns {column_path(where, name)}")
        names.add(name)


def column_path(where: str, name: str) -> str:
    """Return the name of a field in errors; ``where`` is the struct."""
    return f"{where}.{name}" if where else name


def _fits(given: DataType, wanted: DataType) -> bool:
    if isinstance(given, NullType) or given == wanted:
        return True
    if isinstance(wanted, StringType):
        return isinstance(given, StringType)
    if isinstance(wanted, DecimalType):
        return _fits_decimal(given, wanted)
    return type(wanted) in _WIDER.get(type(given), ())


def _fits_decimal(given: DataType, wanted: DecimalType) -> bool:
    whole = wanted.precision - wanted.scale
    if isinstance(given, DecimalType):
        return given.scale <= wanted.scale and given.precision - given.scale <= whole
    return _DIGITS.get(type(given), whole + 1) <= whole
