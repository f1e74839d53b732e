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
