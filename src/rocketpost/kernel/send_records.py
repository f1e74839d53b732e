# cython: initializedcheck=False
"""Records, rows and keys of sent messages, written into the buffers of a wave.

A row has five numbers: position, size, tags code, slot of the queue, queue offset. A key has two:
hash of ``topic#key``, position; the unique key comes first, then the words of KEYS. The layout of a
record is in ``codec.record``.

**Invariant:** nothing is written outside the buffers, and what is in front of ``record_at``,
``row_at`` and ``key_at`` is never touched again.
"""

from __future__ import annotations

from array import array
from typing import Any

try:
    import cython
except ImportError:
    from rocketpost.kernel import uncompiled as cython
if not cython.compiled:
    from rocketpost.kernel.crc import crc_of
    from rocketpost.kernel.send_properties import hash_text, key_hash, signed_hash
    from rocketpost.kernel.send_topics import TopicTable
    from rocketpost.kernel.uncompiled import PyBytes_AS_STRING, Send, memcpy

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""
Room = Any
"""Bytes that are written by index."""

_WRITTEN = 0
_ODD = 1
_FULL = 2

_HEAD_BYTES = 72  # without the hosts
_IPV4_BYTES = 8
_CLIENT_FLAGS = ~(0x10 | 0x20 | 0xC)
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_MAGIC = 0xDAA3_20A7
_CRC_MASK = 0x7FFF_FFFF
_PROPERTIES_MAX = 32767
_PROPERTIES_END = 2
_SPACE = 32
_ROW = 5


