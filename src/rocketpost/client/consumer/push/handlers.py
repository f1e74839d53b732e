"""Handlers of messages: the choice of a handler, and its calls by workers."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from rocketpost.client.checks import check_function, is_coroutine_function
from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.consumer.push.workers import (
    AsyncWorkers,
    Job,
    Report,
    ThreadWorkers,
    Workers,
)
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.tally import Tally
from rocketpost.errors import ConfigError
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.transport.sockets import find_simulation


class Consumed(enum.Enum):
    """Result of an orderly handler that commits itself; see ``subscribe``."""

    COMMIT = enum.auto()
    """This message and all handled before are finished."""
    HELD = enum.auto()
    """It is handled and a later commit covers it; the same as returning None."""


Handler = Callable[[ReceivedMessage], Awaitable[Consumed | None] | Consumed | None]
"""Handles one message; raises to get it again later."""
BatchHandler = Callable[[Sequence[ReceivedMessage]], Awaitable[Consumed | None] | Consumed | None]
"""Handles several messages; raises to get all of them again later."""


class HandlerSpec(NamedTuple):
    """A handler and the way to call it."""

    handler: Handler | BatchHandler
    batches: bool
    is_async: bool
    orderly: bool = False
    auto_commit: bool = True


def listener_for(
    handler: Handler | BatchHandler,
    *,
    batches: bool,
    orderly: bool = False,
    auto_commit: bool = True,
) -> HandlerSpec:
    """Inspect a handler.

    Raises:
        ConfigError: It is not a function of one argument, or ``auto_commit`` is False for a handler
            that is not orderly.
    """
    check_function("the handler", handler, arguments=1)
    if not (orderly or auto_commit):
        raise ConfigError("only orderly handlers can commit themselves (auto_commit=False)")
    return HandlerSpec(handler, batches, is_coroutine_function(handler), orderly, auto_commit)


class Consumption(Protocol):
    """A way to handle messages and account for their outcomes."""

    def submit(self, owned: OwnedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Handle messages of one queue."""
        ...

    def holding(self, owned: OwnedQueue) -> str:
        """Describe the message that holds back the queue's offset; empty if nothing is in hand."""
        ...

    async def expire(self, queues: Sequence[OwnedQueue]) -> None:
        """Give up messages whose handlers take too long."""
        ...

    async def settle(self, owned: OwnedQueue, seconds: float) -> bool:
        """Wait for handlers whose outcome still counts; return whether all have finished."""
        ...

    async def stop(self, seconds: float) -> None:
        """Start no more handlers; give running ones ``seconds`` to finish."""
        ...

    async def close(self) -> None:
        """Drop everything; outcomes of running handlers are ignored."""
        ...


class HandlerTrace(Protocol):
    """The trace of messages in a handler."""

    def begin(self) -> None:
        """Trace the call of the handler."""
        ...

    def end(self, error: BaseException | None, seconds: float) -> None:
        """Trace its outcome and duration."""
        ...


class Traces(Protocol):
    """A writer of traces of handled messages."""

    def trace_handling(self, messages: Sequence[ReceivedMessage]) -> HandlerTrace | None:
        """Return the trace of messages in their handler; None if they are not traced."""
        ...


