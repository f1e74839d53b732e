"""Packs a message into the wave of a store, as compiled code does."""

from __future__ import annotations

from array import array

from rocketpost.codec.record import Record, encode_record
from rocketpost.kernel.hashing import extend_state, index_hashes_after
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.consume_queue import ConsumeQueue


def pack(store: MessageStore, draft: Draft, queue: ConsumeQueue) -> bool:
    """Append a message as a wave; False if the store takes none, or the segment has no room."""
    wave = store.wave
    if not wave.begin():
        return False
    offset = wave.next_offsets[queue.slot]
    record = Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=draft.queue_id,
        flag=draft.flag,
        queue_offset=offset,
        position=wave.position,
        sys_flag=draft.sys_flag,
        born_ms=draft.born_ms,
        born_host_bytes=draft.born_host,
        store_ms=wave.store_ms,
        store_host_bytes=draft.store_host,
        reconsume_times=draft.reconsume_times,
        prepared_position=draft.prepared_position,
        body=draft.body,
        topic=draft.topic,
        properties_bytes=draft.properties,
    )
    packed = b"".join(encode_record(record))
    if wave.position + len(packed) > wave.room_end:
        return False
    at, row, key = wave.record_end, wave.row_end, wave.key_end
    wave.records[at : at + len(packed)] = packed
    wave.rows[5 * row : 5 * row + 5] = array(
        "q", (wave.position, len(packed), draft.tags_code, queue.slot, offset)
    )
    hashes = index_hashes_after(extend_state(0, draft.topic + "#"), draft.keys)
    for number, key_hash in enumerate(hashes, start=key):
        wave.keys[2 * number : 2 * number + 2] = array("q", (key_hash, wave.position))
    wave.next_offsets[queue.slot] = offset + 1
    wave.take(len(packed), 1, len(hashes))
    return True
