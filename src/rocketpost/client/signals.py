"""Stopping on SIGTERM and Ctrl-C, for programs without their own handlers of these signals.

During a watch, the first signal is passed on and the previous handlers are restored at once: a
second signal ends the process as usual. A handler that the program or its framework has installed
is never replaced. Outside the main thread nothing is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def watch_signals(stop: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call ``stop`` on a signal, in the main thread and between any two instructions.

    So ``stop`` must not take locks that the main thread may hold; ``queue.SimpleQueue.put`` does
    not.
    """
    before: dict[signal.Signals, Any] = {}

    def restore() -> None:
        while before:
            number, handler = before.popitem()
            signal.signal(number, handler)

    def pass_on(number: int, frame: object) -> None:
        restore()
        stop(signal.Signals(number))

    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            if _is_free(handler := signal.getsignal(number)):
                before[number] = handler
                signal.signal(number, pass_on)
    try:
        yield
    finally:
        restore()


class _LoopWatch:
    """The watchers of one event loop; a signal reaches all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._installed: dict[signal.Signals, Any] = {}
        self._watchers: list[Callable[[signal.Signals], object]] = []

    def add(self, stop: Callable[[signal.Signals], object]) -> None:
        if not self._watchers and threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if _is_free(handler := signal.getsignal(number)):
                    self._installed[number] = handler
                    self._loop.add_signal_handler(number, self._pass_on, number)
        self._watchers.append(stop)

    def remove(self, stop: Callable[[signal.Signals], object]) -> None:
        self._watchers.remove(stop)
        if not self._watchers:
            self._restore()

    def _pass_on(self, number: signal.Signals) -> None:
        self._restore()
        for stop in list(self._watchers):
            stop(number)

    def _restore(self) -> None:
        while self._installed:
            number, handler = self._installed.popitem()
            self._loop.remove_signal_handler(number)
            signal.signal(number, handler)


_watches: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopWatch] = (
    weakref.WeakKeyDictionary()
)


@contextlib.contextmanager
def watch_signals_on_loop(stop: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Call ``stop`` on the running loop when a signal arrives."""
    loop = asyncio.get_running_loop()
    watch = _watches.get(loop)
    if watch is None:
        watch = _watches[loop] = _LoopWatch(loop)
    watch.add(stop)
    try:
        yield
    finally:
        watch.remove(stop)


def _is_free(handler: object) -> bool:
    """Tell whether a handler is the default of Python or of ``asyncio.run``."""
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return True
    if not isinstance(handler, functools.partial):
        return False
    return isinstance(getattr(handler.func, "__self__", None), asyncio.Runner)
