"""The slots of queues: a number for each queue, and an array of next offsets by that number.

Compiled code gives messages their queue offsets without a Python object for each. So the next
offset of a queue is in one place only, an element of :attr:`QueueSlots.next_offsets`, and a queue
reads it from there.

**Invariant:** a slot belongs to one queue. The slot of a removed queue is assigned to another one
only after :meth:`QueueSlots.reuse`, when no row names it any more.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from rocketpost.store.queue.consume_queue import ConsumeQueue

COUNT_MIN: Final = 256


class QueueSlots:
    """Assigns slots to queues. Owned by the loop thread."""

    def __init__(self) -> None:
        self.next_offsets = array("q", bytes(8 * COUNT_MIN))
        """The next offset of each queue, by slot. Replaced by a longer one when it is full."""
        self._view = memoryview(self.next_offsets)  # Python code reads and writes it faster
        self.queues: list[ConsumeQueue] = []
        """The queue of each slot; it is deleted if the slot waits to be used again."""
        self.on_change: Callable[[], None] = _nobody
        """Called when ``next_offsets`` was replaced, and when a queue lost its slot."""
        self.change_count = 0
        """Number of such changes."""
        self.removed: list[int] = []
        self._free: list[int] = []

    def make(self, queue_of: Callable[[memoryview, int], ConsumeQueue]) -> ConsumeQueue:
        """Return a new queue; ``queue_of`` makes it with the offsets and its slot."""
        if self._free:
            slot = self._free.pop()
            queue = self.queues[slot] = queue_of(self._view, slot)
            return queue
        slot = len(self.queues)
        if slot == len(self.next_offsets):
            self._grow()
        queue = queue_of(self._view, slot)
        self.queues.append(queue)
        return queue

    def remove(self, queue: ConsumeQueue) -> None:
        """Take the slot of a queue away; rows that name the slot still find the queue."""
        assert self.queues[queue.slot] is queue
        self.removed.append(queue.slot)
        queue.detach()
        self._note_change()

    def reuse(self) -> None:
        """Let new queues have the slots of removed ones: no row names them any more."""
        if self.removed:
            self._free += self.removed
            self.removed.clear()

    def _grow(self) -> None:
        self.next_offsets = self.next_offsets + array("q", bytes(8 * len(self.next_offsets)))
        self._view = memoryview(self.next_offsets)
        without_queue = {*self.removed, *self._free}
        for slot, queue in enumerate(self.queues):
            if slot not in without_queue:
                queue.offsets = self._view
        self._note_change()

    def _note_change(self) -> None:
        self.change_count += 1
        self.on_change()


def _nobody() -> None:
    pass
