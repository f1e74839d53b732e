from __future__ import annotations

from struct import pack, pack_into
from types import ModuleType
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.kernel.hashing import string_hash


def record(
    position: int,
    *,
    topic: str = "Orders",
    body: bytes = b"body",
    properties: bytes = b"",
    sys_flag: int = 0,
    version: int = 1,
    queue_id: int = 3,
    queue_offset: int = 7,
    store_ms: int = 1_700_000_000_000,
) -> bytes:
    """Build a record field by field, apart from the code under test."""
    name = topic.encode()
    born = bytes(20 if sys_flag & 0x10 else 8)
    store = bytes(20 if sys_flag & 0x20 else 8)
    magic = 0xDAA320A7 if version == 1 else 0xDAA320AB
    rest = b"".join(
        [
            pack(">I", magic),
            pack(">I", crc32(body) & 0x7FFF_FFFF),
            pack(">iiqqi", queue_id, 0, queue_offset, position, sys_flag),
            pack(">q", 1) + born + pack(">q", store_ms) + store,
            pack(">iq", 0, 0),
            pack(">i", len(body)) + body,
            pack(">B" if version == 1 else ">h", len(name)) + name,
            pack(">h", len(properties)) + properties,
        ]
    )
    return pack(">i", len(rest) + 4) + rest


BLANK = pack(">iI", 100, 0xCBD43194) + bytes(92)


@given(
    specs=st.lists(
        st.fixed_dictionaries(
            {
                "topic": st.text(
                    st.characters(min_codepoint=1, codec="utf-8"), min_size=1, max_size=20
                ),
                "body": st.binary(max_size=40),
                "sys_flag": st.sampled_from([0, 0x10, 0x20, 0x30, 0x8]),
                "version": st.sampled_from([1, 2]),
                "queue_id": st.integers(0, 2**31 - 1),
                "queue_offset": st.integers(0, 2**62),
                "store_ms": st.integers(0, 2**62),
            }
        ),
        max_size=6,
    ),
    base=st.integers(0, 2**62),
    lead=st.integers(0, 9),
    as_view=st.booleans(),
)
def test_every_whole_record_is_read(
    kernel: ModuleType, specs: list[dict[str, Any]], base: int, lead: int, as_view: bool
) -> None:
    data = bytes(lead)
    expected = []
    for spec in specs:
        position = base + len(data) - lead
        made = record(position, **spec)
        expected.append(
            (
                position,
                len(made),
                spec["topic"],
                spec["queue_id"],
                spec["queue_offset"],
                spec["sys_flag"],
                spec["store_ms"],
                0,
                (),
            )
        )
        data += made
    end = len(data)
    data += BLANK
    source = memoryview(data) if as_view else data
    found, at, verdict = kernel.scan_records(source, lead, base, count_max=100)
    assert found == expected
    assert (at, verdict) == (end, kernel.BLANK)


def test_a_scan_continues_where_the_count_stopped_it(kernel: ModuleType) -> None:
    first = record(0)
    data = first + record(len(first))
    found, at, verdict = kernel.scan_records(data, 0, 0, count_max=1)
    assert (len(found), at, verdict) == (1, len(first), kernel.MORE)
    found, at, verdict = kernel.scan_records(data, at, at, count_max=5)
    assert (len(found), at, verdict) == (1, len(data), kernel.MORE)


@pytest.mark.parametrize("body", [b"body", b""])
@pytest.mark.parametrize("properties", [b"", b"TAGS\x01a\x02", b"KEYS\x01a b"])
def test_a_record_cut_anywhere_is_invalid(
    kernel: ModuleType, body: bytes, properties: bytes
) -> None:
    whole = record(0, body=body, properties=properties)
    for cut in range(1, len(whole)):
        assert kernel.scan_records(whole[:cut], 0, 0, count_max=5) == ([], 0, kernel.INVALID)
        zeroed = whole[:cut] + bytes(200)
        expected = 1 if zeroed.startswith(whole) else 0  # it may be that only zeros were cut off
        assert len(kernel.scan_records(zeroed, 0, 0, count_max=5)[0]) == expected


