# cython: initializedcheck=False
"""Rows and keys of a leader's records, read and checked without a Python object for each.

A row has five numbers: position, size, tags code, slot of the queue, queue offset; ``times`` has
its store time. A key has two: hash of ``topic#key``, position; the unique key comes first, then the
words of KEYS. The layout of a record is in ``record_scan``.

A record is taken only if it is plain: sound by the rules of ``record_scan.parse_record``, of a
known queue, with the next offset of that queue, and without anything that needs a closer look (a
record outside of queues, zeros in properties, text that is not UTF-8). The scan ends before the
first record that is not plain; the caller looks at that one, and knows a reason if it is wrong.

A queue is found by the hash of its topic and its id, in a table with at least two places for each.

**Invariant:** nothing is written outside the buffers, and what is in front of ``row_at`` and
``key_at`` is never touched again. Next offsets are raised only for the rows that were written.
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
    from rocketpost.kernel.send_text import is_text
    from rocketpost.kernel.uncompiled import memchr, memcmp

Bytes = Any
"""Bytes that are read by index; a pointer in the compiled build."""

_MAGIC_V1 = 0xDAA3_20A7
_MAGIC_V2 = 0xDAA3_20AB
_SMALLEST = 91
_BORN_V6 = 0x10
_STORE_V6 = 0x20
_NOT_IN_QUEUE = 0x4
_CRC_MASK = 0x7FFF_FFFF
_OFFSET_END = 2**58
_CHECKSUM_BYTES = 20
_CHECKSUM_NAME = b"__CRC32#\x01"
_ABSENT = 0
_HOLDS = 1
_FAILS = 2
_ROW = 5
_NAME_END = 1
_VALUE_END = 2
_SPACE = 32

_NUMBERS = 5
_NAME_AT = 0
_NAME_BYTES = 1
_QUEUE_ID = 2
_SLOT = 3
_KEY_STATE = 4
_SPREAD = 40503
_WORD = 0xFFFF_FFFF


class QueueNames:
    """The known queues. Belongs to the event loop.

    Attributes:
        names: The topics of all queues, one after the other.
        numbers: Five numbers for each queue.
        places: The hash table: a queue's number, or -1.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Know no queue any more."""
        self.count = 0
        self.last = -1
        self.names = bytearray(1024)
        self.name_bytes = 0
        self.numbers = array("q", bytes(8 * _NUMBERS * 32))
        self.places = array("q", [-1] * 64)

    def add(self, topic: bytes, queue_id: int, slot: int, key_state: int) -> None:
        """Add a queue that is not known yet.

        Args:
            topic: The topic in well-formed UTF-8, without NUL.
            queue_id: The queue.
            slot: The slot of the queue.
            key_state: The hash state of the topic and ``#``.
        """
        assert len(topic) > 0
        assert slot >= 0
        number = self.count
        while len(self.names) - self.name_bytes < len(topic):
            self.names = bytearray(self.names) + bytearray(len(self.names))
        if (number + 1) * _NUMBERS > len(self.numbers):
            self.numbers = array("q", list(self.numbers) + [0] * len(self.numbers))
        for i in range(len(topic)):
            self.names[self.name_bytes + i] = topic[i]
        at = number * _NUMBERS
        self.numbers[at + _NAME_AT] = self.name_bytes
        self.numbers[at + _NAME_BYTES] = len(topic)
        self.numbers[at + _QUEUE_ID] = queue_id
        self.numbers[at + _SLOT] = slot
        self.numbers[at + _KEY_STATE] = key_state
        self.name_bytes += len(topic)
        self.count = number + 1
        if 2 * self.count > len(self.places):
            self.places = array("q", [-1] * (4 * len(self.places)))
            for each in range(self.count):
                self._enter(each)
        else:
            self._enter(number)

    def find(self, p: Bytes, at: int, end: int, queue_id: int) -> int:
        """Return the number of a queue, or -1 if it is not known."""
        if self.last >= 0 and self._is_queue(self.last, p, at, end, queue_id):
            return self.last
        mask = len(self.places) - 1
        place = _place(p, at, end, queue_id) & mask
        while True:
            found = self.places[place]
            if found < 0:
                return -1
            if self._is_queue(found, p, at, end, queue_id):
                self.last = found
                return found
            place = (place + 1) & mask

    def slot_of(self, number: int) -> int:
        """Return the slot of a queue."""
        return self.numbers[number * _NUMBERS + _SLOT]

    def key_state_of(self, number: int) -> int:
        """Return the hash state of the topic and ``#``."""
        return self.numbers[number * _NUMBERS + _KEY_STATE]

    def _enter(self, number: int) -> None:
        """Enter a queue in the hash table."""
        at = self.numbers[number * _NUMBERS + _NAME_AT]
        end = at + self.numbers[number * _NUMBERS + _NAME_BYTES]
        mask = len(self.places) - 1
        names = cython.address(self.names[0]) if cython.compiled else self.names
        place = _place(names, at, end, self.numbers[number * _NUMBERS + _QUEUE_ID]) & mask
        while self.places[place] >= 0:
            place = (place + 1) & mask
        self.places[place] = number

    def _is_queue(self, number: int, p: Bytes, at: int, end: int, queue_id: int) -> bool:
        """Tell whether a queue has this topic and id."""
        begin = self.numbers[number * _NUMBERS + _NAME_AT]
        size = self.numbers[number * _NUMBERS + _NAME_BYTES]
        if end - at != size or self.numbers[number * _NUMBERS + _QUEUE_ID] != queue_id:
            return False
        if not cython.compiled:
            return bool(p[at:end] == self.names[begin : begin + size])
        is_same: bool = memcmp(p + at, cython.address(self.names[0]) + begin, size) == 0
        return is_same


