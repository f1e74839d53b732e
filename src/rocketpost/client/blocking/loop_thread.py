"""One event loop in its own thread, shared by all blocking clients of a process.

The thread lives while a client uses it. A forked child has none: threads do not survive a fork, and
the parent's open descriptors must not be touched, since both processes share the kernel's objects.
So a child drops the parent's loop without closing it and starts its own when first needed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

try:
    import uvloop
except ImportError:
    uvloop = None  # type: ignore[assignment]

T = TypeVar("T")
CALLED_ON_LOOP: Final = "a blocking client was called on its own loop; use the async one"


class LoopThread:
    """A running event loop. Thread-safe."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._thread = threading.Thread(
            target=self._run, name="rocketpost-client-loop", daemon=True
        )
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop itself."""
        return self._loop

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, which must not wait for itself."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` on the loop and return its result; an interrupt cancels it."""
        if self.is_current:
            work.close()
            raise RuntimeError(CALLED_ON_LOOP)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close_blocking(self) -> None:
        """Stop the loop and join the thread."""
        self.call(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


def _new_loop() -> asyncio.AbstractEventLoop:
    """Return a loop of uvloop where it is installed: a wake-up costs half as much."""
    return asyncio.new_event_loop() if uvloop is None else uvloop.new_event_loop()


class _Shared:
    """The loop thread of the process and the number of its users."""

    def __init__(self) -> None:
        self._abandoned: list[LoopThread] = []
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._thread: LoopThread | None = None

    def enter(self) -> LoopThread:
        """Return the loop thread; start it for the first user."""
        with self._lock:
            if self._thread is None:
                self._thread = LoopThread()
            self._users += 1
            return self._thread

    def leave(self) -> None:
        """Stop using the thread; the last user stops it."""
        with self._lock:
            self._users -= 1
            if self._users or self._thread is None:
                return
            thread, self._thread = self._thread, None
        thread.close_blocking()

    def after_fork(self) -> None:
        """Drop the parent's thread; a list keeps it alive, so that it is never finalised."""
        if self._thread is not None:
            self._abandoned.append(self._thread)
        self._reset()


shared = _Shared()
os.register_at_fork(after_in_child=shared.after_fork)
