# cython: initializedcheck=False
"""The topics that the send lane knows, and the slots of their queues, as arrays.

A topic is found by the hash of its name, in a table with at least four places for each. A queue
without a slot has -1; its first message goes the ordinary way, and gives it one.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.send_properties import hash_text
    from rocketpost.kernel.uncompiled import memcmp

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""

NAME_BYTES_MAX = 127
"""Longer names need another form of record."""

_NUMBERS = 7
_NAME_AT = 0
_NAME_BYTES = 1
_QUEUES_AT = 2
_QUEUE_COUNT = 3
_FLAGS = 4
_KEY_STATE = 5
_TAKES_SHARDED = 6


class TopicTable:
    """The known topics. Belongs to the event loop.

    Attributes:
        offsets: The next offset of each queue, by its slot. The lane counts on in it.
        names: The names of all topics, one after the other.
        numbers: Seven numbers for each topic.
        slots: The slot of each queue, topic by topic.
        places: The hash table: a topic's number, or -1.
        epoch: The number of times that topics were given new numbers.
    """

    def __init__(self, offsets: array[int]) -> None:
        self.epoch = 0
        self.clear(offsets)

    def clear(self, offsets: array[int]) -> None:
        """Know no topic any more.

        Args:
            offsets: The next offset of each queue, by its slot.
        """
        self.epoch += 1
        self.offsets = offsets
        self.slot_count = len(offsets)
        self.count = 0
        self.last = -1
        self.names = bytearray(4096)
        self.name_bytes = 0
        self.numbers = array("q", bytes(8 * _NUMBERS * 64))
        self.slots = array("q", [-1] * 1024)
        self.queue_count = 0
        self.places = array("q", [-1] * 256)

    def add(
        self, name: bytes, queue_count: int, flags: int, key_state: int, takes_sharded: bool
    ) -> int:
        """Add a topic; returns its number.

        Args:
            name: The topic, in ASCII.
            queue_count: The number of queues that may be written.
            flags: Bits to set in the sysFlag of each message.
            key_state: The hash state of the name and ``#``.
            takes_sharded: Whether messages with a sharding key are plain.
        """
        assert 0 < len(name) <= NAME_BYTES_MAX
        assert queue_count >= 0
        number = self.count
        while len(self.names) - self.name_bytes < len(name):
            self.names = bytearray(self.names) + bytearray(len(self.names))
        while len(self.slots) - self.queue_count < queue_count:
            self.slots = array("q", list(self.slots) + [-1] * len(self.slots))
        if (number + 1) * _NUMBERS > len(self.numbers):
            self.numbers = array("q", list(self.numbers) + [0] * len(self.numbers))
        for i in range(len(name)):
            self.names[self.name_bytes + i] = name[i]
        at = number * _NUMBERS
        self.numbers[at + _NAME_AT] = self.name_bytes
        self.numbers[at + _NAME_BYTES] = len(name)
        self.numbers[at + _QUEUES_AT] = self.queue_count
        self.numbers[at + _QUEUE_COUNT] = queue_count
        self.numbers[at + _FLAGS] = flags
        self.numbers[at + _KEY_STATE] = key_state
        self.numbers[at + _TAKES_SHARDED] = takes_sharded
        self.name_bytes += len(name)
        self.queue_count += queue_count
        self.count = number + 1
        if 4 * self.count > len(self.places):
            self.places = array("q", [-1] * (4 * len(self.places)))
            for each in range(self.count):
                self._enter(each)
        else:
            self._enter(number)
        return number

    def set_slot(self, topic: int, queue_id: int, slot: int) -> None:
        """Give a queue of a topic its slot."""
        assert 0 <= topic < self.count
        assert 0 <= queue_id < self.numbers[topic * _NUMBERS + _QUEUE_COUNT]
        assert 0 <= slot < self.slot_count
        self.slots[self.numbers[topic * _NUMBERS + _QUEUES_AT] + queue_id] = slot

    def find(self, p: Bytes, at: int, end: int) -> int:
        """Return the number of a topic by its name, or -1 if it is not known."""
        if not self.count:
            return -1
        if self.last >= 0 and self._is_named(self.last, p, at, end):
            return self.last
        mask = len(self.places) - 1
        place = hash_text(0, p, at, end) & mask
        while True:
            found = self.places[place]
            if found < 0:
                return -1
            if self._is_named(found, p, at, end):
                self.last = found
                return found
            place = (place + 1) & mask

    def slot_of(self, topic: int, queue_id: int) -> int:
        """Return the slot of a queue; -1 if it has none, or there is no such queue."""
        if queue_id < 0 or queue_id >= self.numbers[topic * _NUMBERS + _QUEUE_COUNT]:
            return -1
        return self.slots[self.numbers[topic * _NUMBERS + _QUEUES_AT] + queue_id]

    def flags_of(self, topic: int) -> int:
        """Return the bits to set in the sysFlag of messages."""
        return self.numbers[topic * _NUMBERS + _FLAGS]

    def key_state_of(self, topic: int) -> int:
        """Return the hash state of the name and ``#``."""
        return self.numbers[topic * _NUMBERS + _KEY_STATE]

    def takes_sharded(self, topic: int) -> bool:
        """Tell whether messages with a sharding key are plain."""
        return self.numbers[topic * _NUMBERS + _TAKES_SHARDED] != 0

    def name_at(self, topic: int) -> int:
        """Return the index of the name in ``names``."""
        return self.numbers[topic * _NUMBERS + _NAME_AT]

    def name_bytes_of(self, topic: int) -> int:
        """Return the length of the name."""
        return self.numbers[topic * _NUMBERS + _NAME_BYTES]

    def _enter(self, number: int) -> None:
        """Enter a topic in the hash table."""
        at = self.numbers[number * _NUMBERS + _NAME_AT]
        end = at + self.numbers[number * _NUMBERS + _NAME_BYTES]
        mask = len(self.places) - 1
        names = cython.address(self.names[0]) if cython.compiled else self.names
        place = hash_text(0, names, at, end) & mask
        while self.places[place] >= 0:
            place = (place + 1) & mask
        self.places[place] = number

    def _is_named(self, number: int, p: Bytes, at: int, end: int) -> bool:
        """Tell whether a topic has this name."""
        begin = self.numbers[number * _NUMBERS + _NAME_AT]
        size = self.numbers[number * _NUMBERS + _NAME_BYTES]
        if end - at != size:
            return False
        if not cython.compiled:
            return bool(p[at:end] == self.names[begin : begin + size])
        is_same: bool = memcmp(p + at, cython.address(self.names[0]) + begin, size) == 0
        return is_same
