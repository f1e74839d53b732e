"""An event loop in virtual time for whole machines: no selector, no threads, no sockets.

The clock stands still while anything runs, and then jumps to the next timer. Work for threads is
done as an event, after a time drawn from the seed. Connections are those of a simulated network.
Tasks and futures are hashed by their number, so that sets of them are iterated in the same order in
every run.
"""

from __future__ import annotations

import asyncio
import collections
import contextvars
import heapq
import itertools
import socket
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rocketpost.testing.sim.machine import Process, current_process

if TYPE_CHECKING:
    from rocketpost.testing.sim.simulation import SimulatedNetwork

T = TypeVar("T")

START_SECONDS: Final = 1000.0
"""The clock of the loop at the start of a simulation."""
_RESOLUTION_SECONDS: Final = 1e-9
_CANCELLED_MAX: Final = 100
"""Cancelled calls that may stay among the planned ones, if these are not twice as many."""


class StuckError(RuntimeError):
    """Nothing can happen any more: the code under test waits for something that never comes."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of a simulation.

    It plans and makes calls itself, as its base class does, but with less work for each of them.
    Instead of waiting, it advances the clock.
    """

    simulation: SimulatedNetwork
    """The network, which also makes sockets (``transport.sockets``)."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START_SECONDS
        self._planned: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._plans = itertools.count()
        self._cancelled_count = 0
        self._numbers = itertools.count()
        self._free_at: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self.tasks: weakref.WeakSet[_Task] = weakref.WeakSet()

    def time(self) -> float:
        """Return the seconds of virtual time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += max(0.0, seconds)

    def close(self) -> None:
        """Forget everything that is planned."""
        self._planned.clear()
        super().close()

    def __del__(self) -> None:
        """Do nothing: it has nothing that must be closed."""

    # Callbacks.

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Plan a call, unless it belongs to a process that has ended."""
        handle = _Handle(callback, args, self, context)
        process = current_process(handle._context)
        if process is not None and not process.is_alive:
            handle.cancel()
        else:
            self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    # There are no threads.
    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Plan a call, unless it belongs to a process that has ended."""
        handle = _TimerHandle(when, callback, args, self, context)
        process = current_process(handle._context)  # type: ignore[attr-defined]
        if process is not None and not process.is_alive:
            handle.cancel()
        else:
            handle._scheduled = True
            heapq.heappush(self._planned, (when, next(self._plans), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Note that a planned call is not to be made."""
        self._cancelled_count += handle._scheduled  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        """Make the calls that are due now, and no others; let time pass if none is.

        Raises:
            StuckError: None is planned.
        """
        ready: collections.deque[Any] = self._ready  # type: ignore[attr-defined]
        planned = self._planned
        if self._cancelled_count > _CANCELLED_MAX and 2 * self._cancelled_count > len(planned):
            planned[:] = [each for each in planned if not each[2].cancelled()]
            heapq.heapify(planned)
            self._cancelled_count = 0
        while planned and planned[0][2].cancelled():
            heapq.heappop(planned)
            self._cancelled_count -= 1
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not planned:
                raise StuckError("nothing is left to happen, and something is still waited for")
            self._now = max(self._now, planned[0][0])
        end = self._now + _RESOLUTION_SECONDS
        while planned and planned[0][0] < end:
            handle: Any = heapq.heappop(planned)[2]
            handle._scheduled = False
            if handle._cancelled:
                self._cancelled_count -= 1
            else:
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    _report(handle, error)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future that is hashed by its number."""
        return _Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        """Return a task that is hashed by its number, and known as its process's."""
        task = _Task(coro, loop=self, name=None if name is None else str(name), context=context)
        task.process = current_process(context)
        self.tasks.add(task)
        return task

    def next_number(self) -> int:
        """Return the number of a new task or future."""
        return next(self._numbers)

    def forget_process(self, process: Process) -> list[asyncio.Task[Any]]:
        """Cancel all planned calls of a process that has ended; returns its unfinished tasks."""
        planned = [handle for _, _, handle in self._planned]
        for handle in [*self._ready, *planned]:  # type: ignore[attr-defined]
            if current_process(handle._context) is process:
                handle.cancel()
        tasks = [task for task in self.tasks if task.process is process and not task.done()]
        return sorted(tasks, key=hash)

    # Threads.

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Do work of a thread some time later, in the order of an executor of one thread."""
        done: asyncio.Future[T] = self.create_future()
        process = current_process()
        seconds = 0.0 if process is None else process.machine.draw_work_seconds()
        when = self._now + seconds
        if getattr(executor, "_max_workers", 0) == 1:
            when = max(self._free_at.get(executor, 0.0), self._now) + seconds
            self._free_at[executor] = when
        self.call_at(when, self._work, executor, done, lambda: function(*args))
        return done

    def _work(self, executor: Any, done: asyncio.Future[T], function: Callable[[], T]) -> None:
        process = current_process()
        error: BaseException | None = None
        result: Any = None
        seconds = 0.0
        try:
            if process is None:
                result = function()
            else:
                result, seconds = process.work(function)
        except Exception as raised:
            error = raised
        if seconds and executor in self._free_at:
            self._free_at[executor] = max(self._free_at[executor], self._now + seconds)
        self.call_later(seconds, _settle, done, result, error)

    # The network.

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Return an address as it is: there are no names."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host or "0.0.0.0", int(port or 0)))]

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        """Bind an address of the current machine."""
        server = self.simulation.make_server(protocol_factory, host or "", port or 0)
        if more.get("start_serving", True):
            await server.start_serving()
        return server

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        """Connect the current machine to an address."""
        return await self.simulation.open_transport(protocol_factory, host, port)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        """Connect a simulated socket."""
        await sock.connect_later(address)

    async def sock_recv(self, sock: Any, size: int) -> bytes:
        """Read from a simulated socket."""
        return bytes(await sock.receive_later(size))

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        """Write to a simulated socket, which takes everything."""
        sock.send_all(bytes(data))

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Any, *args: Any
    ) -> None:
        """Call back while a simulated socket has something to read."""
        fd.watch_reads(lambda: callback(*args))

    def remove_reader(self, fd: Any) -> bool:
        """Stop calling back."""
        return bool(fd.watch_reads(None))

    def add_writer(  # type: ignore[override]
        self, fd: Any, callback: Any, *args: Any
    ) -> None:
        """Call back while a simulated socket has room."""
        fd.watch_writes(lambda: callback(*args))

    def remove_writer(self, fd: Any) -> bool:
        """Stop calling back."""
        return bool(fd.watch_writes(None))

    # Parts of the base class that a selector would need.

    def _process_events(self, event_list: object) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _Handle(asyncio.Handle):
    """A planned call, made with less work than the base class's: nothing is kept for debugging."""

    __slots__ = ()

    def __init__(
        self, callback: Any, args: Any, loop: SimulatedLoop, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _TimerHandle(asyncio.TimerHandle):
    """A call that is planned for some time, made like :class:`_Handle`."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Any,
        args: Any,
        loop: SimulatedLoop,
        context: contextvars.Context | None,
    ) -> None:
        _Handle.__init__(self, callback, args, loop, context)  # type: ignore[arg-type]
        self._when = when
        self._scheduled = False


def _report(handle: Any, error: BaseException) -> None:
    """Report that a call has failed, as the base class does."""
    message = f"Exception in callback {handle!r}"
    context = {"message": message, "exception": error, "handle": handle}
    handle._loop.call_exception_handler(context)


class _Task(asyncio.Task[Any]):
    """A task that is hashed by its number."""

    process: Process | None = None
    _number: int

    def __new__(cls, *args: Any, loop: SimulatedLoop, **kwargs: Any) -> _Task:
        task = super().__new__(cls)
        task._number = loop.next_number()
        return task

    def __hash__(self) -> int:
        return self._number


class _Future(asyncio.Future[Any]):
    """A future that is hashed by its number."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


def _settle(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return  # nobody waits any more
    if error is not None:
        done.set_exception(error)
    else:
        done.set_result(result)
