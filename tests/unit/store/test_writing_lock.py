"""The lock of queue files: the loop thread is next, whoever else waits."""

from __future__ import annotations

import threading

from rocketpost.store.writing_lock import WritingLock


def test_the_loop_thread_is_next_however_busy_others_are() -> None:
    lock, done, taken = WritingLock(), threading.Event(), list[int]()

    def work() -> None:
        while not done.is_set():
            with lock:
                taken.append(1)
                done.wait(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while not taken:
            pass
        for _ in range(20):
            before = len(taken)
            with lock.first():
                assert lock.is_locked()
                assert len(taken) - before <= 2  # the one that held it, and none that came later
    finally:
        done.set()
        thread.join()
    assert not lock.is_locked()
