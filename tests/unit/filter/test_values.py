"""Values compare as in Java."""

from __future__ import annotations

import math

import pytest

from rocketpost.filter.values import (
    INT_MAX,
    LONG_MAX,
    IncomparableError,
    compare,
    compare_decimals,
    equals,
    read_decimal,
    read_integer,
)


@pytest.mark.parametrize(("text", "number"), [("5", 5), ("-05", -5), ("+7", 7), ("٣", 3)])
def test_whole_numbers(text: str, number: int) -> None:
    assert read_integer(text, INT_MAX) == number


@pytest.mark.parametrize("text", ["", "+", "5.0", " 5", "1_0", "0x1", "2147483648", "²", "𝟏"])
def test_no_whole_numbers(text: str) -> None:
    with pytest.raises(IncomparableError):
        read_integer(text, INT_MAX)


def test_whole_numbers_have_their_range() -> None:
    assert read_integer("2147483648", LONG_MAX) == 2**31
    assert read_integer("-2147483648", INT_MAX) == -(2**31)
    with pytest.raises(IncomparableError, match="64 bits"):
        read_integer("9223372036854775808", LONG_MAX)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5.0),
        (" \t5.5\n", 5.5),
        ("5.", 5.0),
        (".5d", 0.5),
        ("1e3F", 1000.0),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("0x1.8p1", 3.0),
        ("-0X.8P1d", -1.0),
        ("1e999", math.inf),
        ("0x1p99999", math.inf),
        ("-0x1p99999", -math.inf),
    ],
)
def test_decimals(text: str, number: float) -> None:
    assert read_decimal(text) == number


@pytest.mark.parametrize("text", ["", ".", "e5", "nan", "inf", "1e", "0x1", "5dd", "٣", "1_0"])
def test_no_decimals(text: str) -> None:
    with pytest.raises(IncomparableError):
        read_decimal(text)


def test_the_order_of_doubles_is_javas() -> None:
    rising = [-math.inf, -1.0, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
    for at, left in enumerate(rising):
        for other, right in enumerate(rising):
            assert compare_decimals(left, right) == (at > other) - (at < other)


def test_kinds_that_never_meet() -> None:
    assert compare(True, 5) == compare(5, False) == -1
    assert compare("TRUE", True) == 0
    with pytest.raises(IncomparableError):
        compare(True, "true")
    assert compare(2**53 + 1, float(2**53)) == 0  # a long becomes a double


def test_equality_with_what_is_missing() -> None:
    assert equals(None, None) is True
    assert equals(None, 5) is None
    assert equals(5, None) is False
