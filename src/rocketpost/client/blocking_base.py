"""What the blocking clients share: a client on the loop thread, made anew in a forked child."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from rocketpost.client.loop_thread import LoopThread, shared
from rocketpost.errors import ClientError


class Startable(Protocol):
    """A client of the event loop."""

    async def start(self) -> None:
        """Connect."""
        ...  # pragma: no cover

    async def stop(self) -> None:
        """Finish and close everything."""
        ...  # pragma: no cover


C = TypeVar("C", bound=Startable)
T = TypeVar("T")


class BlockingClient(Generic[C]):
    """A client on the loop thread, made anew in a forked child. Thread-safe."""

    def __init__(self, make: Callable[[], C], *, survives_fork: bool = True) -> None:
        self._make = make
        self._survives_fork = survives_fork
        self._lock = threading.Lock()
        self._abandoned: list[object] = []
        self._inner: C | None = None
        self._thread: LoopThread | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Connect.

        Raises:
            NoNameServer: No address of a name server is known.
        """
        self._check_fork()
        with self._lock:
            if self._inner is not None:
                raise ClientError("the client is running already")
            self._start()

    def stop(self) -> None:
        """Finish and close everything; does nothing in a child that has not used the client."""
        self._check_fork(restart=False)
        with self._lock:
            inner, thread = self._inner, self._thread
            self._inner = self._thread = None
        if inner is None or thread is None:
            return
        try:
            thread.call(inner.stop())
        finally:
            shared.leave()

    def _start(self) -> None:
        thread = shared.enter()
        try:
            inner = self._make()
            thread.call(inner.start())
        except BaseException:
            shared.leave()
            raise
        self._inner, self._thread = inner, thread

    def _call(self, work: Callable[[C], Coroutine[Any, Any, T]]) -> T:
        if self._pid != os.getpid():
            self._check_fork()
        inner, thread = self._inner, self._thread
        if inner is None or thread is None:
            raise ClientError("the client is not running; use `with` or call start()")
        return thread.call(work(inner))

    def _now(self, work: Callable[[C], T]) -> T:
        async def call(inner: C) -> T:
            return work(inner)

        return self._call(call)

    def _check_fork(self, *, restart: bool = True) -> None:
        if self._pid == os.getpid():
            return
        # Only the thread that forked is left; the lock and the connections are the parent's.
        self._lock = threading.Lock()
        was_running = self._inner is not None
        self._abandoned += [self._inner, self._thread]
        self._inner = self._thread = None
        self._pid = os.getpid()
        if was_running and restart and self._survives_fork:
            self._start()
