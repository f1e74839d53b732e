"""Handover of sends from threads to the event loop, many per wake-up.

A thread appends its message and continues, or waits for the result; only the first of several wakes
the loop, where one task starts the sends in the order of the handover. So the sends of many threads
share one wake-up and one write. A thread waits while too many sends have not been started: that is
the back-pressure.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final, Protocol

from rocketpost.client.message import SendResult
from rocketpost.client.producer.base import Started
from rocketpost.errors import ClientError

SLICE: Final = 64
"""Number of sends to start before waiting threads are notified."""

Start = Callable[[], Started]
"""Starts a send."""


class Recipient(Protocol):
    """Gets the result of a send, or its error; a ``concurrent.futures.Future`` is one."""

    def set_running_or_notify_cancel(self) -> bool:
        """Tell whether the send is still wanted."""
        ...

    def set_result(self, result: SendResult, /) -> None:
        """Take the result."""
        ...

    def set_exception(self, exception: BaseException | None, /) -> None:
        """Take the error."""
        ...


_Item = tuple[Start, Recipient, int]


class _Waiter:
    """A thread that waits for one send: a lock and a place for the outcome, used again and again.

    A ``concurrent.futures.Future`` would cost more than the send itself.
    """

    __slots__ = ("_error", "_result", "is_gone", "lock", "sent")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self._result: SendResult | None = None
        self._error: BaseException | None = None
        self.is_gone = False
        """Whether the thread was interrupted and waits no more."""
        self.sent: asyncio.Future[SendResult] | None = None
        """The send, once it is started; belongs to the event loop."""

    def take(self) -> SendResult:
        """Return the result, or raise the error, once the lock was released."""
        result, error = self._result, self._error
        self._result = self._error = self.sent = None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        assert result is not None
        return result

    def set_running_or_notify_cancel(self) -> bool:
        """Tell whether the thread still waits."""
        return not self.is_gone

    def set_result(self, result: SendResult, /) -> None:
        """Let the thread continue with a result."""
        self._result = result
        self.lock.release()

    def set_exception(self, exception: BaseException | None, /) -> None:
        """Let the thread continue with an error."""
        self._error = exception
        self.lock.release()


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
        self._waiters = threading.local()

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
        self._put(start, future, size)
        return future

    def send_from_thread(self, start: Start, size: int) -> SendResult:
        """Hand over a send, wait for its result and return it; an interrupt cancels the send.

        Raises:
            ClientError: The producer has been stopped, or the send failed.
        """
        waiter: _Waiter | None = getattr(self._waiters, "mine", None)
        if waiter is None:
            waiter = self._waiters.mine = _Waiter()
        try:
            self._put(start, waiter, size)
            waiter.lock.acquire()
        except BaseException:  # a signal, or nothing was handed over
            waiter.is_gone = True  # its outcome may still come, so it is not used again
            del self._waiters.mine
            self._loop.call_soon_threadsafe(_cancel, waiter)
            raise
        return waiter.take()

    def _put(self, start: Start, recipient: Recipient, size: int) -> None:
        with self._room:
            while not self._closed and self._is_full(size):
                self._room.wait()
            if self._closed:
                raise ClientError("the client is not running; use `with` or call start()")
            self._items.append((start, recipient, size))
            self._bytes += size
            wakes, self._awake = not self._awake, True
        if wakes:
            self._loop.call_soon_threadsafe(self._wake)

    async def wait_drained(self) -> None:
        """Wait until everything handed over so far has been started."""
        with self._room:
            if not self._items:
                return
            # Do not wait for later ones: threads that keep handing over would block us for ever.
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
            for start, recipient, _ in part:
                await _start(start, recipient)
            with self._room:
                for _ in part:
                    self._bytes -= self._items.popleft()[2]
                self._started += len(part)
                self._room.notify_all()
            while self._waiting and self._waiting[0][0] <= self._started:
                _, future = self._waiting.popleft()
                if not future.done():
                    future.set_result(None)


async def _start(start: Start, recipient: Recipient) -> None:
    if not recipient.set_running_or_notify_cancel():
        return
    try:
        started = start()
        future = started if isinstance(started, asyncio.Future) else await started
    except BaseException as error:
        recipient.set_exception(error)
        if not isinstance(error, Exception):
            raise
        return
    if isinstance(recipient, _Waiter):
        recipient.sent = future
    future.add_done_callback(partial(_pass_on, recipient))


def _pass_on(recipient: Recipient, future: asyncio.Future[SendResult]) -> None:
    if future.cancelled():
        recipient.set_exception(concurrent.futures.CancelledError())
    elif (error := future.exception()) is not None:
        recipient.set_exception(error)
    else:
        recipient.set_result(future.result())


def _cancel(waiter: _Waiter) -> None:
    if waiter.sent is not None:
        waiter.sent.cancel()
