"""Concurrent consumption: messages to handlers, outcomes to offsets.

handler returns        the message is finished
handler raises         it is sent back for a retry and finished here
sending back fails     it is handled again here after a while, and stays unfinished till then
queue is ours no more  the outcome counts for nothing; the new owner gets the message again
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from rocketpost.client.config import PushConsumerConfig
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.owned_queue import OwnedQueue
from rocketpost.client.retry import Retry, SendBack
from rocketpost.client.tally import Tally
from rocketpost.client.tasks import Tasks
from rocketpost.client.workers import AsyncWorkers, ThreadWorkers, Workers
from rocketpost.model.names import RETRY_PREFIX

logger = logging.getLogger(__name__)

_EXPIRE_MAX = 16
_EXPIRED_LEVEL = 3

Handler = Callable[[ReceivedMessage], Awaitable[None] | None]
"""Handles one message; raises to get it again later."""
BatchHandler = Callable[[Sequence[ReceivedMessage]], Awaitable[None] | None]
"""Handles several messages; raises to get all of them again later."""


class Listener(NamedTuple):
    """A handler and how it wants to be called."""

    handler: Handler | BatchHandler
    batches: bool
    is_async: bool


def listener_for(handler: Handler | BatchHandler, *, batches: bool) -> Listener:
    """Find out what kind of handler this is."""
    call = getattr(handler, "__call__", None)  # noqa: B004 - an object may have an async __call__
    is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)
    return Listener(handler, batches, is_async)


class Consuming:
    """Hands messages to handlers. Belongs to the event loop.

    Args:
        listeners: Handlers by topic; may grow while we run.
        send_back: Takes messages that failed.
        config: The consumer's.
    """

    def __init__(
        self,
        *,
        listeners: dict[str, Listener],
        send_back: SendBack,
        config: PushConsumerConfig,
    ) -> None:
        self._listeners = listeners
        self._send_back = send_back
        self._config = config
        self._returns = Tasks()
        self._loop = asyncio.get_running_loop()
        self._timers: set[asyncio.TimerHandle] = set()
        self._async: Workers = AsyncWorkers(config.concurrency)
        self._threads: Workers = ThreadWorkers(config.concurrency)
        self._tallies: dict[str, tuple[Tally, Tally]] = {}
        self._running: dict[tuple[OwnedQueue, int], tuple[_Call, ReceivedMessage]] = {}
        self.concurrency = config.concurrency
        self.stopped = False

    def tallies(self, topic: str) -> tuple[Tally, Tally]:
        """Return how many messages of ``topic`` were handled well, and how many failed."""
        found = self._tallies.get(topic)
        if found is None:
            found = self._tallies[topic] = Tally(), Tally()
        return found

    async def handle_once(self, message: ReceivedMessage) -> None:
        """Have one message handled now, without any effect on offsets.

        Raises:
            Exception: What the handler raises.
        """
        listener = self._listener(message.topic)
        if listener is None:
            raise LookupError(f"no handler for {message.topic}")
        argument = [message] if listener.batches else message
        if listener.is_async:
            await listener.handler(argument)  # type: ignore[arg-type, misc]
        else:
            await asyncio.to_thread(listener.handler, argument)  # type: ignore[arg-type]

    def submit(self, owned: OwnedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Have messages of one queue handled."""
        if not messages or self.stopped:
            return
        topic = owned.queue.topic
        if not topic.startswith(RETRY_PREFIX):
            self._submit(owned, self._listener(topic), messages)
            return
        for message in messages:  # one retry topic serves all topics of the group
            self._submit(owned, self._listener(message.topic), [message])

    async def expire(self, queues: Sequence[OwnedQueue]) -> None:
        """Send back messages whose handlers take too long while they hold an offset back."""
        for owned in queues:
            for _ in range(_EXPIRE_MAX):
                if not await self._expire_first(owned):
                    break

    async def _expire_first(self, owned: OwnedQueue) -> bool:
        key = owned, owned.committable or 0
        call, message = self._running.get(key, (None, None))
        if call is None or message is None or not call.began or not owned.holds(message):
            return False
        spent = time.monotonic() - call.began
        if spent < self._config.consume_timeout:
            return False
        logger.warning("handler takes too long: id=%s seconds=%.0f", message.message_id, spent)
        if not await self._send_back.send_back(message, _EXPIRED_LEVEL):
            return False
        owned.finish([message])
        return True

    async def stop(self, seconds: float) -> None:
        """Begin nothing more; give handlers at work ``seconds`` to finish."""
        self.stopped = True
        for timer in self._timers:
            timer.cancel()
        await asyncio.gather(self._async.stop(seconds), self._threads.stop(seconds))
        await self._returns.wait(seconds)
        await self._returns.stop()

    def _listener(self, topic: str) -> Listener | None:
        found = self._listeners.get(topic)
        if found is None and len(self._listeners) == 1:
            return next(iter(self._listeners.values()))
        return found

    def _submit(
        self, owned: OwnedQueue, listener: Listener | None, messages: Sequence[ReceivedMessage]
    ) -> None:
        if listener is None:
            self._failed(owned, messages, LookupError(f"no handler for {messages[0].topic}"))
            return
        workers = self._async if listener.is_async else self._threads
        size = self._config.batch_max if listener.batches else 1
        for start in range(0, len(messages), size):
            part = messages[start : start + size]
            call = _Call(owned, listener.handler, part if listener.batches else part[0])
            for message in part:
                self._running[owned, message.record.queue_offset] = call, message
            workers.submit(call, self._report(owned, part, call))

    def _report(
        self, owned: OwnedQueue, messages: Sequence[ReceivedMessage], call: _Call
    ) -> Callable[[BaseException | None], None]:
        def report(error: BaseException | None) -> None:
            for message in messages:
                self._running.pop((owned, message.record.queue_offset), None)
            if owned.dropped:
                return
            now = time.monotonic()
            done, failed = self.tallies(owned.queue.topic)
            if error is None:
                done.count(len(messages), now - call.began, now=now)
                owned.finish(messages)
            else:
                failed.count(len(messages), now - call.began, now=now)
                self._failed(owned, messages, error)

        return report

    def _failed(
        self, owned: OwnedQueue, messages: Sequence[ReceivedMessage], error: BaseException
    ) -> None:
        level = error.delay_level if isinstance(error, Retry) else 0
        for message in filter(owned.holds, messages):
            if isinstance(error, Retry):
                logger.info("retry asked for: id=%s level=%s", message.message_id, level)
            else:
                logger.warning("handler failed: id=%s", message.message_id, exc_info=error)
            work = self._return(owned, message, level)
            self._returns.start(work, name=f"send back {message.message_id}")

    async def _return(self, owned: OwnedQueue, message: ReceivedMessage, level: int) -> None:
        if await self._send_back.send_back(message, level):
            owned.finish([message])
        elif not self.stopped:
            self._again_later(owned, message)

    def _again_later(self, owned: OwnedQueue, message: ReceivedMessage) -> None:
        def again() -> None:
            self._timers.discard(timer)
            if not owned.dropped:
                self.submit(owned, [message])

        timer = self._loop.call_later(self._config.local_retry_seconds, again)
        self._timers.add(timer)


class _Call:
    """One call of a handler, skipped if the queue was lost meanwhile."""

    __slots__ = ("_argument", "_handler", "_owned", "began")

    def __init__(
        self,
        owned: OwnedQueue,
        handler: Handler | BatchHandler,
        argument: ReceivedMessage | Sequence[ReceivedMessage],
    ) -> None:
        self._owned = owned
        self._handler = handler
        self._argument = argument
        self.began = 0.0
        """When the handler was called, on the monotonic clock."""

    def __call__(self) -> object:
        if self._owned.dropped:
            return None
        self.began = time.monotonic()
        return self._handler(self._argument)  # type: ignore[arg-type]