class RowScanner:
    """Reads records into rows. Belongs to the event loop.

    Args:
        queues: The known queues.
        wants_keys: Whether keys are wanted.
        requires_checksum: Whether a record without a checksum is not plain.
    """

    def __init__(self, queues: QueueNames, wants_keys: bool, requires_checksum: bool) -> None:
        self.queues = queues
        self.wants_keys = wants_keys
        self.requires_checksum = requires_checksum
        self.use_offsets(array("q", [0]))
        self.use_buffers(array("q", bytes(8 * _ROW)), array("q", [0]), array("q", [0, 0]))

    def use_offsets(self, offsets: array[int]) -> None:
        """Use the next offsets of all queues, by slot; every known queue has one of them."""
        self.offsets = offsets
        self.slot_count = len(offsets)

    def use_buffers(self, rows: array[int], times: array[int], keys: array[int]) -> None:
        """Write to the start of new buffers, which are never resized."""
        assert len(times) * _ROW <= len(rows)
        self.rows = rows
        self.times = times
        self.row_room = len(times)
        self.keys = keys
        self.key_room = len(keys) // 2
        self.rewind()

    def rewind(self) -> None:
        """Write to the start of the buffers again."""
        self.row_at = 0
        self.key_at = 0
        self.first_row = 0
        self.is_full = False
        self.has_fallen = False

    def scan(self, data: Bytes, start: int, position: int, room_end: int) -> int:
        """Read plain records.

        Args:
            data: The records.
            start: The index of the first one in ``data``.
            position: The position of the first byte of ``data`` in the log.
            room_end: Position that no record extends past.

        Returns:
            The index after the last record that was taken. ``is_full`` tells whether the next one
            had no room in the buffers, ``has_fallen`` whether a store time is before that of the
            record in front.
        """
        end = len(data)
        at = start
        self.first_row = self.row_at
        self.is_full = False
        self.has_fallen = False
        if at < 0 or at >= end:
            return at
        p = cython.address(data[0]) if cython.compiled else data
        while at < end:
            size = self._take(p, at, end, position + at, room_end)
            if not size:
                break
            at += size
        return at

    def _take(self, p: Bytes, at: int, data_end: int, position: int, room_end: int) -> int:
        """Write the row and keys of a record; return its size, or 0 if it is not taken."""
        if data_end - at < _SMALLEST:
            return 0
        size = _unsigned(p, at)
        magic = _unsigned(p, at + 4)
        if magic != _MAGIC_V1 and magic != _MAGIC_V2:
            return 0
        if size < _SMALLEST or size > data_end - at or position + size > room_end:
            return 0
        if _long(p, at + 28) != position:
            return 0
        end = at + size
        sys_flag = _unsigned(p, at + 36)
        if sys_flag & _NOT_IN_QUEUE:
            return 0
        store_at = at + 56
        if sys_flag & _BORN_V6:
            store_at += 12
        body_at = store_at + 32
        if sys_flag & _STORE_V6:
            body_at += 12
        if body_at > end:
            return 0
        body_bytes = _unsigned(p, body_at - 4)
        if body_bytes > end - body_at:
            return 0
        topic_at = body_at + body_bytes + 1
        if magic == _MAGIC_V2:
            topic_at += 1
        if topic_at > end:
            return 0
        topic_bytes = p[topic_at - 1]
        if magic == _MAGIC_V2:
            topic_bytes |= p[topic_at - 2] << 8
        topic_end = topic_at + topic_bytes
        text_at = topic_end + 2
        if text_at > end:
            return 0
        # A length over 32767 is negative, and then it is too long for the record's end too.
        if text_at + (p[text_at - 2] << 8 | p[text_at - 1]) != end or end - text_at > 32767:
            return 0
        if topic_bytes > 32767 or _has_zero(p, text_at, end):
            return 0
        queue = self.queues.find(p, topic_at, topic_end, _unsigned(p, at + 12))
        if queue < 0:
            return 0
        slot = self.queues.slot_of(queue)
        queue_offset = _long(p, at + 20)
        if slot >= self.slot_count or queue_offset < 0 or queue_offset >= _OFFSET_END:
            return 0
        if queue_offset != self.offsets[slot]:
            return 0
        checksum = _judge(p, at, text_at, end)
        if checksum == _FAILS or (checksum == _ABSENT and self.requires_checksum):
            return 0
        if (
            checksum == _ABSENT
            and body_bytes
            and crc_of(p, body_at, body_bytes) & _CRC_MASK != _unsigned(p, at + 8)
        ):
            return 0
        if self.row_at >= self.row_room:
            self.is_full = True
            return 0
        row = self.row_at * _ROW
        if not self._read_words(p, text_at, end, self.queues.key_state_of(queue), position, row):
            return 0
        self.rows[row] = position
        self.rows[row + 1] = size
        self.rows[row + 3] = slot
        self.rows[row + 4] = queue_offset
        store_ms = _long(p, store_at)
        if self.row_at > self.first_row and store_ms < self.times[self.row_at - 1]:
            self.has_fallen = True
        self.times[self.row_at] = store_ms
        self.offsets[slot] = queue_offset + 1
        self.row_at += 1
        return size

    def _read_words(self, p: Bytes, at: int, end: int, state: int, position: int, row: int) -> bool:
        """Write the tags code and the keys of a record; False if it is not taken.

        As in a map that is filled from left to right, the last value of a name counts.
        """
        tags_at = tags_end = 0
        unique_at = unique_end = 0
        keys_at = keys_end = 0
        while at < end:
            piece_end = _find(p, at, end, _VALUE_END)
            size = piece_end - at
            if size >= 5 and p[at + 4] == _NAME_END:
                if _is_same(p, at, b"TAGS", 4):
                    tags_at = at + 5
                    tags_end = piece_end
                elif _is_same(p, at, b"KEYS", 4):
                    keys_at = at + 5
                    keys_end = piece_end
            elif size >= 9 and p[at + 8] == _NAME_END and _is_same(p, at, b"UNIQ_KEY", 8):
                unique_at = at + 9
                unique_end = piece_end
            at = piece_end + 1
        if not is_text(p, tags_at, tags_end, 0):
            return False
        self.rows[row + 2] = signed_hash(hash_text(0, p, tags_at, tags_end))
        if not self.wants_keys:
            return True
        if not is_text(p, unique_at, unique_end, 0) or not is_text(p, keys_at, keys_end, 0):
            return False
        count = self.key_at
        if unique_end > unique_at:
            if not self._put_key(count, p, unique_at, unique_end, state, position):
                return False
            count += 1
        at = keys_at
        while at < keys_end:
            word_end = _find(p, at, keys_end, _SPACE)
            if word_end > at:
                if not self._put_key(count, p, at, word_end, state, position):
                    return False
                count += 1
            at = word_end + 1
        self.key_at = count
        return True

    def _put_key(self, count: int, p: Bytes, at: int, end: int, state: int, position: int) -> bool:
        """Write a key; False if there is no room."""
        if count >= self.key_room:
            self.is_full = True
            return False
        self.keys[2 * count] = key_hash(hash_text(state, p, at, end))
        self.keys[2 * count + 1] = position
        return True


