"""Planned calls are made in the order of their times."""

from __future__ import annotations

from rocketpost.testing.sim.scheduler import Scheduler


def test_calls_are_ordered_by_time_and_then_by_planning() -> None:
    scheduler, seen = Scheduler(), []
    for name, delay_ms in [("c", 20), ("a", 10), ("d", 20), ("b", 10)]:
        scheduler.after(delay_ms, seen.append, name)
    scheduler.run_until(15)
    assert (seen, scheduler.now_ms, len(scheduler)) == (["a", "b"], 15, 2)
    scheduler.run_until(20)
    assert seen == ["a", "b", "c", "d"]


def test_a_call_may_plan_others() -> None:
    scheduler, seen = Scheduler(), []

    def tick(left: int) -> None:
        seen.append(scheduler.now_ms)
        if left:
            scheduler.after(50, tick, left - 1)

    scheduler.after(0, tick, 2)
    scheduler.run_until(99)
    assert seen == [0, 50]
    assert scheduler.step()
    assert not scheduler.step()
    assert seen == [0, 50, 100]
