"""Background work of a store: a step that is repeated, in a thread of its own.

The flusher, the allocator, the checkpoints and the scrub each have one worker. A step does the work
that is due and returns how long to wait until the next one. A simulation runs the same steps as
events of its own time, without threads.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

Step = Callable[[], float | None]
"""Does the work that is due, and returns the seconds until the next step; None: until woken."""


class Worker(Protocol):
    """Repeats one step until it is closed."""

    def start(self, seconds: float | None) -> None:
        """Begin, with the first step after ``seconds``; None: when it is woken."""
        ...

    def wake(self) -> None:
        """Run the next step now. Any thread."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait within a step, for the step itself; waking the worker ends the wait early."""
        ...

    def close_blocking(self) -> None:
        """Begin no other step, and return when none is running."""
        ...


class ThreadWorker:
    """Repeats a step in a thread.

    Args:
        name: The name of the thread.
        step: The step.
    """

    def __init__(self, name: str, step: Step) -> None:
        self._step = step
        self._seconds: float | None = None
        self._stopping = False
        self._wake = threading.Lock()  # locked until the worker is woken; cheaper than an event
        self._wake.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, seconds: float | None) -> None:
        """Start the thread; see :class:`Worker`."""
        self._seconds = seconds
        self._thread.start()

    def wake(self) -> None:
        """See :class:`Worker`."""
        if self._wake.locked():
            with contextlib.suppress(RuntimeError):  # another thread has just woken it
                self._wake.release()

    def pause(self, seconds: float) -> None:
        """See :class:`Worker`."""
        self._wake.acquire(timeout=seconds)

    def close_blocking(self) -> None:
        """End the thread; see :class:`Worker`."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        seconds = self._seconds
        while not self._stopping:  # a pause may have taken the wake-up that came with it
            self._wake.acquire(timeout=-1 if seconds is None else seconds)
            if self._stopping:
                return
            seconds = self._step()
