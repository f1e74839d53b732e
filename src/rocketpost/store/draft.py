"""What goes into the store, and what comes out of an append."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocketpost.model.ids import Position, QueueOffset

if TYPE_CHECKING:
    from rocketpost.store.queue.consume_queue import ConsumeQueue


class Draft(msgspec.Struct, gc=False):
    """A message before it has a place. The caller has checked it against the limits.

    Hosts are packed by ``codec.record.pack_host``, properties by ``codec.properties``. ``keys`` are
    the words to index: the unique key first, then those of KEYS, none of them empty.
    """

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_host: bytes
    reconsume_times: int
    prepared_position: int
    body: bytes | memoryview
    properties: bytes
    tags_code: int = 0
    keys: tuple[str, ...] = ()


class Appended(NamedTuple):
    """A message that has its place; also what readers of its queue are told when it arrives."""

    position: Position
    size: int
    queue_offset: QueueOffset
    store_ms: int
    topic: str
    queue_id: int
    tags_code: int
    keys: tuple[str, ...]
    queue: ConsumeQueue | None
    """None for a prepared or rolled-back message, which no queue shows."""

    @property
    def end(self) -> Position:
        """The position after the record."""
        return Position(self.position + self.size)


Arrival = Appended
"""A message that has become visible to readers."""
