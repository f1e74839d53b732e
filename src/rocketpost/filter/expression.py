"""A filter that is ready to judge messages."""

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
"""Returns the text of a filter that the broker keeps, by its name; raises ``FilterError``."""

PROPERTY_PREFIX: Final = b"\x02"
PROPERTY_MARK: Final = b"\x02%s\x01"


class Expression:
    """A compiled filter. Immutable; the same text always judges a message alike.

    Attributes:
        text: As the user wrote it.
        names: The properties that it reads.
        paths: The parts of the body that it reads.
        marks: How each property starts in the property string behind ``PROPERTY_PREFIX``.
        named: The kept filters that it names.
        operand_count: Properties and values that one message is compared with at most.
    """

    __slots__ = ("_verdict", "marks", "named", "names", "operand_count", "paths", "text")

    def __init__(self, text: str, tree: Truth, named: Callable[[Named], Truth]) -> None:
        slots = Slots()
        self.text = text
        self.named = frozenset(each.name for each in _named_in(tree))
        self.operand_count = _operands(tree, named)
        if self.operand_count > OPERANDS_MAX:
            raise FilterError(f"with kept filters, over {OPERANDS_MAX} properties and values")
        # Properties come first in the list of values, whatever the order in the text.
        body: dict[tuple[str | int, ...], None] = {}
        names: dict[str, None] = {}
        verdict = Compiler(slots, named).verdict(tree)
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
        """Whether it looks into bodies."""
        return bool(self.paths)

    def verdict(
        self, properties: Mapping[str, str], body: bytes | memoryview | None = None
    ) -> bool | None:
        """Return True, False, or None if that is unknown.

        Raises:
            ValueError: Two values cannot be compared; the message does not match.
        """
        values: list[Value] = [properties.get(name) for name in self.names]
        return self._verdict([*values, *self.body_values(body)] if self.paths else values)

    def matches(
        self, properties: Mapping[str, str], body: bytes | memoryview | None = None
    ) -> bool:
        """Return whether a message matches: unknown and what cannot be compared do not."""
        try:
            return self.verdict(properties, body) is True
        except (ValueError, ArithmeticError):
            return False

    def accepts(self, values: Sequence[Value]) -> bool:
        """Return whether a message matches, by the values of ``names`` and then ``paths``."""
        try:
            return self._verdict(values) is True
        except (ValueError, ArithmeticError):
            return False

    def body_values(self, body: bytes | memoryview | None) -> list[Value]:
        """Return the values of ``paths``; all unknown if the body is no JSON."""
        nothing: list[Value] = [None] * len(self.paths)
        if body is None or not self.paths:
            return nothing
        try:
            found = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return nothing
        return [_value_at(found, path) for path in self.paths]


def compile_filter(text: str, *, resolve: Resolve | None = None, paths: bool = False) -> Expression:
    """Return the filter that an expression means.

    Args:
        text: The expression.
        resolve: Returns the text of a filter named by MATCHES; without it none can be named.
        paths: Whether the expression itself may look into bodies.

    Raises:
        FilterError: The expression is wrong; says where and why.
    """

    def named(node: Named) -> Truth:
        assert resolve is not None
        try:
            return parse(resolve(node.name), paths=True)
        except FilterError as error:
            raise FilterError(f"MATCHES({node.name!r}): {error}", node.position) from None

    return Expression(text, parse(text, paths=paths, named=resolve is not None), named)


def check_filter(text: str) -> None:
    """Raise if an expression could not be a subscription's.

    Filters that it names are not looked up: only brokers know them.

    Raises:
        FilterError: It is wrong; says where and why.
    """
    parse(text, named=True)


def _parts(node: Node) -> Iterator[Node]:
    for name in ("operand", "left", "right"):
        part = getattr(node, name, None)
        if part is not None:
            yield part
    yield from getattr(node, "operands", ())


def _named_in(node: Node) -> Iterator[Named]:
    """Return every place where a kept filter is named."""
    if isinstance(node, Named):
        yield node
    for part in _parts(node):
        yield from _named_in(part)


def _operands(node: Node, named: Callable[[Named], Truth]) -> int:
    """Return how many properties and values there are, those of kept filters too."""
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
