"""Records against their entries: every flipped bit that the format can show is found."""

from __future__ import annotations

from types import ModuleType
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.record import Record, encode_record, pack_host

from .conftest import builds

SCANS = builds("record_scan")
START = 1 << 30
HOSTS = {4: pack_host("10.0.0.1", 10911), 6: pack_host("fe80::1", 10911)}


@pytest.fixture(scope="module", params=SCANS.values(), ids=list(SCANS))
def scan(request: pytest.FixtureRequest) -> ModuleType:
    """Each build of ``record_scan``."""
    module: ModuleType = request.param
    return module


def record(
    position: int,
    *,
    topic: str = "Orders",
    body: bytes = b"body",
    born: int = 4,
    store: int = 4,
    properties: bytes = b"TAGS\x01a\x02",
    queue_offset: int = 7,
) -> bytes:
    made = Record(
        size=0, magic=0, body_crc=0, queue_id=3, flag=0, queue_offset=queue_offset,
        position=position, sys_flag=0, born_ms=1, born_host_bytes=HOSTS[born], store_ms=2,
        store_host_bytes=HOSTS[store], reconsume_times=0, prepared_position=0, body=body,
        topic=topic, properties_bytes=properties,
    )  # fmt: skip
    return b"".join(map(bytes, encode_record(made)))


hosts = st.sampled_from([4, 6])


@given(
    topic=st.sampled_from(["T", "Orders", "t" * 127, "t" * 200]),
    body=st.binary(max_size=60),
    born=hosts,
    store=hosts,
)
def test_a_sound_record_passes(
    scan: ModuleType, topic: str, body: bytes, born: int, store: int
) -> None:
    data = bytes(24) + record(START + 24, topic=topic, body=body, born=born, store=store)
    units = [(2, START + 24, len(data) - 24)]
    assert scan.find_unsound(memoryview(data), START, units, 5, 3, topic.encode()) == []


@pytest.mark.parametrize("topic", ["Orders", "t" * 200])
def test_each_flipped_bit_is_found_where_the_format_can_show_it(
    scan: ModuleType, topic: str
) -> None:
    sound = record(START, topic=topic)
    end = len(sound)
    properties_at = end - len(b"TAGS\x01a\x02")
    shown = {*range(16), *range(20, 36), *range(84, properties_at)}
    units = [(0, START, end)]
    for at in range(end):
        for bit in range(8):
            data = bytearray(sound)
            data[at] ^= 1 << bit
            found = scan.find_unsound(bytes(data), START, units, 7, 3, topic.encode())
            if at in shown:
                assert found == [0], (at, bit)
    data = bytearray(sound)
    data[39] ^= 0x10  # the born host is longer than it says
    assert scan.find_unsound(bytes(data), START, units, 7, 3, topic.encode()) == [0]


def test_only_the_damaged_ones_are_named(scan: ModuleType) -> None:
    one = record(START, queue_offset=7)
    two = record(START + len(one), queue_offset=8)
    three = record(START + len(one) + len(two), queue_offset=9)
    data = bytearray(one + two + three)
    data[len(one) + 90] ^= 1
    units = [
        (0, START, len(one)), (1, START + len(one), len(two)),
        (2, START + len(one) + len(two), len(three)),
    ]  # fmt: skip
    assert scan.find_unsound(bytes(data), START, units, 7, 3, b"Orders") == [1]


@pytest.mark.parametrize(
    "unit", [(0, START - 5, 100), (0, START + 5000, 100), (0, START, -1), (0, START, 2**31 - 1)]
)
def test_entries_that_lead_out_of_the_segment_are_unsound(
    scan: ModuleType, unit: tuple[int, int, int]
) -> None:
    assert scan.find_unsound(record(START), START, [unit], 7, 3, b"Orders") == [0]


def signed(position: int, *, properties: bytes = b"TAGS\x01a\x02") -> bytes:
    """Return a record that ends with its checksum."""
    unsigned = record(position, properties=properties + b"__CRC32#\x010000000000\x02")[:-20]
    checksum = crc32(unsigned) & 0x7FFF_FFFF
    return unsigned + b"__CRC32#\x01" + (b"%010d" % checksum)[::-1] + b"\x02"


@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a\x02"])
def test_each_flipped_bit_of_a_signed_record_is_found(scan: ModuleType, properties: bytes) -> None:
    sound = signed(START, properties=properties)
    units = [(2, START, len(sound))]
    assert scan.find_unsound(memoryview(sound), START, units, 5, 3, b"Orders", True) == []
    for at in range(len(sound)):
        for bit in range(8):
            data = bytearray(sound)
            data[at] ^= 1 << bit
            # Only a damaged end of its name hides a checksum, if records may be without one.
            for required in (False, True) if at != len(sound) - 12 else (True,):
                found = scan.find_unsound(data, START, units, 5, 3, b"Orders", required)
                assert found == [0], (at, bit)


@pytest.mark.parametrize("required", [False, True])
def test_a_record_without_a_checksum_may_be_refused(scan: ModuleType, required: bool) -> None:
    for properties in (
        b"",
        b"TAGS\x01a\x02",
        b"other=name\x010000000000\x02",
        bytes(9) + b"\x01" * 20,
    ):
        data = record(START, properties=properties)
        units = [(2, START, len(data))]
        found = scan.find_unsound(data, START, units, 5, 3, b"Orders", required)
        assert found == ([0] if required else [])
