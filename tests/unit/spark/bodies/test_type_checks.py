"""Types that may be written as other types."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NullType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.type_checks import check_fits

GOOD: list[tuple[DataType, DataType]] = [
    (LongType(), LongType()),
    (NullType(), LongType()),
    (ByteType(), IntegerType()),
    (IntegerType(), DoubleType()),
    (FloatType(), DoubleType()),
    (StringType("UTF8_LCASE"), StringType()),
    (DecimalType(5, 2), DecimalType(6, 3)),
    (LongType(), DecimalType(20, 0)),
]
BAD: list[tuple[DataType, DataType]] = [
    (LongType(), IntegerType()),
    (LongType(), DoubleType()),
    (IntegerType(), FloatType()),
    (DoubleType(), FloatType()),
    (LongType(), StringType()),
    (DecimalType(5, 2), DecimalType(5, 3)),
    (DecimalType(5, 2), DecimalType(9, 1)),
    (LongType(), DecimalType(18, 0)),
    (DoubleType(), DecimalType(38, 0)),
    (TimestampNTZType(), TimestampType()),
]


@pytest.mark.parametrize(("given", "wanted"), GOOD)
def test_types_that_lose_nothing_fit(given: DataType, wanted: DataType) -> None:
    check_fits(given, wanted, "amount")


@pytest.mark.parametrize(("given", "wanted"), BAD)
def test_types_that_may_lose_something_do_not_fit(given: DataType, wanted: DataType) -> None:
    with pytest.raises(ConfigError, match=r"the column amount is .*; cast it"):
        check_fits(given, wanted, "amount")
