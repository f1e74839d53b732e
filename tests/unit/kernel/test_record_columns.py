"""Each loop by itself; that batches are right as a whole is shown where they are made."""

from __future__ import annotations

from array import array
from itertools import pairwise
from struct import pack, pack_into
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import unpack_host

from .test_record_scan import record

odd_text = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"TAGS", b"a", b"b", b"\xc3\xa4"]), max_size=12
).map(b"".join)


def longs(*values: int) -> memoryview:
    return memoryview(array("q", values))


def room(kind: str, count: int) -> memoryview:
    return memoryview(array(kind, bytes(array(kind).itemsize * count)))


@given(st.integers(0, 300), st.booleans())
def test_a_walk_stops_at_what_is_no_record(kernel: ModuleType, cut: int, is_v2: bool) -> None:
    first, second = record(0), record(1, version=2 if is_v2 else 1, body=b"x" * 99)
    starts = room("q", 9)
    data = memoryview(first + second[: len(second) - cut])
    expected = (1, len(first)) if cut else (2, len(first) + len(second))
    assert kernel.walk(data, starts, 10**9) == expected
    assert starts.tolist()[: expected[0]] == [0, len(first)][: expected[0]]
    assert kernel.walk(data, starts, 1) == (1, len(first))
    assert kernel.walk(data[:90], starts, 10**9) == (0, 0)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30])
def test_the_parts_of_a_record_are_found(kernel: ModuleType, version: int, sys_flag: int) -> None:
    made = record(0, topic="Orders", body=b"the body", properties=b"a\x01b", version=version,
                  sys_flag=sys_flag, store_ms=-5)  # fmt: skip
    data, places = memoryview(b"??" + made), room("q", 8)
    assert kernel.lay_out(data, longs(2), places) == 1
    store, rest, *parts = places.tolist()
    assert bytes(data[store : store + 8]) == pack(">q", -5)
    assert rest == parts[0] - 16
    texts = [bytes(data[at:end]) for at, end in zip(parts[::2], parts[1::2], strict=True)]
    assert texts == [b"the body", b"Orders", b"a\x01b"]
    assert places[7] == len(data)


@pytest.mark.parametrize("version", [1, 2])
def test_lengths_that_lie_are_found_out(kernel: ModuleType, version: int) -> None:
    made = record(0, topic="Orders", body=b"body", properties=b"", version=version)
    topic_at = made.index(b"Orders")
    lies = [(84, ">i", -1), (84, ">i", 10**6), (84, ">i", 3), (len(made) - 2, ">h", -1),
            (len(made) - 2, ">h", 1), (topic_at - 1, ">B", 7), (topic_at - 1, ">B", 255),
            (36, ">i", 0x30)]  # fmt: skip
    if version == 2:
        lies.append((topic_at - 2, ">h", -1))
    for at, kind, value in lies:
        data = bytearray(made)
        pack_into(kind, data, at, value)
        assert kernel.lay_out(memoryview(data), longs(0), room("q", 8)) == 0


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5), st.integers(0, 5))
def test_numbers_are_read(kernel: ModuleType, values: list[int], shift: int) -> None:
    count = len(values)
    data = memoryview(bytes(shift) + b"".join(pack(">i", each) for each in values))
    found = room("i", count)
    kernel.read_ints(data, longs(*range(0, 4 * count, 4)), shift, found)
    assert found.tolist() == values
    wide = [each << 31 for each in values]
    data = memoryview(bytes(shift) + b"".join(pack(">q", each) for each in wide))
    found = room("q", count)
    kernel.read_longs(data, longs(*range(0, 8 * count, 8)), shift, found)
    assert found.tolist() == wide


def test_times_are_kept_within_bounds(kernel: ModuleType) -> None:
    data = memoryview(pack(">qqq", -(2**62), 1234, 2**62))
    found = room("q", 3)
    kernel.read_times(data, longs(0, 8, 16), 0, -7, 5000, found)
    assert found.tolist() == [-7_000, 1_234_000, 5_000_000]


def test_slices_are_joined(kernel: ModuleType) -> None:
    data, offsets = memoryview(b"0123456789"), room("i", 5)
    begins, ends = longs(2, 5, -1, 0), longs(4, 5, -1, 3)
    assert kernel.measure(begins, ends, offsets) == 5
    joined = room("B", 5)
    kernel.copy_slices(data, begins, offsets, joined)
    assert (bytes(joined), offsets.tolist()) == (b"23012", [0, 2, 2, 2, 5])


@pytest.mark.parametrize("text", [b"", b"plain \x7f", "ä".encode(), b"x" * 99 + b"\xff"])
def test_ascii_is_known(kernel: ModuleType, text: bytes) -> None:
    assert bool(kernel.is_ascii(memoryview(text))) == text.isascii()


@given(st.lists(odd_text, max_size=5))
def test_properties_are_split_as_by_the_plain_decoder(
    kernel: ModuleType, texts: list[bytes]
) -> None:
    data = memoryview(b"".join(texts))
    ends = [sum(map(len, texts[: at + 1])) for at in range(len(texts))]
    begins = [0, *ends[:-1]] if ends else []
    row_ends, pairs = room("i", len(texts) + 1), room("q", 4 * (len(data) // 3))
    count = kernel.split_properties(data, longs(*begins), longs(*ends), row_ends, pairs)
    places = [pairs.tolist()[at * (len(pairs) // 4) :][:count] for at in range(4)]
    every = [
        (bytes(data[a:b]).decode(), bytes(data[c:d]).decode())
        for a, b, c, d in zip(*places, strict=True)
    ]
    expected = [list(decode_properties(text).items()) for text in texts]
    rows = row_ends.tolist()
    assert [every[a:b] for a, b in pairwise(rows)] == expected
    values_at, value_ends = room("q", len(texts)), room("q", len(texts))
    found = kernel.find_values(data, b"TAGS", row_ends, pairs, values_at, value_ends)
    tags = [dict(pairs).get("TAGS") for pairs in expected]
    assert found == len(tags) - tags.count(None)
    assert [
        None if a < 0 else bytes(data[a:b]).decode()
        for a, b in zip(values_at.tolist(), value_ends.tolist(), strict=True)
    ] == tags


@given(st.lists(st.binary(min_size=8, max_size=8) | st.just(b"\x7f\0\0\1\0\0\x2a\x9f"), max_size=5))
def test_hosts_and_ids_are_written(kernel: ModuleType, hosts: list[bytes]) -> None:
    data = memoryview(b"".join(b"?" * 28 + b"position" + host for host in hosts))
    starts = longs(*range(0, 44 * len(hosts), 44))
    offsets, text = room("i", len(hosts) + 1), room("B", 27 * len(hosts))
    size = kernel.write_hosts(data, starts, 36, offsets, text)
    places = offsets.tolist()
    assert places[-1] == size
    assert [bytes(text[a:b]).decode() for a, b in pairwise(places)] == [
        "{}:{}".format(*unpack_host(host)) for host in hosts
    ]
    ids = room("B", 32 * len(hosts))
    kernel.write_ids(data, starts, 36, starts, ids)
    assert bytes(ids).decode() == "".join((host + b"position").hex().upper() for host in hosts)
