"""Which types of columns may stand for which types of a schema: those that lose nothing."""

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


def arrow_of(kind: DataType) -> pa.DataType:
    """Return a type of Spark as Arrow has it, times in UTC."""
    return to_arrow_type(kind, timezone="UTC")


def check_fits(given: DataType, wanted: DataType, where: str) -> None:
    """Check that a column may stand for a leaf of a schema.

    Raises:
        ConfigError: Values of the column may not fit; it is named.
    """
    if not _fits(given, wanted):
        raise ConfigError(
            f"the column {where} is {given.simpleString()}, and its schema wants "
            f"{wanted.simpleString()}; cast it"
        )


def check_names(given: StructType, where: str) -> None:
    """Check that no two fields have one name.

    Raises:
        ConfigError: Two do; the name is told.
    """
    names: set[str] = set()
    for name in given.names:
        if name in names:
            raise ConfigError(f"there are two columns {inside(where, name)}")
        names.add(name)


def inside(where: str, name: str) -> str:
    """Return how a field of a struct is called in errors; ``where`` is the struct."""
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
