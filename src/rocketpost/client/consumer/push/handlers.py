"""Handlers of messages: which one a message is for, and the workers that call them."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from rocketpost.client.checks import check_function, is_coroutine_function
from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.consumer.push.workers import AsyncWorkers, Report, ThreadWorkers, Workers
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.tally import Tally
from rocketpost.errors import ConfigError
from rocketpost.model.names import RETRY_PREFIX


class Consumed(enum.Enum):
    """Result of an orderly handler that commits by itself; see ``subscribe``."""

    COMMIT = enum.auto()
    """This and all that were handled before are done with."""
    HELD = enum.auto()
    """It is handled, and a later commit covers it; the same as returning nothing."""


Handler = Callable[[ReceivedMessage], Awaitable[Consumed | None] | Consumed | None]
"""Handles one message; raises to get it again later."""
BatchHandler = Callable[[Sequence[ReceivedMessage]], Awaitable[Consumed | None] | Consumed | None]
"""Handles several messages; raises to get all of them again later."""


class HandlerSpec(NamedTuple):
    """A handler and how it wants to be called."""

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
    """Find out what kind of handler this is.

    Raises:
        ConfigError: It is no function of one argument, or it would commit by itself and is not
            orderly.
    """
    check_function("the handler", handler, arguments=1)
    if not (orderly or auto_commit):
        raise ConfigError("only orderly handlers can commit by themselves (auto_commit=False)")
    return HandlerSpec(handler, batches, is_coroutine_function(handler), orderly, auto_commit)


class Consumption(Protocol):
    """Sees to it that messages are handled and accounted for."""

    def submit(self, owned: OwnedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Have messages of one queue handled."""
        ...  # pragma: no cover

    def holding(self, owned: OwnedQueue) -> str:
        """Return what holds the queue's offset back; empty if nothing is in hand."""
        ...  # pragma: no cover

    async def expire(self, queues: Sequence[OwnedQueue]) -> None:
        """Let go of messages whose handlers take too long."""
        ...  # pragma: no cover

    async def settle(self, owned: OwnedQueue, seconds: float) -> bool:
        """Wait for handlers whose outcome still counts; return whether none is at work."""
        ...  # pragma: no cover

    async def stop(self, seconds: float) -> None:
        """Begin nothing more; give handlers at work ``seconds`` to finish."""
        ...  # pragma: no cover

    async def close(self) -> None:
        """Forget everything; handlers at work finish for nothing."""
        ...  # pragma: no cover


class HandlerTrace(Protocol):
    """Messages on their way through a handler."""

    def begin(self) -> None:
        """Note that the handler is called."""
        ...  # pragma: no cover

    def end(self, error: BaseException | None, seconds: float) -> None:
        """Note how it ended, and what it took."""
        ...  # pragma: no cover


class Traces(Protocol):
    """Somebody who writes down what is handled."""

    def trace_handling(self, messages: Sequence[ReceivedMessage]) -> HandlerTrace | None:
        """Return what follows messages through their handler; None if nothing does."""
        ...  # pragma: no cover


