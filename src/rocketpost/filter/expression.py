"""Compiled filters and their evaluation on messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from rocketpost.errors import FilterError
from rocketpost.filter.compiling import Compiler, Slots
from rocketpost.filter.nodes import Named, Node, Truth
from rocketpost.filter.parser import OPERANDS_MAX, parse
from rocketpost.filter.values import Value

Resolve = Callable[[str], str]
"""Returns the text of a named filter; raises ``FilterError``."""

PROPERTY_PREFIX: Final = b"\x02"
PROPERTY_MARK: Final = b"\x02%s\x01"


class Expression:
    """A compiled filter. Immutable; the same text always gives the same verdict on a message.

    Attributes:
        text: The expression as the user wrote it.
        names: The properties that it reads.
        paths: The parts of the body that it reads.
        marks: The bytes with which each property starts in a property string, after
            ``PROPERTY_PREFIX``.
        named: The named filters that it refers to.
        operand_count: Maximum number of properties and values compared per message.
    """

    __slots__ = ("_verdict", "marks", "named", "names", "operand_count", "paths", "text")

    def __init__(self, text: str, tree: Truth, named: Callable[[Named], Truth]) -> None:
        slots = Slots()
        self.text = text
        self.named = frozenset(each.name for each in _find_named(tree))
        self.operand_count = _operands(tree, named)
        if self.operand_count > OPERANDS_MAX:
            raise FilterError(f"with named filters, over {OPERANDS_MAX} properties and values")
        # Properties precede paths in the list of values, whatever their order in the text.
        body: dict[tuple[str | int, ...], None] = {}
        names: dict[str, None] = {}
        verdict = Compiler(slots, named).compile_verdict(tree)
        for key in slots.places:
            if isinstance(key, str):
                names[key] = None
            else:
                body[key] = None
        self.names = tuple(names)
        self.paths = tuple(body)
        self.marks = tuple(PROPERTY_MARK % name.encode() for name in names)
        places = tuple(slots.places)
        if body:
            wanted: list[str | tuple[str | int, ...]] = [*names, *body]
            picks = [wanted.index(place) for place in places]
            self._verdict: Callable[[Sequence[Value]], bool | None] = lambda values: verdict(
                [values[pick] for pick in picks]
            )
        else:
            self._verdict = verdict

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"

    @property
    def reads_body(self) -> bool:
        """Whether it reads bodies."""
        return bool(self.paths)

    def evaluate(
        self, properties: Mapping[str, str], body: bytes | memoryview | None = None
    ) -> bool | None:
        """Return True, False, or None for unknown.

        Raises:
            ValueError: Two values cannot be compared; the message does not match.
        """
        values: list[Value] = [properties.get(name) for name in self.names]
        return self._verdict([*values, *self.body_values(body)] if self.paths else values)

    def matches(
        self, properties: Mapping[str, str], body: bytes | memoryview | None = None
    ) -> bool:
        """Return whether a message matches; unknown and incomparable values do not."""
        try:
            return self.evaluate(properties, body) is True
        except (ValueError, ArithmeticError):
            return False

    def accepts(self, values: Sequence[Value]) -> bool:
        """Return whether a message matches, given the values of ``names`` and then ``paths``."""
        try:
            return self._verdict(values) is True
        except (ValueError, ArithmeticError):
            return False

    def body_values(self, body: bytes | memoryview | None) -> list[Value]:
        """Return the values of ``paths``; all unknown if the body is not JSON."""
        nothing: list[Value] = [None] * len(self.paths)
        if body is None or not self.paths:
            return nothing
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return nothing
        return [_value_at(found, path) for path in self.paths]


def compile_filter(text: str, *, resolve: Resolve | None = None, paths: bool = False) -> Expression:
    """Compile an expression.

    Args:
        text: The expression.
        resolve: Returns the text of a filter named by MATCHES; without it MATCHES is refused.
        paths: Whether the expression itself may read bodies.

    Raises:
        FilterError: The expression is wrong; the text says where and why.
    """

    def parse_named(node: Named) -> Truth:
        assert resolve is not None
        try:
            return parse(resolve(node.name), paths=True)
        except FilterError as error:
            raise FilterError(f"MATCHES({node.name!r}): {error}", node.position) from None

    return Expression(text, parse(text, paths=paths, named=resolve is not None), parse_named)


def check_filter(text: str) -> None:
    """Raise if an expression cannot be used in a subscription.

    Named filters are not looked up: only brokers know them.

    Raises:
        FilterError: The expression is wrong; the text says where and why.
    """
    parse(text, named=True)


def _parts(node: Node) -> Iterator[Node]:
    for name in ("operand", "left", "right"):
        part = getattr(node, name, None)
        if part is not None:
            yield part
    yield from getattr(node, "operands", ())


def _find_named(node: Node) -> Iterator[Named]:
    """Yield every reference to a named filter."""
    if isinstance(node, Named):
        yield node
    for part in _parts(node):
        yield from _find_named(part)


def _operands(node: Node, named: Callable[[Named], Truth]) -> int:
    """Return the number of properties and values, including those of named filters."""
    if isinstance(node, Named):
        return _operands(named(node), named)
    return sum(_operands(part, named) for part in _parts(node)) or 1


def _value_at(value: Any, path: tuple[str | int, ...]) -> Value:
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and step < len(value) else None
    return value if isinstance(value, bool | int | float | str) else None
