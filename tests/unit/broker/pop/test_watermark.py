"""Records that are needed after a crash: reading starts before the oldest of them."""

from __future__ import annotations

from rocketpost.broker.pop.watermark import NOTHING_REACHED, Needed


def test_the_oldest_holds_everything_back() -> None:
    needed = Needed()
    assert needed.reached(0) == NOTHING_REACHED
    needed.add(0, 5, "a")
    needed.add(0, 7, "b")
    assert needed.reached(0) == 4
    needed.end(0, 7, "b")
    assert needed.reached(0) == 4
    needed.end(0, 5, "a")
    assert needed.reached(0) == 7
    assert needed.reached(1) == NOTHING_REACHED


def test_what_was_never_stored_takes_nobodys_place() -> None:
    needed = Needed()
    needed.add(0, 5, "lost")
    needed.add(0, 5, "stored")
    needed.discard(0, 5, "lost")
    assert needed.reached(0) == 4
    needed.discard(0, 5, "stored")
    assert needed.reached(0) == NOTHING_REACHED


def test_what_has_ended_does_not_pile_up_behind_one_that_has_not() -> None:
    needed = Needed()
    needed.add(0, 0, "long")
    for offset in range(1, 5000):
        needed.add(0, offset, offset)
        needed.end(0, offset, offset)
    assert needed.reached(0) == -1
    assert len(needed._oldest[0]) < 2000
