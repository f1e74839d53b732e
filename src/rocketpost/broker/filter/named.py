"""Named filters: stored by administrators, used by subscribers as ``MATCHES('name')``.

They may read JSON bodies, which subscribers' own expressions may not, because an administrator
decides whether that is worth its cost. They replace RocketMQ's filter servers, with expressions
instead of code (ADR 0025).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from rocketpost.codec.bodies.named_filter import (
    NamedFilter,
    NamedFilterTable,
    decode_named_filters,
    encode_named_filters,
)
from rocketpost.codec.faults import (
    IllegalOperation,
    InvalidParameter,
    NoPermission,
    SubscriptionParseFailed,
    SystemBusy,
)
from rocketpost.errors import FilterError, RemoteProtocolError, StoreError
from rocketpost.filter import compile_filter
from rocketpost.model.clock import Clock
from rocketpost.model.topic import DataVersion

FILTERS_MAX: Final = 1000
"""Maximum number of named filters."""
_is_name = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch


class NamedFilters:
    """The named filters of one broker; the table of ``namedFilters.json``.

    Attributes:
        enabled: Whether filters may be stored or used.
        on_change: Called after each change.
        users: Returns the groups that use a filter now.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._filters: dict[str, NamedFilter] = {}
        self._version = DataVersion()
        self.enabled = False
        self.on_change: Callable[[], None] = lambda: None
        self.users: Callable[[str], list[str]] = lambda name: []
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""

    def __len__(self) -> int:
        return len(self._filters)

    def text(self, name: str) -> str:
        """Return the expression of a filter.

        Raises:
            FilterError: No filter has this name, or named filters are switched off.
        """
        if not self.enabled:
            raise FilterError(
                "named filters are switched off on this broker: namedFilterEnable is false"
            )
        found = self._filters.get(name)
        if found is None:
            raise FilterError(
                "this broker has no named filter of that name; see `mqadmin filterList`"
            )
        return found.expression

    def put(self, name: str, expression: str) -> None:
        """Store a filter, replacing an earlier one of the same name.

        Raises:
            NoPermission: Named filters are switched off.
            InvalidParameter: The name is not allowed.
            SubscriptionParseFailed: The expression is wrong.
            SystemBusy: There are too many already.
        """
        self._check_enabled()
        if not _is_name(name):
            raise InvalidParameter(
                "the name of a filter must have 1 to 64 letters, digits or . _ -"
            )
        try:
            compile_filter(expression, paths=True)
        except FilterError as error:
            raise SubscriptionParseFailed(f"the filter is wrong {error}") from None
        if name not in self._filters and len(self._filters) >= FILTERS_MAX:
            raise SystemBusy(
                f"[OVERLOAD]this broker already has {FILTERS_MAX} named filters; delete one first"
            )
        self._filters[name] = NamedFilter(
            name=name, expression=expression, update_timestamp=self._clock.now_ms()
        )
        self._note_change()

    def delete(self, name: str) -> None:
        """Delete a filter.

        Raises:
            NoPermission: Named filters are switched off.
            InvalidParameter: No filter has this name.
            IllegalOperation: A group that is online uses it.
        """
        self._check_enabled()
        if name not in self._filters:
            raise InvalidParameter(f"there is no named filter {name!r}")
        users = self.users(name)
        if users:
            raise IllegalOperation(f"the named filter {name} is in use by {', '.join(users[:5])}")
        del self._filters[name]
        self._note_change()

    def body(self) -> bytes:
        """Return the body of GET_NAMED_FILTERS."""
        return encode_named_filters(self._table())

    def to_json(self) -> bytes:
        """Return the text of ``namedFilters.json``."""
        return encode_named_filters(self._table())

    def load(self, data: bytes) -> None:
        """Load the table from ``namedFilters.json``.

        Raises:
            StoreError: The text is not such a table, or holds an invalid filter.
        """
        try:
            table = decode_named_filters(data)
            for stored in table.filters.values():
                compile_filter(stored.expression, paths=True)
        except (RemoteProtocolError, FilterError) as error:
            raise StoreError(f"namedFilters.json cannot be read: {error}") from None
        self._filters = dict(table.filters)
        self._version = table.data_version

    def follow(self, data: bytes) -> None:
        """Apply the table of the master, as :meth:`to_json` returns it.

        Raises:
            StoreError: The text is not such a table, or holds an invalid filter.
        """
        before = self._filters, self._version
        self.load(data)
        if (self._filters, self._version) != before:
            self.revision += 1
            self.on_change()

    def _table(self) -> NamedFilterTable:
        return NamedFilterTable(
            data_version=self._version,
            enabled=self.enabled,
            filters=dict(sorted(self._filters.items())),
        )

    def _check_enabled(self) -> None:
        if not self.enabled:
            raise NoPermission(
                "named filters are switched off on this broker: namedFilterEnable is false"
            )

    def _note_change(self) -> None:
        self._version = self._version.next(self._clock.now_ms())
        self.revision += 1
        self.on_change()