class Handlers:
    """Calls the handlers of one consumer. Belongs to the event loop.

    Args:
        listeners: Handlers by topic; may grow at run time.
        concurrency: Number of handlers that run at the same time, of each kind.
        batch_max: Maximum of messages per call of a batch handler.
        by_priority: Whether messages wait for a worker in order of priority.
    """

    def __init__(
        self,
        listeners: dict[str, HandlerSpec],
        *,
        concurrency: int,
        batch_max: int,
        by_priority: bool = False,
    ) -> None:
        self._listeners = listeners
        self._batch_max = batch_max
        self._by_priority = by_priority
        self._async: Workers = AsyncWorkers(concurrency, ranked=by_priority)
        simulation = find_simulation()
        make_threads = simulation.make_thread_workers if simulation else ThreadWorkers
        self._threads: Workers = make_threads(concurrency, ranked=by_priority)
        self._tallies: dict[str, tuple[Tally, Tally]] = {}
        self._loop = asyncio.get_running_loop()
        self.concurrency = concurrency
        self.tracer: Traces | None = None
        """Traces messages in their handlers, if tracing is enabled."""

    def find(self, topic: str) -> HandlerSpec | None:
        """Return the handler of ``topic``; a single handler serves every topic."""
        found = self._listeners.get(topic)
        if found is None and len(self._listeners) == 1:
            return next(iter(self._listeners.values()))
        if found is None and topic.startswith(RETRY_PREFIX):
            # Not all redelivered popped messages name the topic to which they were sent.
            names = [each for each in self._listeners if topic.endswith((f"_{each}", f"+{each}"))]
            return self._listeners[max(names, key=len)] if names else None
        return found

    def batch_size(self, listener: HandlerSpec) -> int:
        """Return the maximum of messages per call."""
        return self._batch_max if listener.batches else 1

    def start(self, call: Call, report: Report) -> None:
        """Make a call when a worker is free."""
        if self.tracer is not None:
            report = self._trace(self.tracer, call, report)
        workers = self._async if call.listener.is_async else self._threads
        workers.submit(call, report, self.rank_of(call.messages))

    def start_all(self, calls: Sequence[Call], report: Report) -> None:
        """Make calls of one handler when workers are free."""
        if self.tracer is not None or self._by_priority:
            for call in calls:
                self.start(call, report)
        elif calls:
            workers = self._async if calls[0].listener.is_async else self._threads
            workers.submit_all(calls, report)

    def start_job(self, job: Job, report: Report, rank: int) -> None:
        """Run a job that calls async handlers itself when a worker is free."""
        self._async.submit(job, report, rank)

    def rank_of(self, messages: Sequence[ReceivedMessage]) -> int:
        """Return the rank of messages among those that wait for a worker."""
        return -(messages[0].priority or 0) if self._by_priority else 0

    def _trace(self, tracer: Traces, call: Call, report: Report) -> Report:
        handling = tracer.trace_handling(call.messages)
        if handling is None:
            return report
        begin, loop = handling.begin, self._loop
        if call.listener.is_async:
            call.on_begin = begin
        else:
            call.on_begin = lambda: loop.call_soon_threadsafe(begin)

        def report_traced(call: Call, error: BaseException | None) -> None:
            if not call.skipped:
                handling.end(error, time.monotonic() - call.began)
            report(call, error)

        return report_traced

    async def handle_once(self, message: ReceivedMessage) -> object:
        """Handle one message now, without any effect on offsets; return the handler's result.

        Raises:
            Exception: The handler raised it.
        """
        listener = self.find(message.topic)
        if listener is None:
            raise LookupError(f"no handler for {message.topic}")
        argument = [message] if listener.batches else message
        if listener.is_async:
            return await listener.handler(argument)  # type: ignore[arg-type, misc]
        return await asyncio.to_thread(listener.handler, argument)  # type: ignore[arg-type]

    def tallies(self, topic: str) -> tuple[Tally, Tally]:
        """Return the counts of successful and of failed messages of ``topic``."""
        found = self._tallies.get(topic)
        if found is None:
            found = self._tallies[topic] = Tally(), Tally()
        return found

    def count(self, topic: str, messages: int, seconds: float, *, failed: bool) -> None:
        """Count messages whose handlers took ``seconds`` in total."""
        self.tallies(topic)[failed].count(messages, seconds, now=time.monotonic())

    async def stop(self, seconds: float) -> None:
        """Start no more calls; give running handlers ``seconds`` to finish."""
        await asyncio.gather(self._async.stop(seconds), self._threads.stop(seconds))


def holding_text(message: ReceivedMessage, call: Call | None) -> str:
    """Describe for operators what a message waits for."""
    what = f"{message.message_id} at offset {message.queue_offset}"
    if call is None:
        return f"{what} waits to be handled again"
    if call.skipped:
        return f"{what} waits for a free handler"
    return f"a handler has been busy with {what} for {time.monotonic() - call.began:.0f} s"


class MessageOwner(Protocol):
    """The owner of messages, who decides whether they may still be handled."""

    @property
    def may_handle(self) -> bool:
        """Whether the messages are still ours."""
        ...


class Call(msgspec.Struct, eq=False):
    """One call of a handler; skipped if the messages are no longer ours."""

    owner: MessageOwner
    listener: HandlerSpec
    messages: Sequence[ReceivedMessage]
    on_begin: Callable[[], object] | None = None
    """Called just before the handler, in its thread."""
    began: float = 0.0
    """Time of the handler's call, on the monotonic clock."""
    ended: float = 0.0
    """Time of its end, if its owner has noted it."""
    result: object = None
    """The handler's result, if it commits itself."""

    def message_at(self, offset: int) -> ReceivedMessage:
        """Return the message at an offset of the queue."""
        return next(message for message in self.messages if message.queue_offset == offset)

    @property
    def seconds(self) -> float:
        """Duration of the handler up to now."""
        return time.monotonic() - self.began

    @property
    def skipped(self) -> bool:
        """Whether the handler was not called."""
        return not self.began

    def __call__(self) -> object:
        """Call the handler, unless its messages may no longer be handled."""
        if not self.owner.may_handle:
            return None
        handler, batches, _, _, commits = self.listener
        self.began = time.monotonic()
        if self.on_begin is not None:
            self.on_begin()
        returned = handler(self.messages if batches else self.messages[0])  # type: ignore[arg-type]
        if commits:
            return returned
        if isinstance(returned, Awaitable):
            return self._keep(returned)
        self.result = returned
        return None

    async def _keep(self, returned: Awaitable[object]) -> None:
        self.result = await returned
