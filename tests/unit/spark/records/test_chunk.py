"""Records in bytes: found, counted and told apart by their queues, both ways alike."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketpost.codec.record import Record, decode_records
from rocketpost.spark.records.chunk import Chunk, find_records
from rocketpost.spark.records.fields import Limits

from ..made_records import laid_out, packed, record, records

WAYS = pytest.mark.parametrize("compiled", [True, False])
offsets = st.integers(0, 5) | st.sampled_from([-(2**63), 2**63 - 1])
in_queues = st.builds(
    lambda topic, queue_id, offset, at: record(
        topic=topic, queue_id=queue_id, queue_offset=offset, position=at
    ),
    st.sampled_from(["T", "U", "Topic-1", "Topic-2"]),
    st.sampled_from([0, 1, -1, 2**31 - 1]),
    offsets,
    st.integers(0, 9),
)


@WAYS
@settings(deadline=None)
@given(st.lists(records(), max_size=6), st.integers(0, 2000), st.binary(max_size=200))
def test_a_walk_finds_whole_records(
    compiled: bool, some: list[Record], bytes_max: int, rest: bytes
) -> None:
    data, starts = laid_out(some)
    found, end = find_records(data + b"\0" + rest, compiled=compiled)
    assert (found.tolist(), end) == (starts.tolist(), len(data))
    found, end = find_records(data, bytes_max=bytes_max, compiled=compiled)
    assert found.tolist() == [at for at in starts.tolist() if at < bytes_max]


@WAYS
@settings(deadline=None)
@given(st.lists(records(), min_size=1, max_size=4), st.data())
def test_fields_end_at_the_first_inconsistent_record(
    compiled: bool, some: list[Record], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(some) - 1))
    raw, starts = laid_out(some)
    true = Chunk(raw, starts, compiled=compiled).fields
    damaged = bytearray(raw)
    end = int(starts[at]) + len(packed(some[at]))
    length_at = end - len(some[at].properties_bytes) - 2
    damaged[length_at : length_at + 2] = b"\x7f\xff"
    fields = Chunk(bytes(damaged), starts, compiled=compiled).fields
    assert (true.count, fields.count) == (len(some), at)
    for name in ("queueOffset", "position"):
        assert fields.long(name).tolist() == true.long(name).tolist()[:at]
    assert fields.bodies().to_pylist() == [each.body for each in some[:at]]


@WAYS
@settings(deadline=None)
@given(st.lists(in_queues, max_size=12))
def test_queues_are_numbered_in_order_of_appearance(compiled: bool, some: list[Record]) -> None:
    queues = Chunk(*laid_out(some), compiled=compiled).fields.queues()
    names = [(each.topic, each.queue_id) for each in some]
    assert queues.names == list(dict.fromkeys(names))
    assert [queues.names[number] for number in queues.numbers] == names
    for name, low, high in zip(queues.names, queues.lows, queues.highs, strict=True):
        members = [each.queue_offset for each in some if (each.topic, each.queue_id) == name]
        assert (low, high) == (min(members), max(members))


@WAYS
def test_topics_that_are_not_text_are_distinguished(compiled: bool) -> None:
    data, starts = laid_out([record(topic=topic) for topic in ("a", "b", "a", "c")])
    for was, now in ((b"\x01b\0", b"\x01\xfe\0"), (b"\x01c\0", b"\x01\xff\0")):
        data = data.replace(was, now)
    queues = Chunk(data, starts, compiled=compiled).fields.queues()
    assert queues.names == [("a", 0), ("\ufffd", 0), ("\ufffd", 0)]
    assert queues.numbers.tolist() == [0, 1, 0, 2]


entry = st.tuples(st.integers(0, 9), st.sampled_from([0, 0, 1, 90, -1]))
limit = st.builds(Limits, st.integers(-3, 9), *[st.integers(0, 9)] * 3)


@settings(deadline=None)
@given(st.lists(in_queues, max_size=12), st.lists(entry, max_size=9), st.data())
def test_both_comparisons_of_entries_agree(
    some: list[Record], entries: list[tuple[int, int]], data: st.DataObject
) -> None:
    packed_entries = b"".join(struct.pack(">qiq", at, size, 7) for at, size in entries)
    raw, starts = laid_out(some)
    ways = [Chunk(raw, starts, compiled=compiled).fields for compiled in (True, False)]
    queues = ways[0].queues()
    limits = [data.draw(limit) for _ in queues.names]
    expected = []
    for each, number in zip(decode_records(raw), queues.numbers.tolist(), strict=True):
        base, first, behind, alive = limits[number]
        ordinal = base + each.queue_offset
        at, size = entries[ordinal] if 0 <= ordinal < len(entries) else (0, 0)
        is_there = size > 0 and at == each.position
        is_pending = size == 0 and each.queue_offset >= first and each.position >= behind
        expected.append((is_there or is_pending) and each.position >= alive)
    for fields in ways:
        assert fields.in_queues(packed_entries, limits).tolist() == expected


@WAYS
def test_some_records_of_a_chunk(compiled: bool) -> None:
    data, starts = laid_out([record(queue_offset=at) for at in range(3)])
    chunk = Chunk(data, starts, compiled=compiled)
    assert chunk.only(np.ones(3, np.bool_)) is chunk
    some = chunk.only(np.array([True, False, True]))
    assert (len(some), some.fields.long("queueOffset").tolist()) == (2, [0, 2])
