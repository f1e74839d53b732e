"""Messages before and after they are appended to the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rocketpost.codec.record import Record, host_bits
from rocketpost.kernel.record_scan import index_words
from rocketpost.model.ids import Position, QueueOffset

if TYPE_CHECKING:
    from rocketpost.store.queue.consume_queue import ConsumeQueue


class Draft(msgspec.Struct, gc=False):
    """A message that is not appended yet. The caller has checked it against the limits.

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

    @classmethod
    def copy_of(
        cls,
        record: Record,
        *,
        topic: str,
        queue_id: int,
        store_host: bytes,
        sys_flag: int | None = None,
        reconsume_times: int | None = None,
        prepared_position: int = 0,
        properties: bytes | None = None,
    ) -> Draft:
        """Return a copy of a stored message for another queue.

        The body, the flag and the sender's address and time stay. The tags code and the keys are
        derived from the properties, by the rule that recovery uses.

        Args:
            record: The message to copy.
            topic: Topic of the copy.
            queue_id: Queue of the copy.
            store_host: Packed address of this broker.
            sys_flag: Replaces the record's; the bits for IPv6 addresses are set here.
            reconsume_times: Replaces the record's.
            prepared_position: Position of a message that the copy belongs to.
            properties: Encoded properties that replace the record's.
        """
        if properties is None:
            properties = record.properties_bytes
        tags_code, keys = index_words(properties)
        return cls(
            topic=topic,
            queue_id=queue_id,
            flag=record.flag,
            sys_flag=host_bits(
                record.sys_flag if sys_flag is None else sys_flag,
                record.born_host_bytes,
                store_host,
            ),
            born_ms=record.born_ms,
            born_host=record.born_host_bytes,
            store_host=store_host,
            reconsume_times=(
                record.reconsume_times if reconsume_times is None else reconsume_times
            ),
            prepared_position=prepared_position,
            body=bytes(record.body),
            properties=properties,
            tags_code=tags_code,
            keys=keys,
        )


class Appended(NamedTuple):
    """An appended message."""

    position: Position
    size: int
    queue_offset: QueueOffset
    store_ms: int
    topic: str
    queue_id: int
    tags_code: int
    keys: tuple[str, ...]
    queue: ConsumeQueue | None
    """None for a prepared or rolled-back message, which is in no queue."""

    @property
    def end(self) -> Position:
        """The position after the record."""
        return Position(self.position + self.size)
