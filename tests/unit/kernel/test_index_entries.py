from __future__ import annotations

from array import array
from struct import pack, pack_into, unpack_from
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

SLOTS = 5
HASHES = st.integers(0, 12) | st.integers(0, 2**31 - 1)
POSITIONS = st.integers(0, 2**63 - 1)


def reference(data: bytearray, pairs: list[tuple[int, int]], number: int, seconds: int) -> int:
    used = 0
    for key_hash, position in pairs:
        slot_at = 40 + key_hash % SLOTS * 4
        (newest,) = unpack_from(">i", data, slot_at)
        if newest == 0:
            used += 1
        previous = newest if 0 < newest < number else 0
        at = 40 + SLOTS * 4 + number * 20
        data[at : at + 20] = pack(">iqii", key_hash, position, seconds, previous)
        pack_into(">i", data, slot_at, number)
        number += 1
    return used


@given(
    pairs=st.lists(st.tuples(HASHES, POSITIONS), max_size=20),
    first=st.integers(0, 20),
    number=st.integers(1, 20),
    seconds=st.integers(0, 2**31 - 1),
    slots=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 20), min_size=5, max_size=5),
)
def test_entries_and_slots(
    kernel: ModuleType,
    pairs: list[tuple[int, int]],
    first: int,
    number: int,
    seconds: int,
    slots: list[int],
) -> None:
    first = min(first, len(pairs))
    data = bytearray(40 + SLOTS * 4 + 41 * 20)
    pack_into(">5i", data, 40, *slots)
    wanted = bytearray(data)
    used = reference(wanted, pairs[first:], number, seconds)
    numbers = array("q", [each for pair in pairs for each in pair])
    count = len(pairs) - first
    view = memoryview(data)
    assert kernel.put_pairs(view, numbers, first, count, SLOTS, number, seconds) == used
    assert data == wanted


@given(
    first=st.integers(-3, 6),
    count=st.integers(-3, 6),
    number=st.integers(-2, 8),
    slot_count=st.integers(-1, 12),
    room=st.integers(0, 5),
    hashes=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4),
)
def test_nothing_is_written_outside_the_room(
    kernel: ModuleType,
    first: int,
    count: int,
    number: int,
    slot_count: int,
    room: int,
    hashes: list[int],
) -> None:
    """The file has room for ``room`` entries, the first of which is never used, and 5 slots."""
    size = 40 + SLOTS * 4 + room * 20
    data = bytearray(size + 64)
    pairs = array("q", [each for key_hash in hashes for each in (key_hash, 1)])
    view = memoryview(data)[:size]
    found = kernel.put_pairs(view, pairs, first, count, slot_count, number, 1)
    entry_count = (size - 40 - slot_count * 4) // 20
    fits = (
        min(first, count) >= 0
        and first + count <= 4
        and min(slot_count, number) > 0
        and number + count <= entry_count
    )
    assert (found >= 0) == fits
    assert not any(data[size:])
    if not fits or not count:
        assert not any(data)
