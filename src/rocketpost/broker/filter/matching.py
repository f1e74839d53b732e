"""Matches records where they lie in the log, without decoding them.

A property is found by searching the property string for its mark; that costs less than a map of all
properties as long as an expression reads a few of them, and the bodies are not touched unless the
expression looks into them (ADR 0024).

The cost of a match is counted in units of about a tenth of a microsecond, by what was read and
compared. A caller that matches many records stops when a budget is spent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from rocketpost.codec.properties import find_property
from rocketpost.codec.record import locate
from rocketpost.errors import CorruptRecord, RemoteProtocolError
from rocketpost.filter import Expression
from rocketpost.filter.expression import PROPERTY_PREFIX
from rocketpost.filter.values import Value
from rocketpost.model.sysflag import COMPRESSED

WORK_MAX: Final = 100_000
"""What one request may spend on matching: about ten milliseconds."""
BODY_BYTES_MAX: Final = 1024 * 1024
"""Larger bodies are not looked into."""

_BASE: Final = 16
_PROPERTIES_USUAL: Final = 1024
_BYTES_READ: Final = 32
_CHARACTERS_PER_TAG: Final = 8

Unpack = Callable[[bytes, int, int], bytes]
"""Returns a body as it was before it was compressed; takes it, its sysFlag and a bound."""


class Matcher(Protocol):
    """Lets records through or not."""

    @property
    def weight(self) -> int:
        """Memory that it takes, in tags that a subscription might have instead."""
        ...

    def matches(self, record: memoryview) -> tuple[bool, int]:
        """Return whether a record is let through, and what it cost to find out."""
        ...


class RecordFilter:
    """Matches records against an expression. Immutable."""

    __slots__ = ("_unpack", "expression")

    def __init__(self, expression: Expression, *, unpack: Unpack) -> None:
        self.expression = expression
        self._unpack = unpack

    @property
    def weight(self) -> int:
        """Memory that it takes, in tags that a subscription might have instead."""
        return _BASE + len(self.expression.text) // _CHARACTERS_PER_TAG

    def matches(self, record: memoryview) -> tuple[bool, int]:
        """Return whether a record matches, and what it cost to find out."""
        expression = self.expression
        try:
            sys_flag, body_at, body_end, properties_at = locate(record)
        except CorruptRecord:
            return True, _BASE  # the check of what is served names it
        padded = PROPERTY_PREFIX + record[properties_at:]
        values: list[Value] = [find_property(padded, mark) for mark in expression.marks]
        work = _BASE + expression.operand_count
        if len(padded) > _PROPERTIES_USUAL:
            # Whatever reads or searches a text may read all of it.
            work += (len(values) + expression.operand_count) * len(padded) // _BYTES_READ
        if expression.reads_body:
            body, cost = self._body(record[body_at:body_end], sys_flag)
            values += expression.body_values(body)
            work += cost
        return expression.accepts(values), work

    def _body(self, body: memoryview, sys_flag: int) -> tuple[bytes | memoryview | None, int]:
        if len(body) > BODY_BYTES_MAX:
            return None, 0
        if not sys_flag & COMPRESSED:
            return body, len(body) // _BYTES_READ
        try:
            plain = self._unpack(bytes(body), sys_flag, BODY_BYTES_MAX)
        except RemoteProtocolError:
            return None, BODY_BYTES_MAX // _BYTES_READ
        return plain, 2 * len(plain) // _BYTES_READ


class RetryFilter:
    """Matches records of a retry topic by the filter of the topic that each came from.

    Those of one group are equal, so that a record is matched once for all its waiting pulls.

    Args:
        group: The group.
        find: Returns the filter that a group has for a topic, None if it has none.
    """

    __slots__ = ("_find", "_group")

    def __init__(self, group: str, find: Callable[[str, str], RecordFilter | None]) -> None:
        self._group = group
        self._find = find

    @property
    def weight(self) -> int:
        """Memory that it takes, in tags that a subscription might have instead."""
        return _BASE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RetryFilter) and other._group == self._group

    def __hash__(self) -> int:
        return hash(self._group)

    def matches(self, record: memoryview) -> tuple[bool, int]:
        """Return whether a record matches, and what it cost to find out."""
        try:
            _, _, _, properties_at = locate(record)
        except CorruptRecord:
            return True, _BASE
        topic = find_property(PROPERTY_PREFIX + record[properties_at:], _RETRY_MARK)
        found = self._find(topic, self._group) if topic is not None else None
        if found is None:
            return True, _BASE
        matches, work = found.matches(record)
        return matches, work + _BASE


_RETRY_MARK: Final = b"\x02RETRY_TOPIC\x01"
