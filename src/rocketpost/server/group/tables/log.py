"""The leader of a group writes its tables to the log, where every member finds them.

A change of a topic or a group is written at once, before a message that relies on it. Progress
(offsets, delay levels, timer and the like) is written once a second. An administrator gets the
answer when the record of the change is committed (``Persistence.replicate``).

A copy of all tables is written when a leader begins, when the log has begun a new segment, and when
the changes since the last copy are larger than that. So the newest copy is never far from the end
of the log: a member that starts, or gets an empty log from its leader, reads little.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterable, Sequence
from functools import partial
from typing import Final

from rocketpost.codec.bodies.followed_tables import TableText, encode_tables
from rocketpost.errors import StoreError, StoreFull
from rocketpost.model.ids import Position
from rocketpost.server.context import LeaderContext
from rocketpost.server.feature import Feature
from rocketpost.server.group.tables import changes
from rocketpost.server.replication import tables_feed as feed
from rocketpost.server.replication.tables_feed import TableSource, access_source, table_sources
from rocketpost.server.replication.tables_serving import Timer
from rocketpost.server.tables.persistence import Owner
from rocketpost.server.writer.internal_sends import Stored
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.server.writer.queue_deletion import NOTHING_LEFT, UnfinishedDeletion
from rocketpost.store.deleted_topics import DeletedTopic
from rocketpost.store.member.table_records import draft_tables, newest_copy
from rocketpost.store.message_store import MessageStore

logger = logging.getLogger(__name__)

ROUND_SECONDS: Final = 1.0
"""Time between two records of progress, unless offsets are saved more often."""
_BYTES_PER_SECOND: Final = 2 * 1024 * 1024
"""Rate at which a large table that changes all the time is written."""
_CHANGES_MIN: Final = 1024 * 1024
_CHANGES_PER_COPY: Final = 4
_PRODUCERS_BYTES: Final = 16 * 1024 * 1024
"""Growth of the log after which the state of producers is written again."""
_NO_LIMIT: Final = 2**62

_OF_OWNER: Final = {
    Owner.BROKER: {feed.TOPICS, feed.GROUPS, feed.AUTO_TOPICS, feed.AUTO_GROUPS, feed.OFFSETS},
    Owner.DELAY: {feed.DELAYS, feed.TIMER},
    Owner.REQUEST_MODES: {feed.REQUEST_MODES},
    Owner.ORDER: {feed.ORDER_INFO},
    Owner.GROUP_FILTERS: {changes.GROUP_FILTERS},
    Owner.NAMED_FILTERS: {feed.NAMED_FILTERS},
    Owner.ACCESS: {feed.ACCESS},
}
_ONLY_IN_COPIES: Final = frozenset({feed.DELETIONS})
"""Deletions are written one by one, before they happen."""


class TableLog(Feature):
    """Writes the tables of a leader to the log. Owned by the loop.

    Args:
        context: The state of the broker and its leader.
        writer: Stores the records.
        timer: The timer; None if timed messages are switched off.
    """

    def __init__(self, context: LeaderContext, *, writer: LogWriter, timer: Timer | None) -> None:
        self._context = context
        self._store = context.store
        self._writer = writer
        self._tables = context.tables
        self._sources = {each.name: each for each in _sources(context, timer)}
        self._written: dict[str, int] = {}
        self._next_at = dict.fromkeys(self._sources, 0.0)
        self._topics: set[str] = set()
        self._groups: set[str] = set()
        self._newest: Stored | None = None
        self._newest_count = 0
        self._is_begun = False
        self._owes_copy = True
        self._copy_position: int | None = None
        self._copy_bytes = self._changed_bytes = 0
        self._copy_segment = self._producers_end = 0
        self.copy_count = 0
        """Number of copies that this leader wrote."""

    # Life.

    async def open(self) -> None:
        """Let clients hold the queues that they held at the leader before."""
        self._tables.groups.keeps_new = True
        locks = self._context.locks
        locks.hold_followed()
        locks.changed = set()
        self._tables.offsets.end_marking()
        copy = newest_copy(self._store)
        self._copy_position = None if copy is None else copy.position
        self._tables.groups.on_change = self._group_changed
        self._context.persistence.replicate = self.replicate

    def begin(self) -> None:
        """Write a copy of all tables: the log writer accepts messages now."""
        self._is_begun = True
        try:
            self._write_copy()
        except StoreError as error:
            logger.warning("tables not written, will be tried again: reason=%s", error)

    async def run(self) -> None:
        """Write progress, and copies when they are due, until cancelled."""
        seconds = min(ROUND_SECONDS, self._context.broker_config.flush_offsets_ms / 5000)
        loop = asyncio.get_running_loop()
        problem = ""
        while True:
            await asyncio.sleep(seconds)
            try:
                self._write_round(loop.time())
                problem = ""
            except StoreError as error:
                if str(error) != problem:
                    problem = str(error)
                    logger.warning("tables not written, will be tried again: reason=%s", error)

    def settle(self) -> None:
        """Write the last progress of the term, if there is any."""
        if not self._is_begun:
            return
        try:
            self._writer.commit()
            self._write(self._changed_texts(self._sources))
        except StoreError as error:
            logger.warning("the last progress is not written: reason=%s", error)

    def close(self) -> None:
        """Stop noting changes; those that are not written yet stay noted until a restore."""
        self._context.locks.changed = None
        self._tables.groups.on_change = self._context.persistence.note_change

    def oldest_needed_position(self) -> Position | None:
        """Return the position of the newest committed copy of the tables."""
        return None if self._copy_position is None else Position(self._copy_position)

    def runtime_values(self) -> dict[str, str]:
        """Return the number of copies written."""
        return {"groupTableCopies": str(self.copy_count)}

    # Changes.

    def topic_changed(self, topic: str) -> None:
        """Write the change of a topic at once: the next message may rely on it."""
        self._topics.add(topic)
        self._write_now(feed.TOPICS)

    def _group_changed(self, group: str) -> None:
        self._context.persistence.note_change()
        self._groups.add(group)
        self._write_now(feed.GROUPS)

    async def replicate(self, owner: Owner, with_offsets: bool) -> None:
        """Return when all changes so far of an owner's tables are committed.

        Raises:
            StoreError: The changes are not committed, or may not be.
        """
        names = _OF_OWNER[owner]
        await self._commit(names if with_offsets else names - {feed.OFFSETS})

    async def commit_locks(self) -> None:
        """Return when all changes so far of queue locks are committed.

        Raises:
            StoreError: The changes are not committed, or may not be.
        """
        await self._commit({changes.LOCKS})

    async def agree_deletion(self, topic: str) -> DeletedTopic:
        """Write the deletion of a topic's queues, and return it once it is committed.

        Raises:
            StoreError: It is not committed, or may not be; the queues must stay.
        """
        deletion = DeletedTopic(
            int(self._store.end_position),
            {queue.queue_id: int(queue.next_offset) for queue in self._store.queues_of(topic)},
        )
        self._write([changes.deletion_change(topic, deletion)])
        await self._wait_newest()
        return deletion

    # Writing.

    async def _commit(self, names: Container[str]) -> None:
        texts = self._changed_texts(names)
        if texts:
            self._write(texts)
        await self._wait_newest()

    async def _wait_newest(self) -> None:
        """Wait for the newest record: those before it are committed with it."""
        if self._newest is None:
            return
        count = self._newest_count
        if len(await asyncio.shield(self._newest)) < count:
            raise StoreFull("the store is full: the change is not stored on other members")

    def _write_now(self, name: str) -> None:
        """Write a table that has changed; it is tried again if that fails."""
        if not self._is_begun:
            return  # the first copy has it
        try:
            self._write(self._changed_texts([name]))
        except StoreError as error:
            logger.warning("table not written yet: name=%s reason=%s", name, error)

    def _write_round(self, now: float) -> None:
        if self._is_copy_due():
            self._write_copy()
            return
        self._writer.commit()  # so that the state of producers covers what is written
        due = [name for name, at in self._next_at.items() if now >= at]
        texts = self._changed_texts(due)
        for table in texts:
            self._next_at[table.name] = now + len(table.text) / _BYTES_PER_SECOND
        self._write(texts)

    def _is_copy_due(self) -> bool:
        limit = max(_CHANGES_MIN, _CHANGES_PER_COPY * self._copy_bytes)
        is_new_segment = self._segment() > self._copy_segment
        return self._owes_copy or is_new_segment or self._changed_bytes > limit

    def _segment(self) -> int:
        return int(self._store.written_position) // self._store.config.segment_bytes

    def _write_copy(self) -> None:
        self._writer.commit()
        texts = [self._whole(source) for source in self._sources.values()]
        self._put(texts, is_copy=True)
        self._owes_copy = False
        self.copy_count += 1
        self._copy_bytes, self._changed_bytes = sum(len(each.text) for each in texts), 0
        self._copy_segment = self._segment()

    def _write(self, texts: Sequence[TableText]) -> None:
        if texts:
            self._put(texts, is_copy=False)
            self._changed_bytes += sum(len(each.text) for each in texts)

    def _put(self, texts: Sequence[TableText], *, is_copy: bool) -> None:
        """Append the texts; only then do their changes count as written.

        Raises:
            StoreError: Nothing was appended.
        """
        revisions = {each.name: self._sources[each.name].revision() for each in texts}
        drafts = draft_tables(
            encode_tables(texts),
            is_copy=is_copy,
            segment_bytes=self._store.config.segment_bytes,
            host=self._context.store_host,
            now_ms=self._context.clock.now_ms(),
        )
        stored = self._newest = self._writer.put(drafts)
        self._newest_count = len(drafts)
        stored.add_done_callback(partial(self._note_stored, len(drafts), is_copy))
        self._written |= revisions
        self._forget_rows(revisions)

    def _note_stored(self, count: int, is_copy: bool, stored: Stored) -> None:
        is_failed = stored.cancelled() or stored.exception() is not None
        if is_failed or len(stored.result()) < count:
            if not is_failed:
                logger.warning("tables are stored in part only: the store is full")
            # All of them are written again, unless the leadership has ended.
            self._written.clear()
            self._owes_copy = self._owes_copy or is_copy
        elif is_copy:  # a part of one restores nothing, so the copy before it is still needed
            self._copy_position = int(stored.result()[0].position)

    def _forget_rows(self, written: Iterable[str]) -> None:
        for name in written:
            if name == feed.TOPICS:
                self._topics.clear()
            elif name == feed.GROUPS:
                self._groups.clear()
            elif name == changes.LOCKS and self._context.locks.changed is not None:
                self._context.locks.changed.clear()
            elif name == changes.PRODUCERS:
                self._producers_end = int(self._store.written_position)

    # Texts.

    def _changed_texts(self, names: Container[str]) -> list[TableText]:
        return [
            self._change(source)
            for source in self._sources.values()  # in this order, not that of the names
            if source.name in names
            and source.name not in _ONLY_IN_COPIES
            and source.revision() != self._written.get(source.name)
            and (source.name != changes.PRODUCERS or self._is_producers_due())
        ]

    def _is_producers_due(self) -> bool:
        return int(self._store.written_position) - self._producers_end >= _PRODUCERS_BYTES

    def _whole(self, source: TableSource) -> TableText:
        if source.name == feed.OFFSETS:
            text = self._tables.offsets.changes_since(0, bytes_max=_NO_LIMIT).text
        else:
            text = source.text()
        return TableText(source.name, "", text)

    def _change(self, source: TableSource) -> TableText:
        """Return the changed rows of a table, or the whole table if it does not track them."""
        written = self._written.get(source.name)
        if written is None:
            return self._whole(source)
        match source.name:
            case feed.TOPICS:
                return changes.topic_changes(self._tables.topics, self._topics)
            case feed.GROUPS:
                return changes.group_changes(self._tables.groups, self._groups)
            case changes.LOCKS:
                held = self._context.locks.holders(self._context.locks.changed or ())
                return TableText(changes.LOCKS, "", changes.encode_locks(held), is_whole=False)
            case feed.OFFSETS:
                found = self._tables.offsets.changes_since(written, bytes_max=_NO_LIMIT)
                return TableText(feed.OFFSETS, "", found.text, found.is_whole)
        return self._whole(source)


def _sources(context: LeaderContext, timer: Timer | None) -> list[TableSource]:
    """Return the tables in the order in which a member takes them over."""
    locks, dedup, filters = context.locks, context.dedup, context.tables.filters
    store = context.store
    return [
        *table_sources(context, timer),
        # Everybody who may read the log would see secrets in clear text.
        *([access_source(context)] if context.tables.access.is_sealed else ()),
        TableSource(
            changes.LOCKS,
            lambda: locks.revision,
            lambda: changes.encode_locks(locks.holders()),
        ),
        TableSource(changes.GROUP_FILTERS, lambda: filters.revision, filters.to_json),
        TableSource(
            changes.PRODUCERS,
            lambda: dedup.producers.revision,
            lambda: dedup.producers.to_json(int(store.written_position)),
        ),
        TableSource(
            changes.LOG_START,
            lambda: int(store.first_position),
            lambda: changes.encode_log_start(int(store.first_position)),
        ),
    ]


class GroupDeletion:
    """Deletes queues of topics once the group has agreed. Owned by the loop."""

    def __init__(self, log: TableLog, store: MessageStore) -> None:
        self._log = log
        self._store = store

    async def delete_queues(self, topic: str) -> UnfinishedDeletion:
        """Delete the queues of a topic, at the same position as on every other member.

        Raises:
            StoreError: They are not deleted, or may not be.
        """
        if not self._store.queues_of(topic):
            return NOTHING_LEFT
        deletion = await self._log.agree_deletion(topic)
        return self._store.deletions.follow({topic: deletion}) or NOTHING_LEFT
