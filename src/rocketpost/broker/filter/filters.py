"""Filters of consumers that need more than tags.

Each expression is compiled once and shared by all waiting pulls with the same text. Invalid
expressions are remembered as well, since their senders ask again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from rocketpost.broker.filter.matching import Matcher, RecordFilter, RetryFilter, Unpack
from rocketpost.broker.filter.table import FilterTable
from rocketpost.codec.bodies.filter import FilterData
from rocketpost.codec.faults import (
    FilterDataNotExist,
    FilterDataNotLatest,
    ServerError,
    SubscriptionParseFailed,
)
from rocketpost.errors import FilterError
from rocketpost.filter import compile_filter
from rocketpost.filter.tokens import LENGTH_MAX
from rocketpost.model.group import SQL92
from rocketpost.model.names import RETRY_PREFIX

CACHE_MAX: Final = 1024
"""Compiled expressions that are kept."""


class FilterRules(NamedTuple):
    """Settings of the broker that concern filters; they may change at run time."""

    enabled: bool = True
    filters_retries: bool = False


class Filters:
    """Compiles expressions and finds those of groups. Owned by the event loop.

    Args:
        table: The filters of the groups.
        unpack: Decompresses bodies.
        resolve: Returns the text of a named filter; raises ``FilterError``.

    Attributes:
        rules: The settings in force.
    """

    def __init__(
        self,
        *,
        table: FilterTable,
        unpack: Unpack,
        resolve: Callable[[str], str] | None = None,
    ) -> None:
        self.table = table
        self.rules = FilterRules()
        self._unpack = unpack
        self._resolve = resolve
        self._compiled: OrderedDict[str, RecordFilter | FilterError] = OrderedDict()

    def check(self, kind: str | None, text: str | None) -> RecordFilter:
        """Return the filter that a subscription asks for.

        Raises:
            ServerError: Filters are switched off.
            SubscriptionParseFailed: The expression is wrong, or of an unknown type.
        """
        self._check_enabled(kind)
        if kind != SQL92:
            raise SubscriptionParseFailed(f"filters of type {kind} are unknown; use TAG or {SQL92}")
        found = self._find(text or "")
        if isinstance(found, FilterError):
            raise SubscriptionParseFailed(f"the SQL92 filter is wrong {found}")
        return found

    def of_group(self, topic: str, group: str, version: int) -> RecordFilter:
        """Return the filter that a group sent with its heartbeats.

        Args:
            topic: The topic.
            group: The group.
            version: Version of the subscription that a member has.

        Raises:
            ServerError: Filters are switched off.
            FilterDataNotExist: The group sent none.
            FilterDataNotLatest: A member has a newer one.
            SubscriptionParseFailed: The expression is wrong.
        """
        self._check_enabled(SQL92)
        data = self.table.find(topic, group)
        if data is None:
            raise FilterDataNotExist(f"this broker has no filter of the group {group} for {topic}")
        if data.client_version < version:
            raise FilterDataNotLatest(
                f"the filter of the group {group} for {topic} is older than the pull"
            )
        return self.check(data.expression_type, data.expression)

    def of_retries(self, topic: str) -> Matcher | None:
        """Return the matcher of a group's retry topic, if the settings ask for one."""
        if not self.rules.filters_retries or not topic.startswith(RETRY_PREFIX):
            return None
        return RetryFilter(topic.removeprefix(RETRY_PREFIX), self.find_last)

    def find_last(self, topic: str, group: str) -> RecordFilter | None:
        """Return the current or last filter of a group; None if there is no usable one."""
        data = self.data(topic, group)
        found = None if data is None else self._find(data.expression)
        return found if isinstance(found, RecordFilter) else None

    def data(self, topic: str, group: str) -> FilterData | None:
        """Return the filter data of a group; None if filters are switched off."""
        return self.table.find(topic, group) if self.rules.enabled else None

    def users(self, name: str) -> list[str]:
        """Return the groups that are online and use a named filter."""
        found = set()
        for data in self.table:
            known = None if data.dead_time else self.find_last(data.topic, data.consumer_group)
            if known is not None and name in known.expression.named:
                found.add(data.consumer_group)
        return sorted(found)

    def forget(self) -> None:
        """Forget all compiled expressions: a named filter has changed."""
        self._compiled.clear()

    def _check_enabled(self, kind: str | None) -> None:
        if not self.rules.enabled:
            raise ServerError(
                f"this broker does not filter by {kind}: enablePropertyFilter is false"
            )

    def _find(self, text: str) -> RecordFilter | FilterError:
        if len(text) > LENGTH_MAX:  # refused, and not worth remembering
            return FilterError(f"the expression has {len(text)} characters, over {LENGTH_MAX}")
        found = self._compiled.get(text)
        if found is not None:
            self._compiled.move_to_end(text)
            return found
        try:
            expression = compile_filter(text, resolve=self._resolve)
            found = RecordFilter(expression, unpack=self._unpack)
        except FilterError as error:
            found = error.with_traceback(None)
        self._compiled[text] = found
        if len(self._compiled) > CACHE_MAX:
            self._compiled.popitem(last=False)
        return found
