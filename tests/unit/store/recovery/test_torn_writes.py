from __future__ import annotations

import pytest

from rocketpost.codec.record import Record, encode_record, pack_host
from rocketpost.kernel.record_scan import MAGIC_BLANK
from rocketpost.store.log.segment import Segment
from rocketpost.store.recovery.torn_writes import BLOCK_BYTES, find_written_end
from rocketpost.testing.sim.disk import SimulatedDisk

SEGMENT_BYTES = 8192
START = 3 * SEGMENT_BYTES
HOST = pack_host("127.0.0.1", 10911)


def record(at: int, body: bytes = b"b" * 1500, properties: bytes = b"KEYS\x01k\x02") -> bytes:
    """Return a record at an offset of the segment."""
    made = Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=7,
        position=START + at,
        sys_flag=0,
        born_ms=1,
        born_host_bytes=HOST,
        store_ms=2,
        store_host_bytes=HOST,
        reconsume_times=0,
        prepared_position=0,
        body=body,
        topic="TopicA",
        properties_bytes=properties,
    )
    return b"".join(encode_record(made))


def find(data: bytes, at: int, following: int | None = None) -> int | None:
    """Return the end of damaged bytes, as an offset of the segment."""
    disk = SimulatedDisk()
    disk.put("/segment", data.ljust(SEGMENT_BYTES, b"\0"))
    segment = Segment(disk, "/segment", start=START, size=SEGMENT_BYTES)
    stop = None if following is None else START + following
    end = find_written_end(segment, START + at, stop, record_bytes_max=5000)
    return None if end is None else end - START


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize("at", [0, 100, 500, 508, 511, 512])
@pytest.mark.parametrize("place", [90, 600, 1300, -3])
def test_a_flipped_bit_is_damage(at: int, place: int) -> None:
    data = record(at)
    assert find(bytes(at) + flip(data, place), at) == at + len(data)


@pytest.mark.parametrize("at", [0, 100, 500, 508, 511, 512])
def test_a_block_that_was_never_written_is_a_torn_write(at: int) -> None:
    data = bytes(at) + record(at)
    for block in range(at - at % BLOCK_BYTES, len(data), BLOCK_BYTES):
        if not any(data[at : block + BLOCK_BYTES]):
            continue  # it has nothing but zeros of the record
        begin = max(block, at)
        torn = data[:begin] + bytes(min(block + BLOCK_BYTES, len(data)) - begin)
        torn += data[len(torn) :]
        assert find(torn, at) is None


@pytest.mark.parametrize("size", [1, 3, 6, 9, 30, 40, 600, 1500])
def test_a_write_that_was_ended_early_is_a_torn_write(size: int) -> None:
    assert find(record(0)[:size], 0) is None


def test_bytes_that_were_never_written() -> None:
    assert find(b"", 0) is None
    assert find(b"", 600) is None


@pytest.mark.parametrize("place", [0, 4, 30])
def test_a_damaged_head(place: int) -> None:
    """The end of the record is not known; damage ends where no more bytes were written."""
    damaged = flip(record(0), place)
    end = find(damaged, 0)
    assert end is not None
    assert end % BLOCK_BYTES == 0 or end == len(damaged)
    assert find(damaged, 0, following=1600) == 1600


def test_a_record_without_properties_is_not_known_to_be_whole() -> None:
    data = record(0, properties=b"")
    assert find(flip(data, 200), 0) is None


def test_a_body_of_zeros_looks_like_a_torn_write() -> None:
    data = record(0, body=bytes(1500))
    assert find(flip(data, 8), 0) is None


def test_the_filler_of_a_segment() -> None:
    size = SEGMENT_BYTES - 700
    filler = size.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")
    assert find(bytes(700) + filler, 700) is None
    damaged = bytes(700) + flip(filler, 2)
    assert find(damaged, 700) is None  # perhaps the write was ended early
    assert find(damaged, 700, following=SEGMENT_BYTES) == 1024
