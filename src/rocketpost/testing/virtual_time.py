"""Virtual time for tests: an event loop whose clock jumps to the next timer when idle.

A test of a timeout or a pause then needs no real seconds and passes on the busiest machine: the
clock stands still while anything runs. Not for tests that work in threads or through sockets, since
the loop cannot see that those are busy.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Advances the loop's clock instead of waiting for a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with its own clock, which starts at 0."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the seconds since the loop was made, in virtual time."""
        return self._clock.now


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an async test on its own loop in virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(test(*args, **kwargs))

    return run
