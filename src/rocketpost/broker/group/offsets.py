"""Consumer offsets: the next offset of each group in each queue.

Rows are named ``topic@group``; a legal name contains no ``@``. A commit overwrites the offset, even
with a lower one. A reset by an administrator waits here for the next pull of the queue. Until then,
commits of that queue are ignored, because their consumer does not know of the reset yet. The reset
is saved with the offsets; otherwise a consumer that returns after a crash would undo it.

The table also holds the pull progress of each group, for statistics; that is not saved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from rocketpost.codec.bodies.offset import (
    decode_offset_table,
    encode_offset_row,
    encode_offset_table,
)
from rocketpost.codec.faults import SystemBusy
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.model import names
from rocketpost.model.clock import Clock
from rocketpost.model.topic import DataVersion

logger = logging.getLogger(__name__)

NO_OFFSET: Final = -1
OFFSETS_MAX: Final = 2_000_000
"""Offsets of all groups in all queues; beyond it new ones are refused."""
COMMITS_A_VERSION: Final = 500


class _Row:
    """The offsets of one group in one topic, and their text while it is current."""

    __slots__ = ("offsets", "text")

    def __init__(self, offsets: dict[int, int]) -> None:
        self.offsets = offsets
        self.text: bytes | None = None


class OffsetTable:
    """The consumer offsets of one broker. Owned by the event loop."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._resets: dict[tuple[str, int], int] = {}
        self._commits = 0
        self._count = 0
        self.version = DataVersion()
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> bool:
        """Set an offset; return False, changing nothing, while a reset of the queue is pending.

        Raises:
            SystemBusy: There are too many offsets already.
        """
        key = f"{topic}@{group}"
        if self._resets and (key, queue_id) in self._resets:
            return False
        self._put(key, queue_id, offset)
        return True

    def query(self, topic: str, group: str, queue_id: int) -> int:
        """Return the group's next offset, ``NO_OFFSET`` if none is known."""
        row = self._rows.get(f"{topic}@{group}")
        return NO_OFFSET if row is None else row.offsets.get(queue_id, NO_OFFSET)

    def note_pull(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Record the offset up to which the group has been given messages."""
        key = f"{topic}@{group}"
        row = self._pulled.get(key)
        if row is None:
            row = self._pulled[key] = {}
        row[queue_id] = offset

    def pulled_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Return the offset up to which the group was given messages, ``NO_OFFSET`` if unknown."""
        return self._pulled.get(f"{topic}@{group}", {}).get(queue_id, NO_OFFSET)

    def reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Set an offset that the group's consumer must adopt at its next pull."""
        key = f"{topic}@{group}"
        self._put(key, queue_id, offset)
        self._resets[key, queue_id] = offset
        self.revision += 1

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Remove and return a pending reset; None if there is none."""
        if not self._resets:  # Nearly always; every pull asks.
            return None
        taken = self._resets.pop((f"{topic}@{group}", queue_id), None)
        if taken is not None:
            self.revision += 1
        return taken

    def row(self, topic: str, group: str) -> dict[int, int]:
        """Return a copy of the group's committed offsets in a topic, by queue."""
        row = self._rows.get(f"{topic}@{group}")
        return {} if row is None else dict(row.offsets)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Every pair of topic and group that has offsets."""
        return list(self._names())

    def topics_of(self, group: str) -> list[str]:
        """Return the topics in which the group has offsets."""
        return [topic for topic, owner in self._names() if owner == group]

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets in the topic."""
        return [group for owner, group in self._names() if owner == topic]

    @property
    def groups(self) -> list[str]:
        """Every group that has any offset."""
        return list(dict.fromkeys(group for _, group in self._names()))

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of ``source`` in ``topic`` to ``target``."""
        row = self._rows.get(f"{topic}@{source}")
        if row is not None:
            self._check_room(len(row.offsets))
            before = self._rows.get(f"{topic}@{target}")
            self._count += len(row.offsets) - (0 if before is None else len(before.offsets))
            self._rows[f"{topic}@{target}"] = _Row(dict(row.offsets))
            self._note_change()

    def forget_topic(self, topic: str) -> None:
        """Forget every offset in the topic."""
        self._forget(f"{topic}@{group}" for group in self.groups_of(topic))
        prefix = f"{topic}@"
        self._forget_volatile([key for key in self._pulled if key.startswith(prefix)])

    def forget_group(self, group: str) -> None:
        """Forget every offset of the group."""
        self._forget(f"{topic}@{group}" for topic in self.topics_of(group))
        suffix = f"@{group}"
        self._forget_volatile([key for key in self._pulled if key.endswith(suffix)])

    def body(self) -> bytes:
        """Return the body of GET_ALL_CONSUMER_OFFSET."""
        return encode_offset_table(self.version, self._texts())

    def to_json(self) -> bytes:
        """Return the text of ``consumerOffset.json``."""
        resets: dict[str, dict[int, int]] = {}
        for (key, queue_id), offset in self._resets.items():
            resets.setdefault(key, {})[queue_id] = offset
        rows = ((key, encode_offset_row(row)) for key, row in resets.items())
        return encode_offset_table(self.version, self._texts(), resets=rows, lines=True)

    def load(self, data: bytes) -> None:
        """Load the table from ``consumerOffset.json``; rows with illegal names are dropped.

        Raises:
            StoreError: The text is not an offset table.
        """
        try:
            body = decode_offset_table(data)
        except RemoteProtocolError as error:
            raise StoreError(f"consumerOffset.json cannot be read: {error}") from None
        for key, offsets in body.offset_table.items():
            topic, _, group = key.partition("@")
            if names.topic_problem(topic.replace("+", "_")) or names.group_problem(group):
                logger.warning("offsets dropped: row=%r reason=not topic@group", key)
                continue
            good = {queue: offset for queue, offset in offsets.items() if queue >= 0 <= offset}
            self._rows[key] = _Row(good)
            self._count += len(good)
        for key, resets in body.pending_reset_table.items():
            row = self._rows.get(key, _Row({}))
            for queue_id, offset in resets.items():
                if row.offsets.get(queue_id) == offset:
                    self._resets[key, queue_id] = offset
        self.version = body.data_version

    def _put(self, key: str, queue_id: int, offset: int) -> None:
        row = self._rows.get(key)
        if row is None:
            self._check_room(1)
            row = self._rows[key] = _Row({})
        before = row.offsets.get(queue_id, NO_OFFSET)
        if before == offset:
            return
        if queue_id not in row.offsets:
            self._check_room(1)
            self._count += 1
        if offset < before:
            logger.info(
                "offset moved back: row=%s queue=%s from=%s to=%s", key, queue_id, before, offset
            )
        row.offsets[queue_id] = offset
        row.text = None
        self.revision += 1
        self._commits += 1
        if self._commits % COMMITS_A_VERSION == 0:
            self.version = self.version.next(self._clock.now_ms())

    def _check_room(self, more: int) -> None:
        if self._count + more > OFFSETS_MAX:
            raise SystemBusy(f"[OVERLOAD]this broker already has {self._count} offsets")

    def _forget(self, keys: Iterator[str]) -> None:
        for key in keys:
            self._count -= len(self._rows.pop(key).offsets)
            self._forget_volatile([key])
            self._note_change()

    def _forget_volatile(self, keys: list[str]) -> None:
        for key in keys:
            self._pulled.pop(key, None)
            for reset in [each for each in self._resets if each[0] == key]:
                del self._resets[reset]

    def _note_change(self) -> None:
        self.revision += 1
        self.version = self.version.next(self._clock.now_ms())

    def _names(self) -> Iterator[tuple[str, str]]:
        for key in self._rows:
            topic, _, group = key.partition("@")
            yield topic, group

    def _texts(self) -> Iterator[tuple[str, bytes]]:
        for key, row in self._rows.items():
            if row.text is None:
                row.text = encode_offset_row(row.offsets)
            yield key, row.text
