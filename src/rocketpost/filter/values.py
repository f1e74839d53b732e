"""Values in a filter and how they compare, which is as in Java.

A value is None (missing, unknown), a bool, an int, a float or a str. Properties are texts always; a
text that meets a number is read as a number of that kind. What cannot be read ends the evaluation:
the message does not match, whatever stands around it.
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
    """Return the number that ``text`` is, between ``-limit - 1`` and ``limit``.

    Raises:
        IncomparableError: It is none.
    """
    # Java reads the digits of every script, but only those of one UTF-16 unit.
    if _is_integer(text) and (text.isascii() or max(text) <= _BMP_LAST):
        try:
            number = int(text)
        except ValueError:  # thousands of digits
            number = limit + 1
        if -limit - 1 <= number <= limit:
            return number
    raise IncomparableError(f"{text[:64]!r} is not an integer of {(limit + 1).bit_length()} bits")


def read_decimal(text: str) -> float:
    """Return the number that ``text`` is.

    Raises:
        IncomparableError: It is none.
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
    """Return the number that ``text`` is, read as the kind of ``number``.

    Raises:
        IncomparableError: It is none of that kind.
    """
    if type(number) is float:
        return read_decimal(text)
    # The one literal beyond is -2147483648, which is the negative of a long.
    return read_integer(text, INT_MAX if -INT_MAX <= number <= INT_MAX else LONG_MAX)


def order(left: Value, right: Value) -> int:
    """Return -1, 0 or 1 as ``left`` is below, like or above ``right``; -1 if they never meet.

    Raises:
        IncomparableError: A text is not the number or truth value that it is compared with.
    """
    assert left is not None
    assert right is not None
    if isinstance(left, bool) or isinstance(right, bool):
        return _order_of_truth(left, right)
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        left = read_like(left, right)
    elif isinstance(right, str):
        right = read_like(right, left)
    if isinstance(left, float) or isinstance(right, float):
        return order_of_decimals(float(left), float(right))
    return (left > right) - (left < right)


def _order_of_truth(left: Value, right: Value) -> int:
    if isinstance(left, str):
        left = left.lower() == "true"
    elif isinstance(right, str):
        raise IncomparableError(f"the truth value {left} is not compared with a text")
    if not (isinstance(left, bool) and isinstance(right, bool)):
        return -1
    return left - right


def order_of_decimals(left: float, right: float) -> int:
    """Return how Java orders doubles: -0.0 below 0.0, NaN above all and like itself."""
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


def equal(left: Value, right: Value) -> bool | None:
    """Return what ``left = right`` is: unknown if only the left side is missing.

    Raises:
        IncomparableError: They cannot be compared.
    """
    if left is None:
        return True if right is None else None
    return right is not None and order(left, right) == 0
