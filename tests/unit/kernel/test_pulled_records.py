"""Records cut from a pull response are those that ``codec.record`` decodes, whatever the bytes."""

from __future__ import annotations

from types import ModuleType

from hypothesis import example, given
from hypothesis import strategies as st

from rocketpost.codec.record import CutRecord, Record, decode_records, encode_record

hosts = st.sampled_from([bytes(range(8)), bytes(range(20))])
records = st.builds(
    Record,
    size=st.just(0),
    magic=st.just(0),
    body_crc=st.just(0),
    queue_id=st.integers(0, 9),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_offset=st.integers(-(2**63), 2**63 - 1),
    position=st.integers(0, 2**63 - 1),
    sys_flag=st.integers(0, 15),
    born_ms=st.integers(0, 2**50),
    born_host_bytes=hosts,
    store_ms=st.integers(0, 2**50),
    store_host_bytes=hosts,
    reconsume_times=st.integers(0, 20),
    prepared_position=st.integers(0, 2**63 - 1),
    body=st.binary(max_size=40),
    topic=st.one_of(st.sampled_from(["T", "Ü", "x" * 200]), st.text("ab", max_size=3)),
    properties_bytes=st.binary(max_size=30),
)
changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3)


def encode_all(given: list[Record]) -> bytes:
    return b"".join(bytes(part) for record in given for part in encode_record(record))


def check(kernel: ModuleType, data: bytes) -> None:
    expected = decode_records(data)
    read = sum(record.size for record in expected)
    cuts = [kernel.cut_records]
    # Hidden in the compiled build, which calls one of them.
    cuts += [getattr(kernel, name) for name in ("_cut_unpacked", "_cut_in_place")
             if hasattr(kernel, name)]  # fmt: skip
    for cut in cuts:
        found, end = cut(data, CutRecord)
        assert [each.decode() for each in found] == expected
        assert end == read
        for each, record in zip(found, expected, strict=True):
            assert each.queue_offset == record.queue_offset
            assert each.sys_flag == record.sys_flag
            assert (each.body, each.topic) == (record.body, record.topic)


@given(stored=st.lists(records, max_size=4), cut=st.integers(0, 120), changed=changes)
@example(stored=[], cut=0, changed=[])
def test_cut_records_are_the_decoded_ones(
    kernel: ModuleType, stored: list[Record], cut: int, changed: list[tuple[float, int]]
) -> None:
    data = bytearray(encode_all(stored))
    for place, value in changed:
        if data:
            data[int(place * len(data))] = value
    check(kernel, bytes(data))
    check(kernel, bytes(data[: max(0, len(data) - cut)]))


@given(stored=records, lengths=st.lists(st.tuples(st.integers(0, 130), st.binary(min_size=4,
       max_size=4)), max_size=2))  # fmt: skip
def test_wrong_lengths_end_the_cutting(
    kernel: ModuleType, stored: Record, lengths: list[tuple[int, bytes]]
) -> None:
    data = bytearray(encode_all([stored, stored]))
    for at, four in lengths:
        if at + 4 <= len(data):
            data[at : at + 4] = four
    check(kernel, bytes(data))


@given(data=st.binary(max_size=300))
def test_any_bytes_are_cut_or_refused(kernel: ModuleType, data: bytes) -> None:
    check(kernel, data)
