"""Applies the table records of a group to the tables of a member that follows.

A member that follows applies every change of the tables when it is committed and visible. A leader
changes its own tables first, and has the change committed before it is answered. So the tables of a
leader that was deposed may have changes that the group never committed. When it follows again, its
tables are restored from the newest copy in the log and the changes after it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from rocketpost.codec.bodies.followed_tables import TableText, decode_tables
from rocketpost.errors import RocketpostError, StoreError
from rocketpost.model.ids import Position
from rocketpost.model.names import REPLICATED_TABLES_TOPIC
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.features.dedup_recovery import producer_limits, snapshot_file
from rocketpost.server.group.tables import changes
from rocketpost.server.replication import tables_feed as feed
from rocketpost.server.replication.tables_apply import TablesReplica
from rocketpost.server.thread_work import finish_in_thread
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.descriptors import may_pass
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.member.table_records import (
    TableRecord,
    newest_copy,
    read_tables,
    table_queue,
)

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0


class TableReader(Feature):
    """Applies the tables of the group while this broker follows. Owned by the loop.

    Args:
        context: The state of the broker.
        is_readable: Whether the log can be read; one that is damaged is replaced, with its tables.
    """

    def __init__(self, context: BrokerContext, *, is_readable: bool = True) -> None:
        self._is_readable = is_readable
        self._context = context
        self._store = context.store
        self._replica = TablesReplica(context)
        self._news = asyncio.Event()
        self._next_offset = 0
        self._copy_position: int | None = None
        self._log_start = 0
        self.applied_count = 0
        """Number of changes that were applied, copies included."""

    async def open(self) -> None:
        """Restore the tables from the newest copy in the log, and the changes after it.

        A log without a copy belongs to a group that is about to begin; its first leader has the
        tables of its files.

        Raises:
            StoreError: A record is damaged, or queues cannot be deleted.
        """
        self._context.persistence.replicate = None  # only a leader has changes committed
        # A client that uses a new group here uses it at the leader, too, which creates it.
        self._context.tables.groups.keeps_new = False
        if not self._is_readable:
            return
        self._news.set()
        copy = newest_copy(self._store)
        if copy is None:
            queue = table_queue(self._store)
            self._next_offset = int(queue.end) if queue is not None else 0
            return
        self._copy_position = copy.position
        records = list(self._take(copy.offset))
        await self._apply(changes.fold(_tables_of(records)))
        logger.info(
            "tables restored from the log: position=%s changes=%s", copy.position, len(records)
        )

    async def run(self) -> None:
        """Apply changes as they become visible, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self.catch_up()
            except (RocketpostError, OSError) as error:
                logger.error("tables not taken over, will be tried again: reason=%s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._news.set()

    async def catch_up(self) -> None:
        """Apply every change that is visible.

        Raises:
            RocketpostError: A record is damaged, or queues cannot be deleted; call it again.
            OSError: A record cannot be read now; call it again.
        """
        if not self._is_readable:
            return
        for record in read_tables(self._store, self._next_offset):
            await self._apply(decode_tables(record.data))
            self._note(record)

    def arrival_listeners(self) -> Sequence[ArrivalListener]:
        """Return the function that notices new records."""
        return [self._note_arrivals]

    def oldest_needed_position(self) -> Position:
        """Return the position from which on this member must keep the log.

        The newest copy of the tables is needed to restore them. The messages that the leader keeps
        may be needed for delivery: delayed and timed ones, and halves of transactions. This member
        may have to do that, and only a leader can move them out of a segment that it deletes.
        """
        if self._copy_position is None:
            return Position(0)
        return Position(min(self._log_start, self._copy_position))

    def runtime_values(self) -> dict[str, str]:
        """Return the number of changes taken over."""
        return {"groupTableChanges": str(self.applied_count)}

    def _note_arrivals(self, arrivals: list[Arrival]) -> None:
        if any(arrival.topic == REPLICATED_TABLES_TOPIC for arrival in arrivals):
            self._news.set()

    def _take(self, offset: int) -> Iterable[TableRecord]:
        for record in read_tables(self._store, offset):
            yield record
            self._note(record)

    def _note(self, record: TableRecord) -> None:
        self._next_offset = record.offset + 1
        self.applied_count += 1
        if record.is_copy:
            self._copy_position = record.position

    async def _apply(self, tables: Iterable[TableText]) -> None:
        for table in tables:
            await self._apply_table(table)

    async def _apply_table(self, table: TableText) -> None:
        tables = self._context.tables
        match table.name:
            case feed.TOPICS if not table.is_whole:
                rows, gone = changes.decode_topic_changes(table.text)
                tables.topics.follow(rows, gone=gone)
            case feed.GROUPS if not table.is_whole:
                groups, gone = changes.decode_group_changes(table.text)
                tables.groups.follow(groups, gone=gone)
            case changes.LOCKS:
                holders = changes.decode_locks(table.text)
                self._context.locks.follow(holders, is_whole=table.is_whole)
            case changes.GROUP_FILTERS:
                tables.filters.follow(table.text)
            case changes.LOG_START:
                self._log_start = changes.decode_log_start(table.text)
            case changes.PRODUCERS:
                await finish_in_thread(self._save_producers_blocking, table.text)
            case _:
                await self._replica.apply(table)

    def _save_producers_blocking(self, text: bytes) -> None:
        """Keep the leader's snapshot: a member that becomes the leader reads the log from there.

        If the disk is full, the snapshot before is kept, and more of the log is read.

        Raises:
            StoreError: It cannot be saved.
        """
        limits = producer_limits(self._context.broker_config)
        try:
            snapshot_file(self._store, self._store.files, limits).save_blocking(text)
        except OSError as error:
            if not may_pass(error):
                raise StoreError(f"the producers could not be saved: {error}") from error
            logger.warning("a snapshot of producers is not kept: reason=%s", error)


def _tables_of(records: Iterable[TableRecord]) -> Iterable[TableText]:
    for record in records:
        yield from decode_tables(record.data)
