"""Handover of sends from threads to the event loop, many per wake-up.

A thread appends its message and continues; only the first of several wakes the loop, where one task
starts the sends in the order of the handover. A thread waits while too many sends have not been
started: that is the back-pressure.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any, Final

from rocketpost.client.message import SendResult
from rocketpost.errors import ClientError

SLICE: Final = 64
"""Number of sends to start before waiting threads are notified."""

Start = Callable[[], Coroutine[Any, Any, "asyncio.Future[SendResult]"]]
_Item = tuple[Start, "concurrent.futures.Future[SendResult]", int]


class Handover:
    """The handed-over sends of one producer.

    Args:
        loop: The loop that starts them.
        count_max: Maximum of sends that are not started; beyond it threads wait.
        bytes_max: The same for the bytes of their bodies.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, count_max: int, bytes_max: int) -> None:
        self._loop = loop
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._room = threading.Condition(threading.Lock())
        self._items: deque[_Item] = deque()
        self._bytes = 0
        self._draining: asyncio.Task[None] | None = None
        self._started = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        """Waiting threads, each with the number of sends that must be started first."""
        self._awake = False
        self._closed = False

    @property
    def is_idle(self) -> bool:
        """Whether everything handed over has been started. Thread-safe."""
        return not self._awake

    def put_from_thread(self, start: Start, size: int) -> concurrent.futures.Future[SendResult]:
        """Hand over a send and return the future of its result.

        Raises:
            ClientError: The producer has been stopped.
        """
        future: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
        with self._room:
            while not self._closed and self._is_full(size):
                self._room.wait()
            if self._closed:
                raise ClientError("the client is not running; use `with` or call start()")
            self._items.append((start, future, size))
            self._bytes += size
            wakes, self._awake = not self._awake, True
        if wakes:
            self._loop.call_soon_threadsafe(self._wake)
        return future

    async def wait_drained(self) -> None:
        """Wait until everything handed over so far has been started."""
        with self._room:
            if not self._items:
                return
            # Do not wait for later ones: threads that keep handing over would hold us up for ever.
            future = self._loop.create_future()
            self._waiting.append((self._started + len(self._items), future))
        await future

    async def close(self) -> None:
        """Accept nothing more, and wait until everything handed over has been started."""
        with self._room:
            self._closed = True
            self._room.notify_all()
        await self.wait_drained()

    def _is_full(self, size: int) -> bool:
        if not self._items:
            return False
        return len(self._items) >= self._count_max or self._bytes + size > self._bytes_max

    def _wake(self) -> None:
        self._draining = self._loop.create_task(self._drain(), name="start sends of threads")

    async def _drain(self) -> None:
        while True:
            with self._room:
                part = list(islice(self._items, SLICE))
                if not part:
                    self._awake = False
                    return
            for start, outer, _ in part:
                await _start(start, outer)
            with self._room:
                for _ in part:
                    self._bytes -= self._items.popleft()[2]
                self._started += len(part)
                self._room.notify_all()
            while self._waiting and self._waiting[0][0] <= self._started:
                _, future = self._waiting.popleft()
                if not future.done():
                    future.set_result(None)


async def _start(start: Start, outer: concurrent.futures.Future[SendResult]) -> None:
    if not outer.set_running_or_notify_cancel():
        return
    try:
        future = await start()
    except BaseException as error:
        outer.set_exception(error)
        if not isinstance(error, Exception):
            raise
        return

    def pass_on(inner: asyncio.Future[SendResult]) -> None:
        if inner.cancelled():
            outer.set_exception(concurrent.futures.CancelledError())
        elif (error := inner.exception()) is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    future.add_done_callback(pass_on)
