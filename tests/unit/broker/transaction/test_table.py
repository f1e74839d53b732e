"""The table of pending halves, against a plain model of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rocketpost.broker.transaction.log import Identity
from rocketpost.broker.transaction.table import Fate, Half, PendingTable


def half(name: str, offset: int, due_ms: int = 0) -> Half:
    return Half(
        Identity(name, 0),
        offset=offset,
        position=100 * offset,
        group="g",
        checks=0,
        since_ms=0,
        due_ms=due_ms,
        is_confirmed=True,
    )


def test_halves_fall_due_in_the_order_of_their_times() -> None:
    table = PendingTable()
    for name, due_ms in (("a", 30), ("b", 10), ("c", 20)):
        table.add(half(name, ord(name), due_ms))
    assert table.next_due_ms() == 10
    assert table.take_due(9) is None
    taken = [table.take_due(25), table.take_due(25), table.take_due(25)]
    assert [each and each.identity.unique_key for each in taken] == ["b", "c", None]
    assert table.next_due_ms() == 30


def test_only_the_last_schedule_counts() -> None:
    table = PendingTable()
    one = half("a", 0, 10)
    table.add(one)
    table.schedule(one, 50)
    assert table.take_due(49) is None
    assert table.take_due(50) is one
    assert table.next_due_ms() is None


def test_an_ending_or_ended_half_does_not_fall_due() -> None:
    table = PendingTable()
    first, second = half("a", 0), half("b", 1)
    table.add(first)
    table.add(second)
    table.remove(first, proof=0)
    table.remove(first, proof=0)
    second.ending = Fate.COMMIT
    assert table.take_due(99) is None
    assert len(table) == 1


def test_a_clock_set_back_moves_the_schedule() -> None:
    table = PendingTable()
    table.add(half("a", 0, 100))
    waiting = half("b", 1, 50)
    table.add(waiting)
    assert table.take_due(60) is waiting
    table.shift(40)
    assert table.next_due_ms() == 60


def test_halves_are_found_by_offset_or_position() -> None:
    table = PendingTable()
    for offset, name in enumerate("abc"):
        table.add(half(name, offset))
    assert [each.offset for each in table.find_before(offset=2)] == [0, 1]
    assert [each.offset for each in table.find_before(position=100)] == [0]


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "move", "remove"]), st.integers(0, 9), st.integers(0, 50))
    ),
    st.integers(0, 60),
)
def test_progress_passes_no_offset_that_is_pending_or_not_on_disk(
    steps: list[tuple[str, int, int]], durable: int
) -> None:
    table = PendingTable()
    table.start_at(5, 0)
    next_offset, closing = 5, []
    for kind, which, proof in steps:
        halves = list(table)
        if kind == "add" or not halves:
            table.add(half(f"h{next_offset}", next_offset))
            next_offset += 1
            continue
        one = halves[which % len(halves)]
        closing.append((proof, one.offset))
        if kind == "move":
            table.move(one, offset=next_offset, position=0, proof=proof)
            next_offset += 1
        else:
            table.remove(one, proof=proof)
    needed = [each.offset for each in table] + [at for proof, at in closing if proof > durable]
    floor = table.half_floor(durable)
    assert floor <= min(needed, default=next_offset)
    assert table.half_floor(10**9) == min((each.offset for each in table), default=next_offset)
    assert table.half_end == next_offset
    assert table.is_settled


def test_op_messages_are_needed_as_long_as_the_halves_they_name() -> None:
    table = PendingTable()
    table.start_at(0, 7)
    for op_offset, offsets in ((7, [1, 2]), (8, [0, 5]), (9, [])):
        table.note_op(op_offset, offsets)
    assert [table.op_floor(floor) for floor in (0, 2, 3, 5, 6)] == [7, 7, 8, 8, 10]


def test_ended_halves_are_forgotten_although_an_earlier_one_waits() -> None:
    table = PendingTable()
    table.add(half("first", 0, 10))
    for offset in range(1, 3000):
        ended = half(f"h{offset}", offset, 3_600_000)
        table.add(ended)
        table.remove(ended, proof=0)
        assert table.next_due_ms() == 10
    assert table.schedule_count < 1100
    first = table.take_due(10)
    assert first is not None
    assert first.identity.unique_key == "first"
    assert table.next_due_ms() is None
