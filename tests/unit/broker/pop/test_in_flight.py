"""What is in flight: when it is due, how far the log is needed, and that nothing piles up."""

from __future__ import annotations

from rocketpost.broker.pop.in_flight import Checkpoint, Flight, Key
from rocketpost.broker.pop.watermark import NOTHING_REACHED, Needed

from ..pop_world import FakeStored


def checkpoint(at: int, *, invisible_ms: int = 1000, count: int = 1) -> Checkpoint:
    return Checkpoint(
        Key("T", "g", 0, at * 10, 0),
        invisible_ms=invisible_ms,
        offsets=range(at * 10, at * 10 + count),
        revive_queue=0,
        revive_offset=at,
    )


def launched(flight: Flight, at: int, **more: int) -> Checkpoint:
    made = checkpoint(at, **more)
    flight.add(made)
    flight.launch(made)
    return made


def test_the_log_is_needed_from_the_oldest_that_has_not_ended() -> None:
    needed = Needed()
    flight = Flight(needed)
    assert needed.reached(0) == NOTHING_REACHED
    first, second, third = (launched(flight, at, count=2) for at in range(3))
    assert needed.reached(0) == -1
    flight.close(second, [10, 11])
    assert needed.reached(0) == -1
    flight.close(first, [0])
    assert needed.reached(0) == -1
    flight.close(first, [1, 99])
    assert needed.reached(0) == 1
    flight.close(third, [20, 21])
    assert needed.reached(0) == 2
    assert flight.count == len(flight) == 0


def test_what_was_never_stored_leaves_no_trace() -> None:
    needed = Needed()
    flight = Flight(needed)
    lost = checkpoint(0)
    flight.add(lost)
    successor = checkpoint(1)
    successor.revive_offset = 0  # the log gave the place to another
    flight.add(successor)
    flight.discard(lost)
    assert needed.reached(0) == -1
    assert flight.count == 1
    assert flight.next_due_ms() is None


def test_checkpoints_come_due_in_order_and_once() -> None:
    needed = Needed()
    flight = Flight(needed)
    late, early = launched(flight, 0, invisible_ms=20), launched(flight, 1, invisible_ms=10)
    assert flight.take_due(9, count_max=5) == []
    assert flight.take_due(20, count_max=1) == [early]
    assert flight.take_due(20, count_max=5) == [late]
    assert flight.take_due(20, count_max=5) == []
    flight.begin_close(early, [10, 11, 12], FakeStored())
    flight.reopen(early, [10, 11], due_ms=30)
    assert flight.next_due_ms() == 30
    assert flight.take_due(30, count_max=5) == [early]


def test_what_has_ended_does_not_pile_up_behind_one_that_has_not() -> None:
    needed = Needed()
    flight = Flight(needed)
    launched(flight, 0, invisible_ms=10**9)
    for at in range(1, 5000):
        flight.close(launched(flight, at, invisible_ms=10**9), [at * 10])
    assert len(flight._due) < 2000
    assert len(needed._oldest[0]) < 2000
    assert needed.reached(0) == -1
    assert flight.next_due_ms() == 10**9
