"""Logs in memory: a master's bytes, and a slave's log that checks what it is given."""

from __future__ import annotations

from struct import pack
from zlib import crc32

from rocketpost.codec.record import HEAD_V4, MAGIC_BLANK, MAGIC_V1
from rocketpost.errors import CorruptRecord, StoreFull
from rocketpost.kernel.record_scan import BLANK, INVALID, scan_records

SEGMENT_BYTES = 1024
HOST = bytes(8)
TOPIC = b"TopicA"
BLANK_BYTES = 8


def record(position: int, body: bytes) -> bytes:
    size = HEAD_V4.size + len(body) + 1 + len(TOPIC) + 2
    crc = crc32(body) & 0x7FFF_FFFF
    head = HEAD_V4.pack(
        size, MAGIC_V1, crc, 0, 0, 0, position, 0, 1, HOST, 1, HOST, 0, 0, len(body)
    )
    return head + body + bytes([len(TOPIC)]) + TOPIC + pack(">h", 0)


def filler(position: int, *, segment_bytes: int = SEGMENT_BYTES) -> bytes:
    left = segment_bytes - position % segment_bytes
    return pack(">ii", left, MAGIC_BLANK) + bytes(left - BLANK_BYTES)


class MasterLog:
    """The bytes of a log, from ``first`` on."""

    def __init__(self, first: int = 0, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.first = first
        self.segment_bytes = segment_bytes
        self.data = b""
        self.borders = [first]
        """Ends of records, and of fillers."""

    @property
    def end(self) -> int:
        return self.first + len(self.data)

    def add(self, *body_sizes: int) -> MasterLog:
        for number, size in enumerate(body_sizes):
            body = bytes([65 + number % 26]) * size
            left = self.segment_bytes - self.end % self.segment_bytes
            if len(record(0, body)) + BLANK_BYTES > left:
                self._put(filler(self.end, segment_bytes=self.segment_bytes))
            self._put(record(self.end, body))
        return self

    def _put(self, data: bytes) -> None:
        self.data += data
        self.borders.append(self.end)

    def bytes_of(self, position: int, size: int) -> bytes:
        assert self.first <= position
        found = self.data[position - self.first : position - self.first + size]
        assert len(found) == size
        return found

    def record_bytes(self, position: int) -> int:
        at = self.borders.index(position)
        return self.borders[at + 1] - position if at + 1 < len(self.borders) else 0


class SlaveLog:
    """Takes runs of records as a store does: all of a run, or nothing."""

    def __init__(self, end: int = 0, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.start = self.end = end
        self.segment_bytes = segment_bytes
        self.data = b""
        self.runs: list[tuple[int, int]] = []
        self.room = 2**62

    def append(self, position: int, data: memoryview) -> int:
        if not self.data and not self.end:
            assert position % self.segment_bytes == 0
            self.start = self.end = position
        assert position == self.end
        assert len(data) <= self.segment_bytes - position % self.segment_bytes
        if len(data) > self.room:
            raise StoreFull("no room")
        entries, at, verdict = scan_records(data, 0, position, count_max=2**31 - 1)
        if verdict == INVALID:
            raise CorruptRecord(f"the record at {position + at} is refused")
        if verdict == BLANK:
            assert data[at:] == filler(position + at, segment_bytes=self.segment_bytes)
        else:
            assert at == len(data)
            assert entries
        self.data += data
        self.runs.append((position, len(data)))
        self.room -= len(data)
        self.end = position + len(data)
        return self.end
