"""The tree of a filter expression, and the rules for building it.

Each function makes one node and refuses what RocketMQ refuses when it reads an expression: operands
that can never be compared. A chain of ANDs or ORs is one node, so that only real nesting is deep.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from rocketpost.errors import FilterError
from rocketpost.filter.values import Value, compare

DEPTH_MAX: Final = 64
"""Maximum nesting of expressions."""

Relation = Literal[">", ">=", "<", "<="]
TextRelation = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an expression."""

    position: int
    """Index of its first character, counted from 1."""
    depth: int = 1


class Constant(Node, frozen=True, kw_only=True):
    """A literal."""

    value: Value


class Property(Node, frozen=True, kw_only=True):
    """A property of the message."""

    name: str


class BodyPath(Node, frozen=True, kw_only=True):
    """A value inside the JSON body of the message."""

    path: tuple[str | int, ...]


class Negative(Node, frozen=True, kw_only=True):
    """The negative of a number; unknown for other values."""

    operand: Node


class Truth(Node, frozen=True, kw_only=True):
    """A node that is true, false or unknown."""


class TruthLiteral(Truth, frozen=True, kw_only=True):
    """TRUE, FALSE or NULL."""

    value: bool | None


class Cast(Truth, frozen=True, kw_only=True):
    """A property or a path used as a truth value."""

    operand: Node


class Not(Truth, frozen=True, kw_only=True):
    """NOT."""

    operand: Truth


class Chain(Truth, frozen=True, kw_only=True):
    """Operands joined by AND, or by OR."""

    is_and: bool
    operands: tuple[Truth, ...]


class Equal(Truth, frozen=True, kw_only=True):
    """``=``."""

    left: Node
    right: Node


class IsNull(Truth, frozen=True, kw_only=True):
    """IS NULL."""

    operand: Node


class Comparison(Truth, frozen=True, kw_only=True):
    """``>``, ``>=``, ``<`` or ``<=``."""

    relation: Relation
    left: Node
    right: Node


class Search(Truth, frozen=True, kw_only=True):
    """CONTAINS, STARTSWITH or ENDSWITH."""

    relation: TextRelation
    operand: Node
    text: str
    negated: bool


class Among(Truth, frozen=True, kw_only=True):
    """IN."""

    operand: Node
    texts: frozenset[str]
    negated: bool


class Named(Truth, frozen=True, kw_only=True):
    """MATCHES('name'): a named filter of the broker."""

    name: str


def _below(position: int, *parts: Node) -> int:
    depth = 1 + max(part.depth for part in parts)
    if depth > DEPTH_MAX:
        raise FilterError(f"the expression nests deeper than {DEPTH_MAX} levels", position)
    return depth


def as_truth(node: Node) -> Truth:
    """Return a node as a truth value.

    Raises:
        FilterError: The node can never be one.
    """
    if isinstance(node, Truth):
        return node
    if isinstance(node, Property | BodyPath):
        return Cast(position=node.position, operand=node, depth=_below(node.position, node))
    raise FilterError("this is a value, but a condition is expected here", node.position)


def make_negative(operand: Node, position: int) -> Node:
    """Return ``- operand``."""
    return Negative(position=position, operand=operand, depth=_below(position, operand))


def make_negation(operand: Node, position: int) -> Truth:
    """Return ``NOT operand``."""
    truth = as_truth(operand)
    return Not(position=position, operand=truth, depth=_below(position, truth))


def make_chain(operands: list[Node], *, is_and: bool) -> Truth:
    """Return operands joined by AND or OR."""
    truths = tuple(as_truth(each) for each in operands)
    position = truths[0].position
    return Chain(position=position, is_and=is_and, operands=truths, depth=_below(position, *truths))


def make_equality(left: Node, right: Node) -> Truth:
    """Return ``left = right``."""
    for each in (left, right):
        if isinstance(each, TruthLiteral) and each.value is None:
            raise FilterError("nothing equals NULL; write IS NULL or IS NOT NULL", each.position)
    if isinstance(left, TruthLiteral) and isinstance(right, Constant):
        raise FilterError("TRUE and FALSE cannot equal a number or a string", right.position)
    position = left.position
    return Equal(position=position, left=left, right=right, depth=_below(position, left, right))


def make_is_null(operand: Node) -> Truth:
    """Return ``operand IS NULL``."""
    position = operand.position
    return IsNull(position=position, operand=operand, depth=_below(position, operand))


def make_ordering(relation: Relation, left: Node, right: Node) -> Truth:
    """Return ``left relation right``."""
    for each in (left, right):
        if isinstance(each, Constant) and isinstance(each.value, str):
            raise FilterError(f"{relation} compares numbers, but this is a string", each.position)
        if isinstance(each, Truth):
            raise FilterError(
                f"{relation} compares numbers, but this is a condition", each.position
            )
    position = left.position
    return Comparison(
        position=position,
        relation=relation,
        left=left,
        right=right,
        depth=_below(position, left, right),
    )


def make_between(value: Node, low: Node, high: Node, *, negated: bool) -> Truth:
    """Return ``value [NOT] BETWEEN low AND high``."""
    if negated:
        return make_chain(
            [make_ordering("<", value, low), make_ordering(">", value, high)], is_and=False
        )
    parts: list[Node] = [make_ordering(">=", value, low), make_ordering("<=", value, high)]
    if (
        isinstance(low, Constant)
        and isinstance(high, Constant)
        and compare(low.value, high.value) > 0
    ):
        raise FilterError(
            f"BETWEEN expects the smaller value first, but {low.value} is above {high.value}",
            low.position,
        )
    return make_chain(parts, is_and=True)


def make_search(operand: Node, relation: TextRelation, text: str, *, negated: bool) -> Truth:
    """Return ``operand [NOT] CONTAINS 'text'``, or the same with another text relation."""
    position = operand.position
    return Search(
        position=position,
        operand=operand,
        relation=relation,
        text=text,
        negated=negated,
        depth=_below(position, operand),
    )


def make_among(operand: Node, texts: list[str], *, negated: bool) -> Truth:
    """Return ``operand [NOT] IN ('a', 'b')``."""
    if not isinstance(operand, Property | BodyPath):
        raise FilterError("IN needs a property before it", operand.position)
    position = operand.position
    return Among(
        position=position,
        operand=operand,
        texts=frozenset(texts),
        negated=negated,
        depth=_below(position, operand),
    )
