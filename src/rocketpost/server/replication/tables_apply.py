"""Applies the tables that a master sends to the tables of a slave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from rocketpost.codec.bodies.assignment import decode_request_modes
from rocketpost.codec.bodies.followed_tables import TableText
from rocketpost.codec.bodies.group import decode_group_table
from rocketpost.codec.bodies.offset import decode_offset_table
from rocketpost.codec.bodies.timer import TimerCheckPoint, decode_timer_metrics
from rocketpost.codec.bodies.topic import decode_topic_table
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.server.context import BrokerContext
from rocketpost.server.replication import tables_feed as feed
from rocketpost.server.tables.persistence import Owner
from rocketpost.store.deleted_topics import DeletedTopic

PROGRESS: Final = frozenset(
    {feed.DELETIONS, feed.ORDER_INFO, feed.OFFSETS, feed.DELAYS, feed.TIMER}
)
"""Tables that refer to positions or offsets, which the log must have reached first."""


class TablesReplica:
    """Applies tables of the master to those of this broker. Owned by the loop."""

    def __init__(self, context: BrokerContext) -> None:
        tables = context.tables
        self._tables = tables
        self._store = context.store
        self._persistence = context.persistence
        self._apply: dict[str, Callable[[TableText], None]] = {
            feed.TOPICS: lambda table: tables.topics.follow(decode_topic_table(table.text)),
            feed.GROUPS: lambda table: tables.groups.follow(decode_group_table(table.text)),
            feed.AUTO_TOPICS: lambda table: tables.topics.auto.follow(table.text),
            feed.AUTO_GROUPS: lambda table: tables.groups.auto.follow(table.text),
            feed.REQUEST_MODES: lambda table: tables.modes.follow(decode_request_modes(table.text)),
            feed.NAMED_FILTERS: lambda table: tables.named.follow(table.text),
            feed.ORDER_INFO: lambda table: tables.batches.follow(table.text),
            feed.OFFSETS: lambda table: tables.offsets.follow(
                decode_offset_table(table.text), is_whole=table.is_whole
            ),
            feed.DELAYS: lambda table: tables.delays.follow(table.text),
            feed.TIMER: self._take_timer,
            feed.ACCESS: lambda table: tables.access.follow(table.text),
        }

    async def apply(self, table: TableText) -> None:
        """Apply one table of the master.

        Raises:
            RocketpostError: The text is malformed, or queues cannot be deleted.
        """
        if table.name == feed.DELETIONS:
            await self._delete(table.text)
        elif (apply := self._apply.get(table.name)) is not None:  # a newer master has more
            apply(table)

    async def save(self) -> None:
        """Wait until topics, groups, modes and filters are on disk; progress is saved in rounds.

        Raises:
            StoreError: A table could not be written; its last saved version is still there.
        """
        await self._persistence.save_urgent()
        await self._persistence.save(Owner.REQUEST_MODES)
        await self._persistence.save(Owner.NAMED_FILTERS)
        await self._persistence.save(Owner.ACCESS)

    def _take_timer(self, table: TableText) -> None:
        try:
            found = msgspec.json.decode(table.text, type=feed.TimerText)
            check_point = TimerCheckPoint(*found.check_point)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
            raise RemoteProtocolError(f"bad progress of a timer: {error}") from None
        self._tables.master_timer.follow(check_point, left_before=found.left_before)
        self._tables.master_timer.follow_metrics(decode_timer_metrics(bytes(found.metrics)))

    async def _delete(self, text: bytes) -> None:
        try:
            deletions = msgspec.json.decode(text, type=dict[str, DeletedTopic])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteProtocolError(f"bad list of deleted topics: {error}") from None
        rest = self._store.deletions.follow(deletions)
        if rest is not None:
            try:
                await asyncio.to_thread(rest.finish_blocking)
            except OSError as error:
                raise StoreError(f"deleted topics cannot be noted: {error}") from error
