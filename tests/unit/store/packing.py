"""Packs messages into the waves of a store, as compiled code does but in plain Python."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from rocketpost.codec.record import Record, encode_record
from rocketpost.kernel.hashing import extend_state, index_hashes_after
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.apply import NOT_IN_QUEUE
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.consume_queue import ConsumeQueue


class PlainPacker:
    """Packs messages into the waves of one store. Goes on where it is, as compiled code does."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.position = self.record_at = self.row_at = self.key_at = 0
        self.begun = 0
        """Number of times that it had to begin at a new place."""

    def begin(
        self, position: int, room_end: int, store_ms: int, record_at: int, row_at: int, key_at: int
    ) -> None:
        """Note the place of the next record."""
        self.position, self._room_end, self._store_ms = position, room_end, store_ms
        self.record_at, self.row_at, self.key_at = record_at, row_at, key_at
        self.begun += 1

    def pack(self, drafts: Sequence[Draft]) -> int:
        """Append the first messages of ``drafts`` as a wave; return how many it took."""
        store, wave = self._store, self._store.wave
        if not wave.begin(self):
            return 0
        count = 0
        for draft in drafts:
            queue = store.queue(draft.topic, draft.queue_id)
            if queue is None or draft.topic == SCHEDULE_TOPIC or draft.sys_flag & NOT_IN_QUEUE:
                break
            if not self._put(draft, queue):
                break
            count += 1
        if count:
            wave.take(self)
        return count

    def _put(self, draft: Draft, queue: ConsumeQueue) -> bool:
        wave, at, row, key = self._store.wave, self.record_at, self.row_at, self.key_at
        offset = wave.next_offsets[queue.slot]
        record = packed_record(draft, offset, self.position, self._store_ms)
        size = len(record)
        hashes = index_hashes_after(extend_state(0, draft.topic + "#"), draft.keys)
        if (
            self.position + size > self._room_end
            or at + size > len(wave.records)
            or 5 * (row + 1) > len(wave.rows)
            or 2 * (key + len(hashes)) > len(wave.keys)
        ):
            return False
        wave.records[at : at + size] = record
        wave.rows[5 * row : 5 * row + 5] = array(
            "q", (self.position, size, draft.tags_code, queue.slot, offset)
        )
        for number, key_hash in enumerate(hashes, start=key):
            wave.keys[2 * number : 2 * number + 2] = array("q", (key_hash, self.position))
        wave.next_offsets[queue.slot] += 1
        self.position += size
        self.record_at, self.row_at, self.key_at = at + size, row + 1, key + len(hashes)
        return True


_packers: WeakKeyDictionary[MessageStore, PlainPacker] = WeakKeyDictionary()


def packer_of(store: MessageStore) -> PlainPacker:
    """Return the packer of a store, the same one every time."""
    return _packers.setdefault(store, PlainPacker(store))


def pack(store: MessageStore, drafts: Sequence[Draft]) -> int:
    """Append the first messages of ``drafts`` as a wave; return how many it took."""
    return packer_of(store).pack(drafts)


def append_packed(store: MessageStore, drafts: Sequence[Draft]) -> None:
    """Append messages, as a wave where that is possible and else in the ordinary way."""
    done = 0
    while done < len(drafts):
        done += pack(store, drafts[done:])
        if done < len(drafts):
            store.append(drafts[done])
            done += 1


def packed_record(draft: Draft, queue_offset: int, position: int, store_ms: int) -> bytes:
    """Return the record of a message at a place of the log."""
    record = Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=draft.queue_id,
        flag=draft.flag,
        queue_offset=queue_offset,
        position=position,
        sys_flag=draft.sys_flag,
        born_ms=draft.born_ms,
        born_host_bytes=draft.born_host,
        store_ms=store_ms,
        store_host_bytes=draft.store_host,
        reconsume_times=draft.reconsume_times,
        prepared_position=draft.prepared_position,
        body=draft.body,
        topic=draft.topic,
        properties_bytes=draft.properties,
    )
    return b"".join(encode_record(record))
