"""Messages in flight: due times, the oldest needed position, and no leftovers."""

from __future__ import annotations

from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.in_flight import Checkpoint, InFlightTable, Key
from rocketpost.broker.pop.watermark import BEFORE_FIRST, ReviveWatermark
from rocketpost.store.draft import Draft

DRAFT = Draft("R", 0, 0, 0, 0, b"", b"", 0, 0, b"", b"")


def checkpoint(at: int, *, invisible_ms: int = 1000, count: int = 1) -> Checkpoint:
    return Checkpoint(
        Key("T", "g", 0, at * 10, 0),
        invisible_ms=invisible_ms,
        offsets=range(at * 10, at * 10 + count),
        revive_queue=0,
        revive_offset=at,
    )


def launched(in_flight: InFlightTable, at: int, **more: int) -> Checkpoint:
    made = checkpoint(at, **more)
    in_flight.add(made)
    in_flight.launch(made)
    return made


def test_the_log_is_needed_from_the_oldest_open_checkpoint_on() -> None:
    watermark = ReviveWatermark()
    in_flight = InFlightTable(watermark)
    assert watermark.offset(0) == BEFORE_FIRST
    first, second, third = (launched(in_flight, at, count=2) for at in range(3))
    assert watermark.offset(0) == -1
    in_flight.close(second, [10, 11])
    assert watermark.offset(0) == -1
    in_flight.close(first, [0])
    assert watermark.offset(0) == -1
    in_flight.close(first, [1, 99])
    assert watermark.offset(0) == 1
    in_flight.close(third, [20, 21])
    assert watermark.offset(0) == 2
    assert in_flight.count == len(in_flight) == 0


def test_a_checkpoint_that_was_never_stored_leaves_no_trace() -> None:
    watermark = ReviveWatermark()
    in_flight = InFlightTable(watermark)
    lost = checkpoint(0)
    in_flight.add(lost)
    successor = checkpoint(1)
    successor.revive_offset = 0  # the log gave the place to another
    in_flight.add(successor)
    in_flight.discard(lost)
    assert watermark.offset(0) == -1
    assert in_flight.count == 1
    assert in_flight.next_due_ms() is None


def test_checkpoints_fall_due_in_order_and_once() -> None:
    watermark = ReviveWatermark()
    in_flight = InFlightTable(watermark)
    late, early = launched(in_flight, 0, invisible_ms=20), launched(in_flight, 1, invisible_ms=10)
    assert in_flight.take_due(9, count_max=5) == []
    assert in_flight.take_due(20, count_max=1) == [early]
    assert in_flight.take_due(20, count_max=5) == [late]
    assert in_flight.take_due(20, count_max=5) == []
    in_flight.begin_close(early, [10, 11, 12], Change([DRAFT]))
    in_flight.reopen(early, [10, 11], due_ms=30)
    assert in_flight.next_due_ms() == 30
    assert in_flight.take_due(30, count_max=5) == [early]


def test_ended_entries_do_not_pile_up_behind_an_open_one() -> None:
    watermark = ReviveWatermark()
    in_flight = InFlightTable(watermark)
    launched(in_flight, 0, invisible_ms=10**9)
    for at in range(1, 5000):
        in_flight.close(launched(in_flight, at, invisible_ms=10**9), [at * 10])
    assert len(in_flight._due) < 2000
    assert len(watermark._oldest[0]) < 2000
    assert watermark.offset(0) == -1
    assert in_flight.next_due_ms() == 10**9
