from __future__ import annotations

from array import array
from struct import pack
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

Row = tuple[int, int, int, int, int]

LONGS = st.integers(-(2**63), 2**63 - 1)
MESSAGES = st.lists(
    st.tuples(st.integers(0, 2**63 - 1), st.integers(1, 2**31 - 1), LONGS, st.integers(0, 6)),
    max_size=40,
)
SLOT_COUNT = 7


def call(
    kernel: ModuleType, rows: list[Row], first: int, count: int, *, room: int | None = None
) -> tuple[int, list[list[int]], bytes]:
    """Return the number of queues, their groups and the entries; marks must be as before."""
    room = count if room is None else room
    marks, groups = array("q", bytes(8 * SLOT_COUNT)), array("q", [7] * (5 * max(room, 0)))
    entries = bytearray(20 * max(room, 0))
    numbers = array("q", [number for row in rows for number in row])
    found = kernel.group_rows(numbers, first, count, marks, groups, entries)
    assert not any(marks)
    return found, [list(groups[5 * at : 5 * at + 5]) for at in range(found)], bytes(entries)


@given(messages=MESSAGES, starts=st.lists(st.integers(0, 2**62), min_size=7, max_size=7))
def test_entries_are_grouped_by_queue_in_their_order(
    kernel: ModuleType, messages: list[tuple[int, int, int, int]], starts: list[int]
) -> None:
    offsets = list(starts)
    rows: list[Row] = []
    for position, size, tags_code, slot in messages:
        rows.append((position, size, tags_code, slot, offsets[slot]))
        offsets[slot] += 1
    found, groups, entries = call(kernel, rows, 0, len(rows))
    order = list(dict.fromkeys(slot for *_, slot, _ in rows))
    assert found == len(order)
    wanted, end = b"", 0
    for slot, group in zip(order, groups, strict=True):
        mine = [row for row in rows if row[3] == slot]
        end += len(mine)
        wanted += b"".join(pack(">qiq", *row[:3]) for row in mine)
        assert group == [slot, starts[slot], end, sum(row[1] for row in mine), mine[-1][0]]
    assert entries == wanted


@given(
    rows=st.lists(
        st.tuples(LONGS, LONGS, LONGS, st.integers(-1, 7) | LONGS, st.integers(0, 2) | LONGS),
        max_size=8,
    ),
    first=st.integers(-2, 9),
    count=st.integers(-2, 9),
    room=st.integers(0, 9),
)
def test_rows_that_cannot_be_are_refused(
    kernel: ModuleType, rows: list[Row], first: int, count: int, room: int
) -> None:
    found, _, entries = call(kernel, rows, first, count, room=room)
    used = rows[first : first + count] if first >= 0 and count > 0 else []
    following: dict[int, int] = {}
    is_sound = len(used) == count <= room
    for _, size, _, slot, offset in used:
        is_sound &= 0 < size < 2**31 and 0 <= slot < SLOT_COUNT
        is_sound &= following.get(slot, offset) == offset
        following[slot] = offset + 1
    if count == 0:
        assert found == 0
    elif is_sound:
        assert found == len(following)
    else:
        assert found == -1
    if found <= 0:
        assert not any(entries)


@pytest.mark.parametrize("position", [0xD3 << 24, 0xD3 << 56, 2**63 - 1, 0x80808080_80808080 >> 1])
def test_bytes_above_127(kernel: ModuleType, position: int) -> None:
    row = (position & (2**63 - 1), 0x7FD3D3D3, -0x2C2C2C2C2C2C2C2D, 3, 5)
    assert call(kernel, [row], 0, 1)[2] == pack(">qiq", *row[:3])
