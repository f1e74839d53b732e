"""The base of blocking clients: a client on the loop thread, restarted in forked children.

A fork copies the client but not the loop thread, and the copied connections and locks belong to the
parent. A hook that runs first in the child drops them all, so the child's threads find a client
that is not started yet: the first caller starts it, the others wait.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from rocketpost.client.blocking.loop_thread import LoopThread, shared
from rocketpost.client.config import ClientConfig
from rocketpost.errors import ClientError


class Startable(Protocol):
    """A client of the event loop."""

    async def start(self) -> None:
        """Connect."""
        ...

    async def stop(self) -> None:
        """Finish and close everything."""
        ...


C = TypeVar("C", bound=Startable)
S = TypeVar("S", bound=ClientConfig)
T = TypeVar("T")


class BlockingClient(Generic[C]):
    """A client on the loop thread, restarted in forked children. Thread-safe."""

    _child = 0
    """The process id, in a child whose parent ran this client."""

    def __init__(self, make: Callable[[], C], *, survives_fork: bool = True) -> None:
        make()  # report wrong arguments here, not at the start
        self._make = make
        self._survives_fork = survives_fork
        self._lock = threading.Lock()
        self._abandoned: list[object] = []
        self._inner: C | None = None
        self._thread: LoopThread | None = None
        self._restarts = False
        """Whether the parent ran this client, so that the first call here starts it."""
        self._left_behind = False
        """Whether the parent ran this client and the child cannot use it."""
        _clients.add(self)

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
        with self._lock:
            if self._inner is not None or self._restarts:
                raise ClientError("the client is running already")
            self._start()

    def stop(self) -> None:
        """Finish and close everything; does nothing in a child that has not used the client."""
        with self._lock:
            inner, thread = self._inner, self._thread
            self._inner = self._thread = None
            self._restarts = self._left_behind = False
        if inner is None or thread is None:
            return
        try:
            thread.call(self._finish(inner))
        finally:
            shared.leave()

    def _start(self) -> None:
        thread = shared.enter()
        try:
            inner = self._make()
            thread.call(self._begin(inner))
        except BaseException:
            shared.leave()
            raise
        self._inner, self._thread = inner, thread
        self._restarts = self._left_behind = False

    async def _begin(self, inner: C) -> None:
        await inner.start()

    async def _finish(self, inner: C) -> None:
        await inner.stop()

    def _running(self) -> tuple[C, LoopThread]:
        """Return the client and its thread; start them in a child whose parent ran them."""
        inner, thread = self._inner, self._thread
        if self._restarts:
            with self._lock:
                if self._restarts:
                    self._start()
                inner, thread = self._inner, self._thread
        if inner is None or thread is None:
            if self._left_behind:
                raise ClientError(
                    "this consumer belongs to the process that forked this one; "
                    "start one in this process"
                )
            raise ClientError("the client is not running; use `with` or call start()")
        return inner, thread

    def _call(self, work: Callable[[C], Coroutine[Any, Any, T]]) -> T:
        inner, thread = self._running()
        return thread.call(work(inner))

    def _now(self, work: Callable[[C], T]) -> T:
        async def call(inner: C) -> T:
            return work(inner)

        return self._call(call)

    def _rename(self, config: S | None) -> S | None:
        """Return settings whose client id differs from the parent's."""
        if not self._child or config is None or not config.instance_name:
            return config
        return replace(config, instance_name=f"{config.instance_name}#{self._child}")

    def after_fork(self) -> None:
        """Drop the parent's state. Runs in the child, before it has any other thread."""
        was_running = self._inner is not None or self._restarts
        self._lock = threading.Lock()
        self._abandoned += [self._inner, self._thread]
        self._inner = self._thread = None
        if was_running:
            self._child = os.getpid()
        self._restarts = was_running and self._survives_fork
        self._left_behind = was_running and not self._survives_fork


_clients: weakref.WeakSet[BlockingClient[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
