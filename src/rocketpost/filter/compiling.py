"""Compilation of an expression's tree into nested functions.

A function takes the list of values that the expression reads, in the order of ``Slots``, and
returns True, False or None (unknown). No user's text is ever executed: the functions are those
below, closed over constants. Comparing a property with a constant, which nearly every filter does,
has functions of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Final

from rocketpost.filter.nodes import (
    Among,
    BodyPath,
    Cast,
    Chain,
    Comparison,
    Constant,
    Equal,
    IsNull,
    Named,
    Negative,
    Node,
    Not,
    Property,
    Search,
    Truth,
    TruthLiteral,
)
from rocketpost.filter.values import (
    INT_MAX,
    LONG_MAX,
    Value,
    compare,
    equals,
    read_decimal,
    read_integer,
)

Values = Sequence[Value]
Verdict = Callable[[Values], bool | None]
Reader = Callable[[Values], Value]

_SIGNS: Final[dict[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TEXTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Slots:
    """The values that an expression reads: properties by name, parts of the body by path."""

    def __init__(self) -> None:
        self.places: dict[str | tuple[str | int, ...], int] = {}

    def index_of(self, node: Property | BodyPath) -> int:
        """Return the index of the value of ``node`` in the list."""
        key = node.name if isinstance(node, Property) else node.path
        return self.places.setdefault(key, len(self.places))


class Compiler:
    """Compiles one expression.

    Args:
        slots: The values that the expression reads.
        named: Returns the tree of a filter that MATCHES names.
    """

    def __init__(self, slots: Slots, named: Callable[[Named], Truth]) -> None:
        self._slots = slots
        self._named = named

    def compile_verdict(self, node: Truth) -> Verdict:
        """Return the function of a node that is true, false or unknown."""
        match node:
            case TruthLiteral(value=value):
                return lambda values: value
            case Cast(operand=operand):
                return _cast(self.compile_reader(operand))
            case Not(operand=operand):
                return _not(self.compile_verdict(operand))
            case Chain(operands=operands, is_and=is_and):
                parts = tuple(self.compile_verdict(each) for each in operands)
                return _and(parts) if is_and else _or(parts)
            case Equal(left=left, right=right):
                return self._equal(left, right)
            case IsNull(operand=operand):
                return _is_null(self.compile_reader(operand))
            case Comparison(relation=relation, left=left, right=right):
                return self._ordered(relation, left, right)
            case Search(relation=relation, operand=operand, text=text, negated=negated):
                return _search(self.compile_reader(operand), _TEXTS[relation], text, negated)
            case Among(operand=operand, texts=texts, negated=negated):
                return _among(self.compile_reader(operand), texts, negated)
            case Named():
                return self.compile_verdict(self._named(node))
        raise AssertionError(f"no function for {node!r}")

    def compile_reader(self, node: Node) -> Reader:
        """Return the function of a node with a value of any type."""
        match node:
            case Constant(value=value):
                return lambda values: value
            case Property() | BodyPath():
                return operator.itemgetter(self._slots.index_of(node))
            case Negative(operand=operand):
                return _negative(self.compile_reader(operand))
            case Truth():
                return self.compile_verdict(node)
        raise AssertionError(f"no function for {node!r}")

    def _equal(self, left: Node, right: Node) -> Verdict:
        number = _number(right)
        if isinstance(left, Property) and number is not None:
            return _property_equals(self._slots.index_of(left), number)
        if isinstance(left, Property) and isinstance(right, Constant):
            return _property_is(self._slots.index_of(left), right.value)
        ours, theirs = self.compile_reader(left), self.compile_reader(right)
        return lambda values: equals(ours(values), theirs(values))

    def _ordered(self, relation: str, left: Node, right: Node) -> Verdict:
        number = _number(right)
        if isinstance(left, Property) and type(number) is int:
            return _property_ordered(self._slots.index_of(left), _SIGNS[relation], number)
        return _ordered(self.compile_reader(left), _SIGNS[relation], self.compile_reader(right))


def _number(node: Node) -> int | float | None:
    """Return the value of a constant number, or None for another node."""
    if isinstance(node, Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, Negative):
        number = _number(node.operand)
        return None if number is None else -number
    return None


# Properties and constants.


def _property_is(slot: int, text: Value) -> Verdict:
    def verdict(values: Values) -> bool | None:
        value = values[slot]
        return None if value is None else value == text

    return verdict


def _property_equals(slot: int, number: int | float) -> Verdict:
    def verdict(values: Values) -> bool | None:
        value = values[slot]
        return None if value is None else compare(value, number) == 0

    return verdict


def _property_ordered(slot: int, sign: Callable[[int, int], bool], number: int) -> Verdict:
    limit = INT_MAX if -INT_MAX <= number <= INT_MAX else LONG_MAX

    def verdict(values: Values) -> bool | None:
        value = values[slot]
        if value is None:
            return None
        return sign(read_integer(value, limit), number)  # type: ignore[arg-type]

    return verdict


# Everything else.


def _ordered(left: Reader, sign: Callable[[int, int], bool], right: Reader) -> Verdict:
    def verdict(values: Values) -> bool | None:
        ours = left(values)
        if ours is None:
            return None
        theirs = right(values)
        if theirs is None or isinstance(ours, bool) or isinstance(theirs, bool):
            return None
        if isinstance(ours, str) and isinstance(theirs, str):
            ours, theirs = read_decimal(ours), read_decimal(theirs)
        return sign(compare(ours, theirs), 0)

    return verdict


def _cast(operand: Reader) -> Verdict:
    def verdict(values: Values) -> bool | None:
        value = operand(values)
        return None if value is None else value is True

    return verdict


def _not(operand: Verdict) -> Verdict:
    def verdict(values: Values) -> bool | None:
        value = operand(values)
        return None if value is None else not value

    return verdict


def _is_null(operand: Reader) -> Verdict:
    return lambda values: operand(values) is None


def _and(parts: tuple[Verdict, ...]) -> Verdict:
    def verdict(values: Values) -> bool | None:
        answer: bool | None = True
        for part in parts:
            value = part(values)
            if value is False:
                return False
            if value is None:
                answer = None
        return answer

    return verdict


def _or(parts: tuple[Verdict, ...]) -> Verdict:
    def verdict(values: Values) -> bool | None:
        answer: bool | None = False
        for part in parts:
            value = part(values)
            if value is True:
                return True
            if value is None:
                answer = None
        return answer

    return verdict


def _negative(operand: Reader) -> Reader:
    def reader(values: Values) -> Value:
        value = operand(values)
        if value is None or isinstance(value, bool | str):
            return None
        return -value

    return reader


def _search(
    operand: Reader, relation: Callable[[str, str], bool], text: str, negated: bool
) -> Verdict:
    def verdict(values: Values) -> bool | None:
        if not text:
            return False  # before reading the operand, which may be incomparable
        value = operand(values)
        if not isinstance(value, str):
            return False
        return relation(value, text) is not negated

    return verdict


def _among(operand: Reader, texts: frozenset[str], negated: bool) -> Verdict:
    def verdict(values: Values) -> bool | None:
        value = operand(values)
        if not isinstance(value, str):
            return None
        return (value in texts) is not negated

    return verdict