def records_end(data: Bytes) -> int:
    """Walk over records by their sizes alone; return the index after the last whole one."""
    end = len(data)
    at = 0
    if end < _SMALLEST:
        return at
    p = cython.address(data[0]) if cython.compiled else data
    while end - at >= _SMALLEST:
        size = _unsigned(p, at)
        magic = _unsigned(p, at + 4)
        if magic != _MAGIC_V1 and magic != _MAGIC_V2:
            break
        if size < _SMALLEST or size > end - at:
            break
        at += size
    return at


def _judge(p: Bytes, at: int, text_at: int, end: int) -> int:
    """Compare a record with the checksum in its last property (``record_scan.judge_checksum``)."""
    if end - text_at < _CHECKSUM_BYTES or p[end - 12] != 1:
        return _ABSENT
    is_named = p[end - 1] == _VALUE_END and _is_same(p, end - _CHECKSUM_BYTES, _CHECKSUM_NAME, 9)
    stated = 0
    for i in range(end - 2, end - 12, -1):
        if p[i] < 48 or p[i] > 57:
            return _FAILS if is_named else _ABSENT
        stated = stated * 10 + p[i] - 48
    is_right = crc_of(p, at, end - _CHECKSUM_BYTES - at) & _CRC_MASK == stated
    if is_named:
        return _HOLDS if is_right else _FAILS
    return _FAILS if is_right else _ABSENT


