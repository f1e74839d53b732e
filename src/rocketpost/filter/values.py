"""Values of filter expressions, and their comparison as in Java.

A value is None (missing, unknown), a bool, an int, a float or a str. Properties are always strings;
one that is compared with a number is read as a number of that type. If it cannot be read that way,
the evaluation ends: the message does not match, whatever the rest of the expression says.
"""

from __future__ import annotations

import re
from typing import Final

Value = bool | int | float | str | None

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_is_integer = re.compile(r"[+-]?\d+").fullmatch
_decimal = re.compile(
    r"([+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?))[fFdD]?"
).fullmatch
_hexadecimal = re.compile(
    r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?"
).fullmatch
_BLANKS: Final = "".join(map(chr, range(0x21)))
_BMP_LAST: Final = "\uffff"


class IncomparableError(ValueError):
    """Two values cannot be compared, so that the message does not match."""


def read_integer(text: str, limit: int) -> int:
    """Read an integer between ``-limit - 1`` and ``limit``.

    Raises:
        IncomparableError: The text is not such a number.
    """
    # Java accepts the digits of every script, but only those of one UTF-16 unit.
    if _is_integer(text) and (text.isascii() or max(text) <= _BMP_LAST):
        try:
            number = int(text)
        except ValueError:  # thousands of digits
            number = limit + 1
        if -limit - 1 <= number <= limit:
            return number
    raise IncomparableError(f"{text[:64]!r} is not an integer of {(limit + 1).bit_length()} bits")


def read_decimal(text: str) -> float:
    """Read a number.

    Raises:
        IncomparableError: The text is not such a number.
    """
    bare = text.strip(_BLANKS)
    if found := _decimal(bare):
        return float(found[1])
    if found := _hexadecimal(bare):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return float("-inf" if bare.startswith("-") else "inf")
    raise IncomparableError(f"{text[:64]!r} is not a number")


def read_like(text: str, number: int | float) -> int | float:
    """Read a number of the same type as ``number``.

    Raises:
        IncomparableError: The text is not such a number.
    """
    if type(number) is float:
        return read_decimal(text)
    # The one literal beyond is -2147483648, which Java reads as the negative of a long.
    return read_integer(text, INT_MAX if -INT_MAX <= number <= INT_MAX else LONG_MAX)


def compare(left: Value, right: Value) -> int:
    """Return -1, 0 or 1 as ``left`` is below, equal to or above ``right``; -1 across types.

    Raises:
        IncomparableError: A text cannot be read as the type that it is compared with.
    """
    assert left is not None
    assert right is not None
    if isinstance(left, bool) or isinstance(right, bool):
        return _compare_truth(left, right)
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = read_like(left, right)
    elif isinstance(right, str):
        right = read_like(right, left)
    if isinstance(left, float) or isinstance(right, float):
        return compare_decimals(float(left), float(right))
    return (left > right) - (left < right)


def _compare_truth(left: Value, right: Value) -> int:
    if isinstance(left, str):
        left = left.lower() == "true"
    elif isinstance(right, str):
        raise IncomparableError(f"the truth value {left} cannot be compared with a string")
    if not (isinstance(left, bool) and isinstance(right, bool)):
        return -1
    return left - right


def compare_decimals(left: float, right: float) -> int:
    """Compare doubles as Java does: -0.0 below 0.0, NaN above all others and equal to itself."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left != 0.0:
        return 0
    ours, theirs = (_rank(each) for each in (left, right))
    return (ours > theirs) - (ours < theirs)


def _rank(number: float) -> int:
    if number != number:
        return 2
    return -1 if str(number) == "-0.0" else (1 if number > 0 else 0)


def equals(left: Value, right: Value) -> bool | None:
    """Evaluate ``left = right``; unknown if only the left side is missing.

    Raises:
        IncomparableError: The values cannot be compared.
    """
    if left is None:
        return True if right is None else None
    return right is not None and compare(left, right) == 0
