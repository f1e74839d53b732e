"""The notice that messages of one queue have become visible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES


class Arrival(msgspec.Struct, gc=False, eq=False):
    """Neighbouring messages of one queue that became visible together.

    There is one notice for each queue and confirmation, however many messages there are. Whoever
    wants the single messages unpacks their entries while handling the notice.
    """

    topic: str
    queue_id: int
    first_offset: int
    """Queue offset of the first message; the others follow it without a gap."""
    record_bytes: int
    """Sum of the sizes of the messages in the log."""
    tail: bytes | bytearray
    """Newest entries of the queue, among them those of the messages."""
    tail_at: int
    """Place in ``tail`` of the first message's entry."""
    message_count: int = 0
    queue: Any = None
    """The queue, while it completes this notice (``store.dispatch.dispatcher``)."""

    @classmethod
    def of_one(cls, topic: str, queue_id: int, offset: int, entry: tuple[int, int, int]) -> Arrival:
        """Return the notice of one message; ``entry`` is its position, size and tags code."""
        return cls(topic, queue_id, offset, entry[1], ENTRY.pack(*entry), 0, 1)

    @property
    def entries(self) -> bytes:
        """Queue entries of the messages, 20 bytes each."""
        end = self.tail_at + self.message_count * ENTRY_BYTES
        return bytes(self.tail[self.tail_at : end])

    def messages(self) -> Iterator[tuple[int, int, int]]:
        """Return (position, size, tags code) of each message."""
        return ENTRY.iter_unpack(self.entries)

    @property
    def positions(self) -> list[int]:
        """Position of each message in the log."""
        return [position for position, _, _ in self.messages()]
