"""Packs messages into the waves of a store, as compiled code does but in plain Python."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from rocketpost.codec.record import Record, encode_record
from rocketpost.kernel.hashing import extend_state, index_hashes_after
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.apply import NOT_IN_QUEUE
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore


def pack(store: MessageStore, drafts: Sequence[Draft]) -> int:
    """Append the first messages of ``drafts`` as a wave; return how many it took."""
    wave = store.wave
    if not wave.begin():
        return 0
    position, room_end, store_ms = wave.position, wave.room_end, wave.store_ms
    at, row, key = wave.record_end, wave.row_end, wave.key_end
    count = 0
    for draft in drafts:
        queue = store.queue(draft.topic, draft.queue_id)
        if queue is None or draft.topic == SCHEDULE_TOPIC or draft.sys_flag & NOT_IN_QUEUE:
            break
        offset = wave.next_offsets[queue.slot]
        record = packed_record(draft, offset, position, store_ms)
        size = len(record)
        hashes = index_hashes_after(extend_state(0, draft.topic + "#"), draft.keys)
        if (
            position + size > room_end
            or at + size > len(wave.records)
            or 5 * (row + 1) > len(wave.rows)
            or 2 * (key + len(hashes)) > len(wave.keys)
        ):
            break
        wave.records[at : at + size] = record
        wave.rows[5 * row : 5 * row + 5] = array(
            "q", (position, size, draft.tags_code, queue.slot, offset)
        )
        for key_hash in hashes:
            wave.keys[2 * key : 2 * key + 2] = array("q", (key_hash, position))
            key += 1
        wave.next_offsets[queue.slot] += 1
        at, row, position, count = at + size, row + 1, position + size, count + 1
    wave.take(at - wave.record_end, row - wave.row_end, key - wave.key_end)
    return count


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
