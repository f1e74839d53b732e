from __future__ import annotations

import struct
from array import array
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.codec.properties import encode_checksum
from rocketpost.kernel.hashing import extend_state, index_hash_after
from rocketpost.kernel.record_scan import parse_record, record_starts
from rocketpost.store.integrity.record_evidence import lacks_checksum

TIME_MS = 1_700_000_000_000
QUEUES = {("T", 0): 0, ("T", 1): 1, ("tøpic", 7): 2, ("t" * 300, 0): 3}
ROOM_END = 2**40


def record(
    position: int,
    *,
    topic: bytes = b"T",
    queue_id: int = 0,
    queue_offset: int = 0,
    body: bytes = b"body",
    properties: bytes = b"",
    sys_flag: int = 0,
    store_ms: int = TIME_MS,
    has_checksum: bool = False,
) -> bytes:
    """Return a packed record."""
    is_long = len(topic) > 127
    if has_checksum:
        properties += encode_checksum(0)
    tail = (
        struct.pack(">i", len(body)) + body
        + struct.pack(">h" if is_long else ">b", len(topic)) + topic
        + struct.pack(">h", len(properties)) + properties
    )  # fmt: skip
    born, stored = bytes(20 if sys_flag & 0x10 else 8), bytes(20 if sys_flag & 0x20 else 8)
    size = 72 + len(born) + len(stored) + len(tail) - 4
    data = (
        struct.pack(
            ">iIIiiqqiq", size, 0xDAA320AB if is_long else 0xDAA320A7, crc32(body) & 0x7FFFFFFF,
            queue_id, 0, queue_offset, position, sys_flag, TIME_MS,
        )
        + born + struct.pack(">q", store_ms) + stored + struct.pack(">iq", 0, 0) + tail
    )  # fmt: skip
    assert len(data) == size
    if has_checksum:
        data = data[:-20] + encode_checksum(crc32(data[:-20]) & 0x7FFFFFFF)
    return data


