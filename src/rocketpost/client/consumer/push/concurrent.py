"""Concurrent consumption: calls of handlers, and the effects of their outcomes.

handler returns        the message is finished
handler raises         it is sent back for a retry and finished here
sending back fails     it is handled again here after a while, and stays unfinished until then
broadcasting           it cannot be sent back: it is logged and finished
queue was lost         the outcome is ignored; the new owner gets the message again
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from rocketpost.client.config import PushConsumerConfig
from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.consumer.push.handlers import Call, Handlers, HandlerSpec, holding_text
from rocketpost.client.consumer.push.retry import Retry, SendBack, why_of
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.tasks import BackgroundTasks
from rocketpost.model.failure import ConsumeFailure, failure_of
from rocketpost.model.names import RETRY_PREFIX

logger = logging.getLogger(__name__)

_EXPIRE_MAX = 16
_EXPIRED_LEVEL = 3


class ConcurrentConsumption:
    """Calls handlers concurrently. Belongs to the event loop.

    Args:
        handlers: The handlers.
        send_back: Receives failed messages; None to drop them.
        config: The settings of the consumer.
    """

    def __init__(
        self,
        *,
        handlers: Handlers,
        send_back: SendBack | None,
        config: PushConsumerConfig,
    ) -> None:
        self._handlers = handlers
        self._send_back = send_back
        self._config = config
        self._returns = BackgroundTasks()
        self._loop = asyncio.get_running_loop()
        self._timers: set[asyncio.TimerHandle] = set()
        self._running: dict[tuple[OwnedQueue, int], tuple[Call, ReceivedMessage]] = {}
        self.stopped = False

    def submit(self, owned: OwnedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Handle messages of one queue."""
        if not messages or self.stopped:
            return
        topic = owned.queue.topic
        if not topic.startswith(RETRY_PREFIX):
            self._submit(owned, self._handlers.find(topic), messages)
            return
        for message in messages:  # one retry topic serves all topics of the group
            self._submit(owned, self._handlers.find(message.topic), [message])

    def holding(self, owned: OwnedQueue) -> str:
        """Describe the message that holds back the queue's offset; empty if nothing is in hand."""
        if owned.tracker is None or not owned.tracker.count:
            return ""
        offset = owned.tracker.committable
        found = self._running.get((owned, offset))
        if found is None:
            return f"the message at offset {offset} failed and is being sent back"
        call, message = found
        return holding_text(message, call)

    async def expire(self, queues: Sequence[OwnedQueue]) -> None:
        """Send back messages that hold back an offset and whose handlers take too long."""
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
        why = failure_of(TimeoutError(f"the handler took longer than {spent:.0f} s"))
        if not await self._give_away(message, _EXPIRED_LEVEL, why):
            return False
        owned.finish([message])
        return True

    async def settle(self, owned: OwnedQueue, seconds: float) -> bool:
        """Return at once: outcomes for a released queue are ignored."""
        return True

    async def close(self) -> None:
        """Do nothing: there is no state to drop."""

    async def stop(self, seconds: float) -> None:
        """Start no more handlers; give running ones ``seconds`` to finish."""
        self.stopped = True
        for timer in self._timers:
            timer.cancel()
        await self._handlers.stop(seconds)
        await self._returns.wait(seconds)
        await self._returns.stop()

    def _submit(
        self, owned: OwnedQueue, listener: HandlerSpec | None, messages: Sequence[ReceivedMessage]
    ) -> None:
        if listener is None:
            self._handle_failure(
                owned, messages, LookupError(f"no handler for {messages[0].topic}")
            )
            return
        size = self._handlers.batch_size(listener)
        for start in range(0, len(messages), size):
            part = messages[start : start + size]
            call = Call(owned, listener, part)
            for message in part:
                self._running[owned, message.record.queue_offset] = call, message
            self._handlers.start(call, self._report(owned, part, call))

    def _report(
        self, owned: OwnedQueue, messages: Sequence[ReceivedMessage], call: Call
    ) -> Callable[[BaseException | None], None]:
        def report(error: BaseException | None) -> None:
            for message in messages:
                self._running.pop((owned, message.record.queue_offset), None)
            if owned.dropped:
                return
            self._handlers.count(owned.queue.topic, len(messages), call, failed=error is not None)
            if error is None:
                owned.finish(messages)
            else:
                self._handle_failure(owned, messages, error)

        return report

    def _handle_failure(
        self, owned: OwnedQueue, messages: Sequence[ReceivedMessage], error: BaseException
    ) -> None:
        level = error.delay_level if isinstance(error, Retry) else 0
        why = why_of(error)
        for message in filter(owned.holds, messages):
            if isinstance(error, Retry):
                logger.info("retry requested: id=%s level=%s", message.message_id, level)
            else:
                logger.warning("handler failed: id=%s", message.message_id, exc_info=error)
            work = self._return(owned, message, level, why)
            self._returns.start(work, name=f"send back {message.message_id}")

    async def _return(
        self, owned: OwnedQueue, message: ReceivedMessage, level: int, why: ConsumeFailure | None
    ) -> None:
        if await self._give_away(message, level, why):
            owned.finish([message])
        elif not self.stopped:
            self._handle_later(owned, message)

    async def _give_away(
        self, message: ReceivedMessage, level: int, why: ConsumeFailure | None
    ) -> bool:
        if self._send_back is None:
            logger.error("message given up: id=%s", message.message_id)
            return True
        return await self._send_back.send_back(message, level, why)

    def _handle_later(self, owned: OwnedQueue, message: ReceivedMessage) -> None:
        def handle() -> None:
            self._timers.discard(timer)
            if not owned.dropped:
                self.submit(owned, [message])

        timer = self._loop.call_later(self._config.local_retry_seconds, handle)
        self._timers.add(timer)
