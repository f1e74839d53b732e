"""Messages in flight: popped, not acknowledged yet, and due to be redelivered.

Messages that one pop took from one queue share a checkpoint. Each of them is *left*, *closing* (its
end is being stored) or gone; a checkpoint ends with its last message. After a crash the table is
rebuilt from the revive topic.

Invariants, checked by :meth:`InFlightTable.check` and by assertions where they could be broken:

- A message of a checkpoint is left or closing, never both; a checkpoint in the table has one.
- Only a stored (*launched*) checkpoint falls due. While a message of it is left, it has an entry in
  the schedule, so nothing is forgotten.
- The record of every checkpoint in the table is needed: the watermark of its revive queue is before
  it, so that a start after a crash reads it again.
- The counts of messages, in total and by queue and group, are those of the checkpoints.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.watermark import ReviveWatermark

_STALE_MAX: Final = 1024


class Key(NamedTuple):
    """Identity of a checkpoint."""

    topic: str
    group: str
    queue_id: int
    start_offset: int
    pop_ms: int


class Checkpoint:
    """Messages handed out together. Belongs to :class:`InFlightTable`."""

    __slots__ = (
        "closing",
        "invisible_ms",
        "is_launched",
        "key",
        "left",
        "revive_offset",
        "revive_queue",
    )

    def __init__(
        self,
        key: Key,
        *,
        invisible_ms: int,
        offsets: Sequence[int],
        revive_queue: int,
        revive_offset: int,
    ) -> None:
        self.key = key
        self.invisible_ms = invisible_ms
        self.left = set(offsets)
        self.closing: dict[int, Change] = {}
        self.revive_queue = revive_queue
        self.revive_offset = revive_offset
        self.is_launched = False

    @property
    def due_ms(self) -> int:
        """Time at which the messages that are left are redelivered."""
        return self.key.pop_ms + self.invisible_ms


class InFlightTable:
    """The checkpoints of one broker. Owned by the event loop.

    Args:
        watermark: Tracks the needed records of the revive topic.
    """

    def __init__(self, watermark: ReviveWatermark | None = None) -> None:
        self._watermark = watermark or ReviveWatermark()
        self._by_key: dict[Key, Checkpoint] = {}
        self._due: list[tuple[int, int, int, Key]] = []
        self.counts: dict[tuple[str, str, int], int] = {}
        """Messages in flight, by topic, group and queue; for reading only."""
        self.count = 0
        """Messages in flight."""
        self.launched: Counter[tuple[str, str]] = Counter()
        """Number of checkpoints that were stored, by topic and group."""
        self.taken: Counter[tuple[str, str, int]] = Counter()
        """Number of checkpoints that fell due, by topic, group and revive queue."""

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._by_key)

    def find(self, key: Key) -> Checkpoint | None:
        """Return a checkpoint that has not ended."""
        return self._by_key.get(key)

    def add(self, checkpoint: Checkpoint) -> None:
        """Add a checkpoint that is being stored; it cannot fall due before it is launched."""
        assert checkpoint.key not in self._by_key
        self._by_key[checkpoint.key] = checkpoint
        self._watermark.add(checkpoint.revive_queue, checkpoint.revive_offset, checkpoint)
        self._add_count(checkpoint, len(checkpoint.left))

    def count_in(self, cursor: tuple[str, str, int]) -> int:
        """Return how many messages of a (topic, group, queue) are in flight."""
        return self.counts.get(cursor, 0)

    def find_message(self, cursor: tuple[str, str, int], offset: int) -> Checkpoint | None:
        """Return the checkpoint of a message in flight; searches all of them."""
        if not self.count_in(cursor):
            return None
        for key, checkpoint in self._by_key.items():
            if offset in checkpoint.left and key[:3] == cursor:
                return checkpoint
        return None

    def launch(self, checkpoint: Checkpoint) -> None:
        """Note that a checkpoint is stored: from now on it can fall due."""
        self.launched[checkpoint.key.topic, checkpoint.key.group] += 1
        checkpoint.is_launched = True
        self.arm(checkpoint, checkpoint.due_ms)

    def arm(self, checkpoint: Checkpoint, due_ms: int) -> None:
        """Schedule the redelivery of a checkpoint's remaining messages."""
        entry = (due_ms, checkpoint.revive_queue, checkpoint.revive_offset, checkpoint.key)
        heapq.heappush(self._due, entry)
        if len(self._due) > 2 * len(self._by_key) + _STALE_MAX:
            # Most checkpoints are acknowledged long before they are due.
            self._due = [each for each in set(self._due) if each[3] in self._by_key]
            heapq.heapify(self._due)

    def check(self) -> None:
        """Assert the invariants; examines everything, so it is for tests."""
        due = {(entry[3], entry[2]) for entry in self._due}
        counts: dict[tuple[str, str, int], int] = {}
        for key, checkpoint in self._by_key.items():
            assert checkpoint.key == key
            assert checkpoint.left.isdisjoint(checkpoint.closing)
            count = len(checkpoint.left) + len(checkpoint.closing)
            assert count
            counts[key[:3]] = counts.get(key[:3], 0) + count
            is_due = (key, checkpoint.revive_offset) in due
            assert checkpoint.is_launched or not is_due
            assert is_due or not (checkpoint.is_launched and checkpoint.left)
            assert self._watermark.offset(checkpoint.revive_queue) < checkpoint.revive_offset
        assert counts == self.counts
        assert self.count == sum(counts.values())

    def discard(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint that was not stored, as if it had never existed."""
        self._forget(checkpoint)

    def begin_close(self, checkpoint: Checkpoint, offsets: Iterable[int], change: Change) -> None:
        """Note that the end of messages that were left is being stored."""
        closing = checkpoint.left.intersection(offsets)
        checkpoint.left -= closing
        checkpoint.closing.update(dict.fromkeys(closing, change))

    def close(self, checkpoint: Checkpoint, offsets: Iterable[int]) -> None:
        """Note that messages have ended; the last one ends the checkpoint."""
        for offset in offsets:
            if offset in checkpoint.left or offset in checkpoint.closing:
                checkpoint.left.discard(offset)
                checkpoint.closing.pop(offset, None)
                self._add_count(checkpoint, -1)
        is_known = self._by_key.get(checkpoint.key) is checkpoint
        if is_known and not checkpoint.left and not checkpoint.closing:
            self._forget(checkpoint)
            self._watermark.end(checkpoint.revive_queue, checkpoint.revive_offset, checkpoint)

    def reopen(self, checkpoint: Checkpoint, offsets: Iterable[int], *, due_ms: int) -> None:
        """Note that the end of messages could not be stored: they will be redelivered."""
        for offset in offsets:
            if checkpoint.closing.pop(offset, None) is not None:
                checkpoint.left.add(offset)
        self.arm(checkpoint, due_ms)

    def next_due_ms(self) -> int | None:
        """Return when the next checkpoint is due, None if none is."""
        while self._due:
            due_ms, _, revive_offset, key = self._due[0]
            checkpoint = self._by_key.get(key)
            is_its = checkpoint is not None and checkpoint.revive_offset == revive_offset
            if checkpoint is not None and is_its and checkpoint.left:
                return due_ms
            heapq.heappop(self._due)
        return None

    def take_due(self, now_ms: int, *, count_max: int) -> list[Checkpoint]:
        """Return due checkpoints, oldest first, each once until it is armed again."""
        taken: dict[Key, Checkpoint] = {}
        while len(taken) < count_max:
            due_ms = self.next_due_ms()
            if due_ms is None or due_ms > now_ms:
                break
            key = heapq.heappop(self._due)[3]
            taken[key] = self._by_key[key]
            self.taken[key.topic, key.group, taken[key].revive_queue] += 1
        return list(taken.values())

    def _forget(self, checkpoint: Checkpoint) -> None:
        self._add_count(checkpoint, -len(checkpoint.left) - len(checkpoint.closing))
        del self._by_key[checkpoint.key]
        self._watermark.discard(checkpoint.revive_queue, checkpoint.revive_offset, checkpoint)

    def _add_count(self, checkpoint: Checkpoint, more: int) -> None:
        self.count += more
        cursor = checkpoint.key[:3]
        count = self.counts.get(cursor, 0) + more
        if count:
            self.counts[cursor] = count
        else:
            self.counts.pop(cursor, None)