class World:
    """A scanner that knows the queues above."""

    def __init__(self, kernel: ModuleType, **sizes: Any) -> None:
        self.names = kernel.QueueNames()
        for (topic, queue_id), slot in QUEUES.items():
            state = extend_state(0, topic + "#")
            self.names.add(topic.encode(), queue_id, slot, state)
        self.offsets = array("q", [5, 0, 2**40, 9, 77])
        self.rows = array("q", bytes(40 * sizes.pop("rows", 64)))
        self.times = array("q", bytes(8 * (len(self.rows) // 5)))
        self.keys = array("q", bytes(16 * sizes.pop("keys", 256)))
        self.scanner = kernel.RowScanner(
            self.names, sizes.pop("wants_keys", True), sizes.pop("requires_checksum", False)
        )
        assert not sizes
        self.scanner.use_offsets(self.offsets)
        self.scanner.use_buffers(self.rows, self.times, self.keys)

    def scan(
        self, data: bytes | bytearray | memoryview, position: int = 0, room_end: int = ROOM_END
    ) -> int:
        return int(self.scanner.scan(data, 0, position, room_end))

    def found(self) -> list[tuple[int, ...]]:
        return [
            (*self.rows[5 * row : 5 * row + 5], self.times[row])
            for row in range(self.scanner.row_at)
        ]

    def found_keys(self) -> list[tuple[int, ...]]:
        return [tuple(self.keys[2 * key : 2 * key + 2]) for key in range(self.scanner.key_at)]


def wanted(data: bytes, position: int) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Return the row and the keys of a sound record, as the ordinary scan finds them."""
    entry = parse_record(data, 0, position, True)
    assert entry is not None
    at, size, topic, queue_id, queue_offset, _, store_ms, tags_code, keys = entry
    state = extend_state(0, topic + "#")
    pairs = [(index_hash_after(state, key), at) for key in keys]
    return (at, size, tags_code, QUEUES[topic, queue_id], queue_offset, store_ms), pairs


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview])
def test_plain_records_become_rows(kernel: ModuleType, form: Any) -> None:
    world = World(kernel)
    data, rows, keys = b"", [], []
    places = [("T", 0, 5), ("T", 1, 0), ("T", 0, 6), ("tøpic", 7, 2**40), ("t" * 300, 0, 9)]
    for number, (topic, queue_id, offset) in enumerate(places):
        packed = record(
            1000 + len(data),
            topic=topic.encode(),
            queue_id=queue_id,
            queue_offset=offset,
            properties=f"UNIQ_KEY\x01u{number}\x02TAGS\x01tåg{number}\x02KEYS\x01a  b\x02".encode(),
            sys_flag=(0, 0x10, 0x20, 0x30, 0x8)[number],
            store_ms=TIME_MS + number,
            has_checksum=number == 2,
        )
        row, pairs = wanted(packed, 1000 + len(data))
        rows.append(row)
        keys += pairs
        data += packed
    assert world.scan(form(data), 1000) == len(data)
    assert world.found() == rows
    assert world.found_keys() == keys
    assert list(world.offsets) == [7, 1, 2**40 + 1, 10, 77]
    assert not world.scanner.is_full


TEXT = st.lists(
    st.sampled_from(
        [b"TAGS\x01", b"KEYS\x01", b"UNIQ_KEY\x01", b"\x02", b"\x01", b" ", b"x", b"word",
         "ö€𐐷".encode(), b"\xff", b"\xed\xa0\x80", b"\0", b"__CRC32#\x01", b"1234567890\x02",
         bytes(600), b"TAGS", b"KEY"]
    ),
    max_size=12,
).map(b"".join)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    properties=TEXT,
    place=st.sampled_from([("T", 0), ("T", 1), ("tøpic", 7), ("t" * 300, 0), ("U", 0), ("T", 9)]),
    offset=st.sampled_from([0, 5, 9, 2**40, -1, 2**60]),
    body=st.sampled_from([b"", b"x", bytes(100)]),
    flags=st.sampled_from([0, 0x8, 0x4, 0xC, 0x10, 0x20, 0x30, 1]),
    has_checksum=st.booleans(),
    requires_checksum=st.booleans(),
    wants_keys=st.booleans(),
)
def test_exactly_the_plain_records_are_taken(
    kernel: ModuleType,
    properties: bytes,
    place: tuple[str, int],
    offset: int,
    body: bytes,
    flags: int,
    has_checksum: bool,
    requires_checksum: bool,
    wants_keys: bool,
) -> None:
    world = World(kernel, requires_checksum=requires_checksum, wants_keys=wants_keys)
    before = list(world.offsets)
    data = record(
        50, topic=place[0].encode(), queue_id=place[1], queue_offset=offset, body=body,
        properties=properties, sys_flag=flags, has_checksum=has_checksum,
    )  # fmt: skip
    entry = parse_record(data, 0, 50, True)
    slot = QUEUES.get(place)
    is_plain = (
        entry is not None
        and slot is not None
        and before[slot] == offset
        and not flags & 4
        and b"\0" not in properties
        and not (requires_checksum and lacks_checksum(data))
    )
    taken = world.scan(data, 50)
    if is_plain and _is_text(properties):
        assert taken == len(data)
    if taken:
        assert is_plain
        row, keys = wanted(data, 50)
        assert world.found() == [row]
        assert world.found_keys() == (keys if wants_keys else [])
        assert slot is not None
        before[slot] += 1
    else:
        assert not world.found()
        assert not world.found_keys()
    assert list(world.offsets) == before


def _is_text(properties: bytes) -> bool:
    try:
        properties.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("has_checksum", [False, True])
def test_no_damaged_record_is_taken(kernel: ModuleType, has_checksum: bool) -> None:
    data = record(
        0, queue_offset=5, properties=b"TAGS\x01a\x02KEYS\x01k\x02", has_checksum=has_checksum
    )
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        world = World(kernel, requires_checksum=has_checksum)
        if world.scan(flipped):
            assert not has_checksum
            row, keys = wanted(bytes(flipped), 0)
            assert (world.found(), world.found_keys()) == ([row], keys)
    for size in range(len(data)):
        assert World(kernel).scan(data[:size]) == 0


@settings(deadline=None)
@given(junk=st.binary(max_size=150))
def test_no_bytes_lead_outside_the_buffers(kernel: ModuleType, junk: bytes) -> None:
    world = World(kernel)
    sound = record(0, queue_offset=5)
    assert world.scan(sound + junk) >= len(sound)
    for at in range(min(len(junk), len(sound))):
        World(kernel).scan(sound[:at] + junk[at:])


@pytest.mark.parametrize("steps", [[0], [0, 0, 5], [3, 2, 9], [1, 2, 0]])
def test_falling_store_times_are_noticed(kernel: ModuleType, steps: list[int]) -> None:
    world = World(kernel)
    position = 0
    for _ in range(2):  # the second scan does not compare with the first
        data = b""
        for number, step in enumerate(steps):
            offset = world.offsets[0]
            data += record(position + len(data), queue_offset=offset + number, store_ms=step)
        assert world.scan(data, position) == len(data)
        assert world.scanner.has_fallen == (steps != sorted(steps))
        position += len(data)


@settings(deadline=None)
@given(bodies=st.lists(st.integers(0, 300), max_size=5), rest=st.binary(max_size=150))
def test_the_end_of_the_whole_records_is_found(
    kernel: ModuleType, bodies: list[int], rest: bytes
) -> None:
    records = b"".join([record(0, body=bytes(size)) for size in bodies])
    for data in (records, records + rest, records[:-1], records + record(0)[:90]):
        walked = record_starts(data, 0, count_max=2**31 - 1, bytes_max=2**31 - 1)[1]
        assert kernel.records_end(data) == kernel.records_end(memoryview(data)) == walked


def test_the_scan_ends_before_other_bytes(kernel: ModuleType) -> None:
    first = record(0, queue_offset=5)
    for other in (b"", bytes(100), b"\xcb\xd4\x31\x94" * 30, first, first[:50]):
        world = World(kernel)
        assert world.scan(first + other) == len(first)
        assert world.offsets[0] == 6
    assert World(kernel).scan(first, room_end=len(first) - 1) == 0
    assert World(kernel).scan(first, room_end=len(first)) == len(first)
    assert World(kernel).scan(b"") == 0
    assert World(kernel).scan(first, position=8) == 0


def test_a_record_without_room_is_left(kernel: ModuleType) -> None:
    position, packed = 0, []
    for offset in range(5, 9):
        packed.append(record(position, queue_offset=offset, properties=b"KEYS\x01a b c\x02"))
        position += len(packed[-1])
    data = b"".join(packed)
    for rows, keys, count in ((2, 99, 2), (99, 6, 2), (99, 8, 2), (99, 11, 3), (4, 12, 4)):
        world = World(kernel, rows=rows, keys=keys)
        assert world.scan(data) == sum(map(len, packed[:count]))
        assert (world.scanner.row_at, world.scanner.key_at) == (count, 3 * count)
        assert world.scanner.is_full == (count < 4)
        assert world.offsets[0] == 5 + count
        world.scanner.rewind()
        at = sum(map(len, packed[:count]))
        if at < len(data):
            assert world.scanner.scan(data, at, 0, ROOM_END) > at
            assert world.found()[0] == wanted(packed[count], at)[0]


@pytest.mark.parametrize("count", [1, 31, 33, 700])
def test_every_queue_is_found_by_topic_and_id(kernel: ModuleType, count: int) -> None:
    names = kernel.QueueNames()
    places = [(f"topic-{number % 13}" * (1 + number % 40), number // 13) for number in range(count)]
    for slot, (topic, queue_id) in enumerate(places):
        names.add(topic.encode(), queue_id, slot, slot)
    assert names.count == count
    assert _slots(kernel, names, places, count) == list(range(count))
    names.clear()
    assert names.count == 0
    assert _slots(kernel, names, places[:5], count) == [None] * len(places[:5])


def test_neither_topic_nor_id_alone_is_a_queue(kernel: ModuleType) -> None:
    names = kernel.QueueNames()
    names.add(b"topic", 3, 0, 0)
    others = [("topi", 3), ("topic", 4), ("topid", 3), ("topic2", 3)]
    assert _slots(kernel, names, others, 1) == [None] * len(others)
    assert _slots(kernel, names, [("topic", 3)], 1) == [0]


def _slots(
    kernel: ModuleType, names: object, places: list[tuple[str, int]], slot_count: int
) -> list[int | None]:
    """Return the slot that a scanner finds for a record of each queue."""
    scanner = kernel.RowScanner(names, False, False)
    scanner.use_offsets(array("q", bytes(8 * slot_count)))
    rows = array("q", bytes(40 * len(places)))
    scanner.use_buffers(rows, array("q", bytes(8 * len(places))), array("q"))
    found: list[int | None] = []
    for topic, queue_id in places:
        before = scanner.row_at
        scanner.scan(record(0, topic=topic.encode(), queue_id=queue_id), 0, 0, 2**40)
        found.append(rows[before * 5 + 3] if scanner.row_at > before else None)
    return found