class Handlers:
    """Calls the handlers of one consumer. Belongs to the event loop.

    Args:
        listeners: Handlers by topic; may grow while we run.
        concurrency: Handlers at work at the same time, of each kind.
        batch_max: Messages in one call of a batch handler.
        by_priority: Whether what waits for a worker goes by its priority.
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
        self._threads: Workers = ThreadWorkers(concurrency, ranked=by_priority)
        self._tallies: dict[str, tuple[Tally, Tally]] = {}
        self._loop = asyncio.get_running_loop()
        self.concurrency = concurrency
        self.tracer: Traces | None = None
        """Follows messages through their handlers, if somebody wants that."""

    def find(self, topic: str) -> HandlerSpec | None:
        """Return the handler of ``topic``; a single one serves every topic."""
        found = self._listeners.get(topic)
        if found is None and len(self._listeners) == 1:
            return next(iter(self._listeners.values()))
        if found is None and topic.startswith(RETRY_PREFIX):
            # PopResult messages that come again do not all say which topic they were sent to.
            names = [each for each in self._listeners if topic.endswith((f"_{each}", f"+{each}"))]
            return self._listeners[max(names, key=len)] if names else None
        return found

    def batch_size(self, listener: HandlerSpec) -> int:
        """Return how many messages one call may have."""
        return self._batch_max if listener.batches else 1

    def start(self, call: Call, report: Report) -> None:
        """Make a call when a worker is free."""
        if self.tracer is not None:
            report = self._traced(self.tracer, call, report)
        workers = self._async if call.listener.is_async else self._threads
        rank = -(call.messages[0].priority or 0) if self._by_priority else 0
        workers.submit(call, report, rank)

    def _traced(self, tracer: Traces, call: Call, report: Report) -> Report:
        handling = tracer.trace_handling(call.messages)
        if handling is None:
            return report
        begin, loop = handling.begin, self._loop
        if call.listener.is_async:
            call.on_begin = begin
        else:
            call.on_begin = lambda: loop.call_soon_threadsafe(begin)

        def traced(error: BaseException | None) -> None:
            if not call.skipped:
                handling.end(error, time.monotonic() - call.began)
            report(error)

        return traced

    async def handle_once(self, message: ReceivedMessage) -> object:
        """Have one message handled now, without any effect on offsets; return what it returns.

        Raises:
            Exception: What the handler raises.
        """
        listener = self.find(message.topic)
        if listener is None:
            raise LookupError(f"no handler for {message.topic}")
        argument = [message] if listener.batches else message
        if listener.is_async:
            return await listener.handler(argument)  # type: ignore[arg-type, misc]
        return await asyncio.to_thread(listener.handler, argument)  # type: ignore[arg-type]

    def tallies(self, topic: str) -> tuple[Tally, Tally]:
        """Return how many messages of ``topic`` were handled well, and how many failed."""
        found = self._tallies.get(topic)
        if found is None:
            found = self._tallies[topic] = Tally(), Tally()
        return found

    def count(self, topic: str, messages: int, call: Call, *, failed: bool) -> None:
        """Count the outcome of a call."""
        now = time.monotonic()
        self.tallies(topic)[failed].count(messages, now - call.began, now=now)

    async def stop(self, seconds: float) -> None:
        """Call nothing more; give handlers at work ``seconds`` to finish."""
        await asyncio.gather(self._async.stop(seconds), self._threads.stop(seconds))


def holding_text(message: ReceivedMessage, call: Call | None) -> str:
    """Return what a message waits for, in words for operators."""
    what = f"{message.message_id} at offset {message.queue_offset}"
    if call is None:
        return f"{what} waits to be handled again"
    if call.skipped:
        return f"{what} waits for a free handler"
    return f"a handler has been busy with {what} for {time.monotonic() - call.began:.0f} s"


class MessageOwner(Protocol):
    """Source of messages, as far as handling them depends on it."""

    @property
    def may_handle(self) -> bool:
        """Whether the messages are still ours."""
        ...  # pragma: no cover


class Call:
    """One call of a handler, skipped if the messages are not ours any more."""

    __slots__ = ("_owned", "began", "listener", "messages", "on_begin", "result")

    def __init__(
        self, owned: MessageOwner, listener: HandlerSpec, messages: Sequence[ReceivedMessage]
    ) -> None:
        self._owned = owned
        self.messages = messages
        self.listener = listener
        self.on_begin: Callable[[], object] | None = None
        """Called just before the handler, in its thread."""
        self.began = 0.0
        """When the handler was called, on the monotonic clock."""
        self.result: object = None
        """What the handler returned, if it commits by itself."""

    @property
    def skipped(self) -> bool:
        """Whether the handler was not called."""
        return not self.began

    def __call__(self) -> object:
        """Call the handler, unless its queue may not be handled any more."""
        if not self._owned.may_handle:
            return None
        self.began = time.monotonic()
        if self.on_begin is not None:
            self.on_begin()
        argument = self.messages if self.listener.batches else self.messages[0]
        returned = self.listener.handler(argument)  # type: ignore[arg-type]
        if self.listener.auto_commit:
            return returned
        if isinstance(returned, Awaitable):
            return self._keep(returned)
        self.result = returned
        return None

    async def _keep(self, returned: Awaitable[object]) -> None:
        self.result = await returned
