"""Workers: steps in a thread, at their times and when woken, until they are closed."""

from __future__ import annotations

import threading

from rocketpost.store.log.workers import ThreadWorker


def test_steps_are_done_when_woken_and_after_the_seconds_that_they_name() -> None:
    waits = iter((0.0, 0.0, None, None))
    done = threading.Semaphore(0)

    def step() -> float | None:
        done.release()
        return next(waits)

    worker = ThreadWorker("test", step)
    worker.start(None)
    worker.wake()
    for _ in range(3):  # the second and third follow by themselves
        assert done.acquire(timeout=30)
    assert not done.acquire(blocking=False)
    worker.wake()
    assert done.acquire(timeout=30)
    worker.close_blocking()


def test_a_worker_that_is_closed_does_no_other_step() -> None:
    steps: list[str] = []
    worker = ThreadWorker("test", lambda: steps.append("step"))
    worker.start(3600.0)
    worker.close_blocking()
    worker.wake()
    assert steps == []


def test_a_worker_that_never_began_can_be_closed() -> None:
    ThreadWorker("test", lambda: None).close_blocking()


def test_closing_ends_a_pause_within_a_step_and_waits_for_the_step() -> None:
    begun = threading.Event()
    ended: list[str] = []

    def step() -> None:
        begun.set()
        worker.pause(3600.0)
        ended.append("ended")

    worker = ThreadWorker("test", step)
    worker.start(0.0)
    assert begun.wait(30)
    worker.close_blocking()
    assert ended == ["ended"]
