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
from collections.abc import Sequence
from typing import cast

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
        self._calls: dict[OwnedQueue, dict[int, Call]] = {}
        """Calls that wait, run or are not settled, by the offsets of their messages."""
        self._done: list[Call] = []
        """Successful calls of this loop iteration, whose messages are finished together."""
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
        call = self._calls.get(owned, {}).get(offset)
        if call is None:
            return f"the message at offset {offset} failed and is being sent back"
        return holding_text(call.message_at(offset), call)

    async def expire(self, queues: Sequence[OwnedQueue]) -> None:
        """Send back messages that hold back an offset and whose handlers take too long."""
        for owned in queues:
            for _ in range(_EXPIRE_MAX):
                if not await self._expire_first(owned):
                    break

    async def _expire_first(self, owned: OwnedQueue) -> bool:
        offset = owned.committable or 0
        call = self._calls.get(owned, {}).get(offset)
        if call is None or not call.began or call.ended:
            return False
        message = call.message_at(offset)
        if not owned.holds(message):
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
        self._settle()
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
        if size == 1:
            calls = [Call(owned, listener, [message]) for message in messages]
        else:
            parts = [messages[at : at + size] for at in range(0, len(messages), size)]
            calls = [Call(owned, listener, part) for part in parts]
        unsettled = self._calls.setdefault(owned, {})
        for call in calls:
            for message in call.messages:
                unsettled[message.queue_offset] = call
        self._handlers.start_all(calls, self._report)

    def _report(self, call: Call, error: BaseException | None) -> None:
        call.ended = time.monotonic()
        if error is None:
            if not self._done:
                self._loop.call_soon(self._settle)
            self._done.append(call)
            return
        owned = cast("OwnedQueue", call.owner)
        self._forget(owned, call.messages)
        if not owned.dropped:
            count, seconds = len(call.messages), call.ended - call.began
            self._handlers.count(owned.queue.topic, count, seconds, failed=True)
            self._handle_failure(owned, call.messages, error)

    def _settle(self) -> None:
        """Finish the messages of successful calls."""
        done, self._done = self._done, []
        by_queue: dict[OwnedQueue, list[Call]] = {}
        for call in done:
            owned = cast("OwnedQueue", call.owner)
            calls = by_queue.get(owned)
            if calls is None:
                by_queue[owned] = [call]
            else:
                calls.append(call)
        for owned, calls in by_queue.items():
            messages = [message for call in calls for message in call.messages]
            self._forget(owned, messages)
            if owned.dropped:
                continue
            seconds = sum([call.ended - call.began for call in calls])
            self._handlers.count(owned.queue.topic, len(messages), seconds, failed=False)
            owned.finish(messages)

    def _forget(self, owned: OwnedQueue, messages: Sequence[ReceivedMessage]) -> None:
        calls = self._calls.get(owned, {})
        for message in messages:
            calls.pop(message.queue_offset, None)
        if not calls:
            self._calls.pop(owned, None)

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
