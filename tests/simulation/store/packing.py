"""Packs a message into the wave of a store, as compiled code does."""

from __future__ import annotations

from array import array

from rocketpost.codec.record import Record, encode_record
from rocketpost.kernel.hashing import extend_state, index_hashes_after
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.consume_queue import ConsumeQueue


class SimPacker:
    """Packs messages into the wave of one store, and goes on where it is if it can."""

    def __init__(self, store: MessageStore) -> None:
        self.store = store
        self.position = self.record_at = self.row_at = self.key_at = 0

    def begin(
        self, position: int, room_end: int, store_ms: int, record_at: int, row_at: int, key_at: int
    ) -> None:
        """Note the place of the next record."""
        self.position, self._room_end, self._store_ms = position, room_end, store_ms
        self.record_at, self.row_at, self.key_at = record_at, row_at, key_at

    def pack(self, draft: Draft, queue: ConsumeQueue) -> int | None:
        """Append a message as a wave; return its position.

        None if the store takes no wave, or the segment has no room.
        """
        wave = self.store.wave
        if not wave.begin(self):
            return None
        position, at, row = self.position, self.record_at, self.row_at
        offset = wave.next_offsets[queue.slot]
        record = Record(
            size=0,
            magic=0,
            body_crc=0,
            queue_id=draft.queue_id,
            flag=draft.flag,
            queue_offset=offset,
            position=position,
            sys_flag=draft.sys_flag,
            born_ms=draft.born_ms,
            born_host_bytes=draft.born_host,
            store_ms=self._store_ms,
            store_host_bytes=draft.store_host,
            reconsume_times=draft.reconsume_times,
            prepared_position=draft.prepared_position,
            body=draft.body,
            topic=draft.topic,
            properties_bytes=draft.properties,
        )
        packed = b"".join(encode_record(record))
        if position + len(packed) > self._room_end:
            return None
        wave.records[at : at + len(packed)] = packed
        wave.rows[5 * row : 5 * row + 5] = array(
            "q", (position, len(packed), draft.tags_code, queue.slot, offset)
        )
        hashes = index_hashes_after(extend_state(0, draft.topic + "#"), draft.keys)
        for number, key_hash in enumerate(hashes, start=self.key_at):
            wave.keys[2 * number : 2 * number + 2] = array("q", (key_hash, position))
        wave.next_offsets[queue.slot] = offset + 1
        self.position += len(packed)
        self.record_at, self.row_at = at + len(packed), row + 1
        self.key_at += len(hashes)
        wave.take(self)
        return position
