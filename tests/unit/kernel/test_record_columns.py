"""Each loop by itself; that batches are right as a whole is shown where they are made."""

from __future__ import annotations

from array import array
from itertools import pairwise
from struct import pack, pack_into
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.record import unpack_host

from .test_record_scan import record

eight = st.binary(min_size=8, max_size=8)


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


def laid_out(kernel: ModuleType, data: memoryview, *starts: int) -> tuple[int, list[list[int]]]:
    """Return how many records are sound, and what is noted of each."""
    count = len(starts)
    places, longs_, ints = room("q", 7 * count), room("q", 5 * count), room("i", 6 * count)
    sound = kernel.lay_out(data, longs(*starts), -7, 5000, places, longs_, ints)
    every = [*places.tolist(), *longs_.tolist(), *ints.tolist()]
    return sound, [every[at::count] for at in range(count)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30])
def test_the_parts_of_a_record_are_found(kernel: ModuleType, version: int, sys_flag: int) -> None:
    made = record(0, topic="Orders", body=b"the body", properties=b"a\x01b", version=version,
                  sys_flag=sys_flag, store_ms=-5)  # fmt: skip
    data = memoryview(b"??" + made)
    count, (found,) = laid_out(kernel, data, 2)
    store, *parts = found[:7]
    assert count == 1
    assert bytes(data[store : store + 8]) == pack(">q", -5)
    texts = [bytes(data[at:end]) for at, end in zip(parts[::2], parts[1::2], strict=True)]
    assert texts == [b"the body", b"Orders", b"a\x01b"]
    assert parts[-1] == len(data)


@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=4, max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=5, max_size=5),
    st.sampled_from([0, 0x10, 0x20, 0x30]),
)
def test_numbers_are_read(
    kernel: ModuleType, ints: list[int], longs_: list[int], sys_flag: int
) -> None:
    made = bytearray(record(0, sys_flag=sys_flag))
    store_at = 68 if sys_flag & 0x10 else 56
    rest_at = store_at + (28 if sys_flag & 0x20 else 16)
    for at, value in zip((8, 12, 16, rest_at), ints, strict=True):
        pack_into(">i", made, at, value)
    for at, value in zip((20, 28, 40, store_at, rest_at + 4), longs_, strict=True):
        pack_into(">q", made, at, value)
    count, (found, other) = laid_out(kernel, memoryview(made + record(1)), 0, len(made))
    offset, position, born, store, prepared = longs_
    times = [1000 * max(-7, min(ms, 5000)) for ms in (born, store)]
    assert count == 2
    assert found[7:12] == [offset, position, *times, prepared]
    assert found[12:] == [len(made), *ints[:3], sys_flag, ints[3]]
    assert other[12] == len(record(1))


@pytest.mark.parametrize("version", [1, 2])
def test_wrong_lengths_are_detected(kernel: ModuleType, version: int) -> None:
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
        assert laid_out(kernel, memoryview(data), 0)[0] == 0


@given(st.lists(st.tuples(st.binary(max_size=3), st.integers(-2, 2), st.integers(-9, 9))))
def test_queues_are_numbered(kernel: ModuleType, some: list[tuple[bytes, int, int]]) -> None:
    ends = [sum(len(topic) for topic, _, _ in some[: at + 1]) for at in range(len(some))]
    begins = [end - len(topic) for end, (topic, _, _) in zip(ends, some, strict=True)]
    numbers, found = room("i", len(some)), room("q", 3 * len(some))
    count = kernel.number_queues(
        memoryview(b"".join(topic for topic, _, _ in some)),
        longs(*begins),
        longs(*ends),
        memoryview(array("i", [queue_id for _, queue_id, _ in some])),
        longs(*[offset for _, _, offset in some]),
        room("i", 2 << len(some).bit_length()),
        numbers,
        found,
    )
    names = [each[:2] for each in some]
    queues = list(dict.fromkeys(names))
    assert [queues[number] for number in numbers] == names
    members = [[each[2] for each in some if each[:2] == name] for name in queues]
    expected = [names.index(name) for name in queues], [*map(min, members)], [*map(max, members)]
    assert tuple(found.tolist()[k * len(some) :][:count] for k in range(3)) == expected


def test_records_are_found_in_queues(kernel: ModuleType) -> None:
    """Offset 4 of queue 0 is the first entry; queue 1 has none."""
    entries = memoryview(
        b"".join(pack(">qiq", *each) for each in [(70, 5, 0), (80, 5, 0), (0, 0, 0), (90, -5, 0)])
    )
    limits = longs(-4, 4, 3, 0, 75, 95, 0, 97)
    cases = [  # queue, offset, position, visible
        (0, 4, 70, 1), (0, 4, 71, 0), (0, 5, 80, 1),
        (0, 6, 74, 0), (0, 6, 75, 1),  # empty: what lies behind the others is not there yet
        (0, 7, 90, 0), (0, 3, 99, 1), (0, 2, 99, 0), (0, -(2**63), 99, 0), (0, 2**63 - 1, 99, 1),
        (1, 4, 96, 0), (1, 4, 97, 1),
    ]  # fmt: skip
    visible = room("B", len(cases))
    queues, offsets, positions, expected = zip(*cases, strict=True)
    kernel.find_in_queues(
        entries,
        memoryview(array("i", queues)),
        longs(*offsets),
        longs(*positions),
        limits,
        visible,
    )
    assert tuple(visible) == expected


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


@given(
    st.lists(
        st.tuples(
            eight | st.just(b"\x7f\0\0\1\0\0\x2a\x9f"),
            eight | st.integers(2**33 - 3, 2**33 + 3).map(lambda at: at.to_bytes(8, "big")),
        ),
        max_size=5,
    )
)
def test_hosts_and_ids_are_written(kernel: ModuleType, both: list[tuple[bytes, bytes]]) -> None:
    hosts = [host for host, _ in both]
    data = memoryview(b"".join(b"?" * 28 + position + host for host, position in both))
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
    assert bytes(ids).decode() == "".join((host + at).hex().upper() for host, at in both)
