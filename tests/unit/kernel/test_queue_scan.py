from __future__ import annotations

from struct import pack
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

codes = st.one_of(
    st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
)
units = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**20), codes), max_size=30)


def packed(entries: list[tuple[int, int, int]]) -> bytes:
    return b"".join(pack(">qiq", *entry) for entry in entries)


@given(
    entries=units,
    extra=st.frozensets(codes, max_size=3),
    picks=st.frozensets(st.integers(0, 29), max_size=3),
    torn=st.integers(0, 19),
    as_view=st.booleans(),
)
def test_matching_is_membership(
    kernel: ModuleType,
    entries: list[tuple[int, int, int]],
    extra: frozenset[int],
    picks: frozenset[int],
    torn: int,
    as_view: bool,
) -> None:
    wanted = extra | {entries[pick][2] for pick in picks if pick < len(entries)}
    data: bytes | memoryview = packed(entries) + bytes(torn)
    if as_view:
        data = memoryview(data)
    expected = [at for at, entry in enumerate(entries) if entry[2] in wanted]
    assert kernel.matching_ordinals(data, wanted) == expected
    if hasattr(kernel, "_matches_in_place"):  # hidden in the compiled build, which calls it
        assert kernel._matches_in_place(data, wanted) == expected


@given(
    entries=units,
    wanted=st.frozensets(st.integers(-3, 3), max_size=3),
    count_max=st.integers(1, 10),
    bytes_max=st.integers(0, 2**22),
)
def test_a_scan_stops_before_what_a_bound_keeps_out(
    kernel: ModuleType,
    entries: list[tuple[int, int, int]],
    wanted: frozenset[int],
    count_max: int,
    bytes_max: int,
) -> None:
    chosen, passed = kernel.scan_units(
        packed(entries), wanted, count_max=count_max, bytes_max=bytes_max
    )
    matching = [at for at, entry in enumerate(entries) if not wanted or entry[2] in wanted]
    assert [at for at, _, _ in chosen] == matching[: len(chosen)]
    assert [(position, size) for _, position, size in chosen] == [
        entries[at][:2] for at in matching[: len(chosen)]
    ]
    total = sum(size for _, _, size in chosen)
    assert len(chosen) <= count_max
    assert total <= bytes_max or len(chosen) == 1
    if len(chosen) == len(matching):
        assert passed == len(entries)
        return
    assert passed == matching[len(chosen)]
    assert len(chosen) == count_max or total + entries[passed][1] > bytes_max


def test_no_entries_are_no_matches(kernel: ModuleType) -> None:
    assert kernel.scan_units(b"", frozenset({1}), count_max=1, bytes_max=1) == ([], 0)


# Copies of records.

START = 1 << 33
SEGMENT = bytes(range(256)) * 16
FILLER = 0x7FFF_FFFF
tags = st.sampled_from([0, 1, -1, 2**31, -(2**63), 2**63 - 1])
inside = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 900), tags).map(
        lambda unit: (START + unit[0], *unit[1:])
    ),
    max_size=40,
)


@given(
    units=inside,
    wanted=st.frozensets(tags, max_size=3),
    count_max=st.integers(1, 40),
    bytes_max=st.integers(0, 20_000),
    torn=st.integers(0, 19),
)
def test_the_records_of_a_scan_are_joined(
    kernel: ModuleType,
    units: list[tuple[int, int, int]],
    wanted: frozenset[int],
    count_max: int,
    bytes_max: int,
    torn: int,
) -> None:
    data = packed(units) + bytes(torn)
    segment = memoryview(SEGMENT)
    chosen, scanned = kernel.scan_units(data, wanted, count_max=count_max, bytes_max=bytes_max)
    records = [SEGMENT[at - START : at - START + size] for _, at, size in chosen]
    found = kernel.gather_records(
        data, wanted, count_max, bytes_max, segment, START, START + len(SEGMENT)
    )
    assert found == (b"".join(records), len(records), scanned)


@given(
    units=inside,
    position=st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(START - 2, START + 4100)),
    size=st.one_of(st.integers(-(2**31), 2**31 - 1), st.just(FILLER)),
)
def test_a_record_outside_the_file_is_refused(
    kernel: ModuleType, units: list[tuple[int, int, int]], position: int, size: int
) -> None:
    is_inside = size > 0 and position >= START and position + size <= START + len(SEGMENT)
    data = packed([*units, (position, size, 0)])
    found = kernel.gather_records(
        data, frozenset(), 1000, 10**6, memoryview(SEGMENT), START, START + len(SEGMENT)
    )
    assert (found is not None) == is_inside


def test_large_records_are_left_where_they_are(kernel: ModuleType) -> None:
    segment = memoryview(bytes(100_000))
    for size, is_joined in ((16_384, True), (16_385, False)):
        data = packed([(0, size, 0), (size, size, 0)])
        found = kernel.gather_records(data, frozenset(), 9, 10**6, segment, 0, 100_000)
        assert (found is not None) == is_joined
