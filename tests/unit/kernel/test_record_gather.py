from __future__ import annotations

from struct import pack
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.kernel.queue_scan import scan_units

START = 1 << 33
SEGMENT = bytes(range(256)) * 16
FILLER = 0x7FFF_FFFF

codes = st.sampled_from([0, 1, -1, 2**31, -(2**63), 2**63 - 1])
entries = st.lists(
    st.tuples(st.integers(0, 3000), st.integers(1, 900), codes).map(
        lambda unit: (START + unit[0], *unit[1:])
    ),
    max_size=40,
)


def packed(units: list[tuple[int, int, int]]) -> bytes:
    return b"".join(pack(">qiq", *unit) for unit in units)


@given(
    units=entries,
    wanted=st.frozensets(codes, max_size=3),
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
    chosen, scanned = scan_units(data, wanted, count_max=count_max, bytes_max=bytes_max)
    records = [SEGMENT[at - START : at - START + size] for _, at, size in chosen]
    found = kernel.gather_records(
        data, wanted, count_max, bytes_max, segment, START, START + len(SEGMENT)
    )
    assert found == (b"".join(records), len(records), scanned)


@given(
    units=entries,
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
