"""A lock that gives the loop thread precedence over other threads.

A thread that saves thousands of queues takes and releases a plain lock so fast that another thread
may have to wait until all are saved.
"""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager
from typing import Final

_YIELD_SECONDS: Final = 0.0002


class WritingLock:
    """A lock for one thread at a time. The loop thread enters by :meth:`first`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_loop_waiting = False
        self._first = _First(self)

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

    def first(self) -> AbstractContextManager[None]:
        """Hold the lock before any other waiting thread; for the loop thread alone."""
        return self._first

    def acquire_first(self) -> None:
        """Take the lock before any other waiting thread."""
        self._is_loop_waiting = True
        self._lock.acquire()
        self._is_loop_waiting = False


class _First:
    """Holds the lock for the loop thread. Each write needs it, so it is made once."""

    def __init__(self, lock: WritingLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire_first()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()
