"""Matches records in place in the log, without decoding them.

A property is found by searching the property string for its mark. That costs less than a map of all
properties as long as an expression reads only a few. Bodies are not touched unless the expression
reads them (ADR 0024).

The cost of a match is counted in units of about 0.1 microseconds, by the bytes read and compared. A
caller that matches many records stops when its budget is spent.
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
"""Cost that one request may spend on matching: about ten milliseconds."""
BODY_BYTES_MAX: Final = 1024 * 1024
"""Size above which bodies are not examined."""

_BASE: Final = 16
_PROPERTIES_USUAL: Final = 1024
_BYTES_READ: Final = 32
_CHARACTERS_PER_TAG: Final = 8

Unpack = Callable[[bytes, int, int], bytes]
"""Decompresses a body; takes the body, its sysFlag and a bound on the size."""


class Matcher(Protocol):
    """Accepts or rejects records."""

    @property
    def weight(self) -> int:
        """Memory that this filter takes, as an equivalent number of subscribed tags."""
        ...

    def matches(self, record: memoryview) -> tuple[bool, int]:
        """Return whether a record is accepted, and the cost of matching it."""
        ...


class RecordFilter:
    """Matches records against an expression. Immutable."""

    __slots__ = ("_unpack", "expression")

    def __init__(self, expression: Expression, *, unpack: Unpack) -> None:
        self.expression = expression
        self._unpack = unpack

    @property
    def weight(self) -> int:
        """Memory that this filter takes, as an equivalent number of subscribed tags."""
        return _BASE + len(self.expression.text) // _CHARACTERS_PER_TAG

    def matches(self, record: memoryview) -> tuple[bool, int]:
        """Return whether a record matches, and the cost of matching it."""
        expression = self.expression
        try:
            sys_flag, body_at, body_end, properties_at = locate(record)
        except CorruptRecord:
            return True, _BASE  # the check before serving reports the damage
        padded = PROPERTY_PREFIX + record[properties_at:]
        values: list[Value] = [find_property(padded, mark) for mark in expression.marks]
        work = _BASE + expression.operand_count
        if len(padded) > _PROPERTIES_USUAL:
            # An expression that reads or searches a text may read all of it.
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
    """Matches records of a retry topic by the filter of each record's original topic.

    Filters of one group compare equal, so a record is matched once for all its waiting pulls.

    Args:
        group: The group.
        find: Returns a group's filter for a topic, None if it has none.
    """

    __slots__ = ("_find", "_group")

    def __init__(self, group: str, find: Callable[[str, str], RecordFilter | None]) -> None:
        self._group = group
        self._find = find

    @property
    def weight(self) -> int:
        """Memory that this filter takes, as an equivalent number of subscribed tags."""
        return _BASE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RetryFilter) and other._group == self._group

    def __hash__(self) -> int:
        return hash(self._group)

    def matches(self, record: memoryview) -> tuple[bool, int]:
        """Return whether a record matches, and the cost of matching it."""
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