def _has_zero(p: Bytes, at: int, end: int) -> bool:
    """Tell whether one of the bytes is zero."""
    return _find(p, at, end, 0) < end


def _find(p: Bytes, at: int, end: int, mark: int) -> int:
    """Return the index of a byte, or the end."""
    if at >= end:
        return end
    if cython.compiled:
        found = cython.cast(cython.p_uchar, memchr(p + at, mark, end - at))
        place = end if found is cython.NULL else found - p
    else:
        place = at
        while place < end and p[place] != mark:
            place += 1
    return place


def _is_same(p: Bytes, at: int, other: bytes, size: int) -> bool:
    """Tell whether bytes are those of ``other``."""
    if not cython.compiled:
        return bytes(p[at : at + size]) == other
    is_same: bool = memcmp(p + at, other, size) == 0
    return is_same


def _unsigned(p: Bytes, at: int) -> int:
    """Return a number of 4 bytes."""
    number: int
    if cython.compiled:  # compilers turn exactly this form into one load
        four = p + at
        number = four[0] << 24 | four[1] << 16 | four[2] << 8 | four[3]
    else:
        number = p[at] << 24 | p[at + 1] << 16 | p[at + 2] << 8 | p[at + 3]
    return number


def _long(p: Bytes, at: int) -> int:
    """Return a signed number of 8 bytes."""
    high = _unsigned(p, at)
    return (high - (high >> 31 << 32) << 32) + _unsigned(p, at + 4)


def _place(p: Bytes, at: int, end: int, queue_id: int) -> int:
    """Return a hash of a topic and a queue id."""
    return (_hash_bytes(p, at, end) + queue_id * _SPREAD) & _WORD


def _hash_bytes(p: Bytes, at: int, end: int) -> int:
    """Return a hash of any bytes."""
    h = 0
    for i in range(at, end):
        h = (31 * h + p[i]) & _WORD
    return h