def test_a_hole_in_long_properties_is_invalid(kernel: ModuleType) -> None:
    data = bytearray(record(0, properties=b"KEYS\x01" + b"k" * 3000 + b"\x02"))
    assert kernel.parse_record(data, 0, 0, True) is not None
    data[1024:1536] = bytes(512)
    assert kernel.parse_record(data, 0, 0, True) is None


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 90),  # smaller than any record
        (0, 2**31 - 1),  # longer than the buffer
        (0, -5),
        (4, 0x01020304),  # no magic
        (8, 1),  # another CRC
        (32, 1),  # another physical offset (low half)
        (84, -1),  # a negative body length
        (84, 2**31 - 1),
        (84, 0),  # lengths that do not add up
    ],
)
def test_each_wrong_field_is_detected(kernel: ModuleType, at: int, value: int) -> None:
    data = bytearray(record(0) + bytes(50))
    pack_into(">i", data, at, value)
    assert kernel.scan_records(data, 0, 0, count_max=5) == ([], 0, kernel.INVALID)


def test_a_long_properties_or_topic_length_is_caught(kernel: ModuleType) -> None:
    for version, length_at in ((1, -8), (2, -8)):
        data = bytearray(record(0, topic="Orders", version=version, properties=b""))
        pack_into(">h", data, len(data) - 2, 5)
        assert kernel.parse_record(data, 0, 0, True) is None
        pack_into(">h", data, len(data) - 2, -1)
        assert kernel.parse_record(data, 0, 0, True) is None
        data = bytearray(record(0, topic="Orders", version=version, properties=b""))
        data[length_at - 1] = 0x7F
        assert kernel.parse_record(data, 0, 0, True) is None
    negative = bytearray(record(0, topic="Orders", version=2))
    pack_into(">h", negative, len(negative) - 10, -1)
    assert kernel.parse_record(negative, 0, 0, True) is None


def test_hosts_that_do_not_fit_are_caught(kernel: ModuleType) -> None:
    data = bytearray(record(0, topic="", body=b""))
    pack_into(">i", data, 36, 0x30)  # claims IPv6 hosts, for which the record is too short
    assert kernel.parse_record(data, 0, 0, True) is None


def test_a_topic_that_is_no_text_is_caught(kernel: ModuleType) -> None:
    data = bytearray(record(0, topic="Orders"))
    data[data.index(b"Orders")] = 0xFF
    assert kernel.parse_record(data, 0, 0, True) is None


def test_the_crc_is_skipped_when_asked(kernel: ModuleType) -> None:
    data = bytearray(record(0))
    data[88] ^= 1
    assert kernel.scan_records(data, 0, 0, count_max=5)[2] == kernel.INVALID
    assert len(kernel.scan_records(data, 0, 0, count_max=5, verify_crc=False)[0]) == 1


@pytest.mark.parametrize(
    ("properties", "tags", "keys"),
    [
        (b"", "", ()),
        (b"TAGS\x01TagA\x02", "TagA", ()),
        (b"KEYS\x01a b  c\x02UNIQ_KEY\x01u1\x02TAGS\x01t", "t", ("u1", "a", "b", "c")),
        (b"TAGS\x01old\x02TAGS\x01new\x02", "new", ()),
        (b"XTAGS\x01no\x02KEYS\x01\x02", "", ()),
        ("KEYS\x01ключ\x02".encode(), "", ("ключ",)),
    ],
)
def test_words_to_index(
    kernel: ModuleType, properties: bytes, tags: str, keys: tuple[str, ...]
) -> None:
    assert kernel.index_words(properties) == (string_hash(tags), keys)
    made = record(0, properties=properties)
    assert kernel.parse_record(made, 0, 0, True)[7:] == (string_hash(tags), keys)
