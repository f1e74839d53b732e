"""Types of Spark and values of them, at random."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from rocketpost.spark.bodies.codec import nullable_field

SMALL: list[DataType] = [ByteType(), ShortType()]
LEAVES: list[DataType] = [
    *(BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), StringType()),
    *(BinaryType(), DateType(), TimestampType(), TimestampNTZType()),
    *(DecimalType(9, 2), DecimalType(38, 0), DecimalType(20, 20)),
]
NAMES = st.sampled_from(["a", "b", "c_1", "Total", "from"])
TEXTS = st.text('aé"\\\n\0\u2028\U0001f600', max_size=4)


def structs(leaves: list[DataType]) -> st.SearchStrategy[StructType]:
    """Return structs of any depth."""
    inner = st.recursive(
        st.sampled_from(leaves),
        lambda of: st.one_of(
            of.map(ArrayType), of.map(lambda value: MapType(StringType(), value)), _struct(of)
        ),
        max_leaves=4,
    )
    return _struct(inner)


def _struct(of: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    fields = st.dictionaries(NAMES, of, min_size=1, max_size=3)
    return fields.map(
        lambda found: StructType([nullable_field(name, kind) for name, kind in found.items()])
    )


def values(kind: DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, as Arrow takes them; parts of them may be null."""
    match kind:
        case StructType():
            return st.fixed_dictionaries(
                {each.name: st.none() | values(each.dataType) for each in kind.fields}
            )
        case ArrayType():
            return st.lists(st.none() | values(kind.elementType), max_size=2)
        case MapType():
            entries = st.dictionaries(TEXTS, st.none() | values(kind.valueType), max_size=2)
            return entries.map(lambda found: list(found.items()))
        case DecimalType():
            whole = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
            return whole.map(lambda number: Decimal(f"{number}e-{kind.scale}"))
    return _LEAVES[type(kind)]


def _whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_TIMES = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))
_LEAVES: dict[type[DataType], st.SearchStrategy[Any]] = {
    BooleanType: st.booleans(),
    ByteType: _whole(8),
    ShortType: _whole(16),
    IntegerType: _whole(32),
    LongType: _whole(64),
    FloatType: st.floats(width=32, allow_nan=False, allow_infinity=False),
    DoubleType: st.floats(allow_nan=False, allow_infinity=False),
    StringType: TEXTS,
    BinaryType: st.binary(max_size=5),
    DateType: st.dates(),
    TimestampType: _TIMES.map(lambda time: time.replace(tzinfo=datetime.UTC)),
    TimestampNTZType: _TIMES,
}
