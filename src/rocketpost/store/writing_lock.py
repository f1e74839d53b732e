"""A lock that gives the loop thread precedence over other threads.

A thread that saves thousands of queues takes and releases a plain lock so fast that another thread
may have to wait until all are saved.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Final

_YIELD_SECONDS: Final = 0.0002


class WritingLock:
    """A lock for one thread at a time. The loop thread enters by :meth:`first`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_loop_waiting = False

    def is_locked(self) -> bool:
        """Tell whether a thread holds the lock."""
        return self._lock.locked()

    def __enter__(self) -> None:
        while True:
            self._lock.acquire()
            if not self._is_loop_waiting:
                return
            self._lock.release()
            time.sleep(_YIELD_SECONDS)

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Hold the lock before any other waiting thread; for the loop thread alone."""
        self._is_loop_waiting = True
        self._lock.acquire()
        self._is_loop_waiting = False
        try:
            yield
        finally:
            self._lock.release()