class RecordWriter:
    """Writes records, rows and keys. Belongs to the event loop.

    Args:
        records: Receives records. Like the next two, it is never resized.
        rows: Receives rows.
        keys: Receives keys.

    Attributes:
        position: The position of the next record; ``record_at``, ``row_at`` and ``key_at`` are
            where the next record, row and key go in their buffers.
    """

    def __init__(self, records: bytearray, rows: array[int], keys: array[int]) -> None:
        self.records = records
        self.record_room = len(records)
        self.rows = rows
        self.row_room = len(rows) // _ROW
        self.keys = keys
        self.key_room = len(keys) // 2
        self.configure(b"", 0, bytes(_IPV4_BYTES))
        self.position = self.record_at = self.row_at = self.key_at = 0
        if not cython.compiled:
            self.born_host: Bytes = bytes(_IPV4_BYTES)

    def configure(self, added: bytes, properties_max: int, store_host: bytes) -> None:
        """Set what all records share.

        Args:
            added: The properties that the broker adds.
            properties_max: The maximum size of properties, with those added.
            store_host: The broker's address in the form of a record.
        """
        assert len(store_host) == 8 or len(store_host) == 20
        self.added = added + b"\0"  # never empty, so that it has an address
        self.added_bytes = len(added)
        self.properties_max = min(properties_max, _PROPERTIES_MAX)
        self.store_host = store_host
        self.store_host_bytes = len(store_host)

    def begin(
        self, position: int, room_end: int, store_ms: int, record_at: int, row_at: int, key_at: int
    ) -> None:
        """Set where the next record, row and key go, until something else is appended.

        Args:
            position: The position of the next record.
            room_end: The position at which records must end.
            store_ms: The store time of all messages.
            record_at: The index of the next record in the buffer of records.
            row_at: The number of the next row.
            key_at: The number of the next key.
        """
        assert 0 <= record_at <= self.record_room
        assert 0 <= row_at <= self.row_room
        assert 0 <= key_at <= self.key_room
        self.position = position
        self.room_end = room_end
        self.store_ms = store_ms
        self.record_at = record_at
        self.row_at = row_at
        self.key_at = key_at

    def set_sender(self, born_host: bytes) -> None:
        """Set the sender's address, in the form of a record."""
        assert len(born_host) == 8 or len(born_host) == 20
        if cython.compiled:
            memcpy(self.born_host, PyBytes_AS_STRING(born_host), len(born_host))
        else:
            self.born_host = born_host
        self.born_host_bytes = len(born_host)

    def append(
        self,
        p: Bytes,
        body_at: int,
        body_bytes: int,
        text: Bytes,
        text_at: int,
        text_end: int,
        flag: int,
        topics: TopicTable,
        topic: int,
        slot: int,
        queue_offset: int,
        send: Send,
    ) -> int:
        """Write a record, its row and its keys.

        Args:
            p: The buffer with the body.
            body_at: The start of the body.
            body_bytes: The size of the body.
            text: The buffer with the properties, which are plain.
            text_at: The start of the properties.
            text_end: The end of the properties.
            flag: The sender's flag.
            topics: The known topics.
            topic: The number of the topic.
            slot: The slot of the queue.
            queue_offset: The queue offset of the message.
            send: The request; places of unique key, tags and keys are those of this message.

        Returns:
            0; 1 if the message must be refused, 2 if there is no room, and then nothing counts as
            written.
        """
        text_bytes = text_end - text_at
        is_unended = text[text_end - 1] != _PROPERTIES_END
        properties_bytes = text_bytes + is_unended + self.added_bytes
        if body_bytes <= 0 or properties_bytes > self.properties_max:
            return _ODD
        hosts_bytes = self.born_host_bytes + self.store_host_bytes
        name_bytes = topics.name_bytes_of(topic)
        size = _HEAD_BYTES + hosts_bytes + body_bytes + 3 + name_bytes + properties_bytes
        position = self.position
        at = self.record_at
        if position + size > self.room_end or at + size > self.record_room:
            return _FULL
        if self.row_at >= self.row_room or not self._put_keys(
            text, topics.key_state_of(topic), send
        ):
            return _FULL
        if cython.compiled:
            out = cython.address(self.records[0])
            names = cython.address(topics.names[0])
            born_host = self.born_host
            store_host = cython.address(self.store_host[0])
            added = cython.address(self.added[0])
            rows = cython.address(self.rows[0])
        else:
            out = self.records
            names = topics.names
            born_host = self.born_host
            store_host = self.store_host
            added = self.added
            rows = self.rows
        sys_flag = send.sys_flag & _CLIENT_FLAGS | topics.flags_of(topic)
        if self.born_host_bytes != _IPV4_BYTES:
            sys_flag |= _BORN_V6
        if self.store_host_bytes != _IPV4_BYTES:
            sys_flag |= _STORE_V6
        _put4(out, at, size)
        _put4(out, at + 4, _MAGIC)
        _put4(out, at + 8, crc_of(p, body_at, body_bytes) & _CRC_MASK)
        _put4(out, at + 12, send.queue_id)
        _put4(out, at + 16, flag)
        _put8(out, at + 20, queue_offset)
        _put8(out, at + 28, position)
        _put4(out, at + 36, sys_flag)
        _put8(out, at + 40, send.born_ms)
        at += 48
        _copy(out, at, born_host, 0, self.born_host_bytes)
        at += self.born_host_bytes
        _put8(out, at, self.store_ms)
        _copy(out, at + 8, store_host, 0, self.store_host_bytes)
        at += 8 + self.store_host_bytes
        _put4(out, at, send.reconsume_times)
        _put8(out, at + 4, 0)
        _put4(out, at + 12, body_bytes)
        _copy(out, at + 16, p, body_at, body_bytes)
        at += 16 + body_bytes
        out[at] = name_bytes
        _copy(out, at + 1, names, topics.name_at(topic), name_bytes)
        at += 1 + name_bytes
        out[at] = properties_bytes >> 8
        out[at + 1] = properties_bytes & 0xFF
        _copy(out, at + 2, text, text_at, text_bytes)
        at += 2 + text_bytes
        if is_unended:
            out[at] = _PROPERTIES_END
            at += 1
        _copy(out, at, added, 0, self.added_bytes)
        row = self.row_at * _ROW
        rows[row] = position
        rows[row + 1] = size
        rows[row + 2] = signed_hash(hash_text(0, text, send.tags_at, send.tags_end))
        rows[row + 3] = slot
        rows[row + 4] = queue_offset
        self.row_at += 1
        self.record_at += size
        self.position = position + size
        return _WRITTEN

    def undo(self, row: int, key: int) -> None:
        """Withdraw what was written from a row and a key on."""
        if self.row_at > row:
            position = self.rows[row * _ROW]
            self.record_at -= self.position - position
            self.position = position
        self.row_at = row
        self.key_at = key

    def _put_keys(self, text: Bytes, state: int, send: Send) -> bool:
        """Write the hashes of the unique key and of the words of KEYS; False if no room."""
        keys = cython.address(self.keys[0]) if cython.compiled else self.keys
        count = self.key_at
        if count >= self.key_room:
            return False
        keys[2 * count] = key_hash(hash_text(state, text, send.unique_at, send.unique_end))
        keys[2 * count + 1] = self.position
        count += 1
        at = send.keys_at
        while at < send.keys_end:
            end = at
            while end < send.keys_end and text[end] != _SPACE:
                end += 1
            if end > at:
                if count >= self.key_room:
                    return False
                keys[2 * count] = key_hash(hash_text(state, text, at, end))
                keys[2 * count + 1] = self.position
                count += 1
            at = end + 1
        self.key_at = count
        return True


def _copy(out: Room, at: int, data: Bytes, begin: int, size: int) -> None:
    """Copy bytes from one buffer to another."""
    if cython.compiled:
        memcpy(out + at, data + begin, size)
    else:
        out[at : at + size] = data[begin : begin + size]


def _put4(out: Room, at: int, value: int) -> None:
    """Write a 32-bit number."""
    out[at] = value >> 24 & 0xFF
    out[at + 1] = value >> 16 & 0xFF
    out[at + 2] = value >> 8 & 0xFF
    out[at + 3] = value & 0xFF


def _put8(out: Room, at: int, value: int) -> None:
    """Write a 64-bit number."""
    _put4(out, at, value >> 32)
    _put4(out, at + 4, value)
