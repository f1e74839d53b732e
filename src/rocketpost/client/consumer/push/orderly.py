"""Orderly consumption: the messages of each queue are handled one after the other.

handler returns   the message is finished, the next one follows
handler raises    the queue waits a moment, then the same message is handled again
raised too often  the message goes to the dead-letter topic, the next one follows
commits itself    a handled message stays in hand until a later one commits; a rollback repeats all
                  since the last commit
lock is lost      nothing more of the queue is handled until the lock is granted again
queue is released the running handler may finish, and its outcome counts; then others follow
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

import msgspec

from rocketpost.client.config import PushConsumerConfig
from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.consumer.push.handlers import (
    Call,
    Consumed,
    Handlers,
    holding_text,
)
from rocketpost.client.consumer.push.retry import DEAD_LETTER, Retry, SendBack, why_of
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.tasks import BackgroundTasks

logger = logging.getLogger(__name__)

SUSPEND_SECONDS_MIN: Final = 0.01
SUSPEND_SECONDS_MAX: Final = 30.0
_PARTS_MAX: Final = 64
"""Calls of a handler in one job of a worker."""


class Suspend(Exception):  # noqa: N818 - raised by handlers to ask for it
    """Raised by an orderly handler to get the same message again in a moment.

    Any other exception has the same effect, after the configured time and with a traceback in the
    log.

    Args:
        seconds: Wait of the queue, between 0.01 and 30; the configured time if None.
    """

    def __init__(self, seconds: float | None = None) -> None:
        super().__init__("suspend the queue" + (f" for {seconds:g} s" if seconds else ""))
        self.seconds = seconds


class Rollback(Suspend):
    """Raised by an orderly handler that commits itself, to repeat all since the last commit."""


class _Line:
    """The messages of one queue in hand, oldest first."""

    __slots__ = ("call", "outcome", "owned", "pending", "task", "uncommitted")

    def __init__(self, owned: OwnedQueue) -> None:
        self.owned = owned
        self.pending: deque[ReceivedMessage] = deque()
        self.uncommitted: list[ReceivedMessage] = []
        """Messages handled and not committed yet."""
        self.task: asyncio.Task[None] | None = None
        self.call: Call | None = None
        """The call that is running or waits for a worker."""
        self.outcome: asyncio.Future[BaseException | None] | None = None

    @property
    def is_accounting(self) -> bool:
        """Whether a handler is done and its outcome is being processed."""
        return self.call is not None and self.outcome is not None and self.outcome.done()

    @property
    def holds_thread(self) -> bool:
        """Whether a handler is running in a thread, which cannot be stopped."""
        return self.call is not None and not self.call.skipped and not self.call.listener.is_async


class OrderlyConsumption:
    """Calls handlers with the messages of each queue in order. Belongs to the event loop.

    Args:
        handlers: The handlers.
        send_back: Receives messages that failed too often; None to drop them.
        config: The settings of the consumer.
    """

    def __init__(
        self, *, handlers: Handlers, send_back: SendBack | None, config: PushConsumerConfig
    ) -> None:
        self._handlers = handlers
        self._send_back = send_back
        self._config = config
        self._lines: dict[OwnedQueue, _Line] = {}
        self._tasks = BackgroundTasks()
        self._stopped = False

    def submit(self, owned: OwnedQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Handle messages of one queue after the earlier ones."""
        if not messages or self._stopped or owned.dropped:
            return
        line = self._lines.setdefault(owned, _Line(owned))
        line.pending.extend(messages)
        if line.task is None or line.task.done():
            name = f"handle {owned.queue.topic} {owned.queue.broker_name}/{owned.queue.queue_id}"
            line.task = self._tasks.start(self._drain(line), name=name)

    def holding(self, owned: OwnedQueue) -> str:
        """Describe the message that holds back the queue's offset; empty if nothing is in hand."""
        line = self._lines.get(owned)
        if line is None or not (line.pending or line.uncommitted):
            return ""
        if line.uncommitted:
            first = line.uncommitted[0]
            return f"{len(line.uncommitted)} from offset {first.queue_offset} are not committed"
        first = line.pending[0]
        failed = f" after {first.reconsume_times} failures" if first.reconsume_times else ""
        return holding_text(first, line.call) + failed

    async def expire(self, queues: Sequence[OwnedQueue]) -> None:
        """Do nothing: skipping a message would break the order."""

    async def settle(self, owned: OwnedQueue, seconds: float) -> bool:
        """Wait for the running handler of a queue; return whether it has finished."""
        line = self._lines.get(owned)
        if line is not None and line.task is not None:
            await asyncio.wait([line.task], timeout=seconds)
            if not line.task.done() and (line.holds_thread or not self._stopped):
                return False
        self._lines.pop(owned, None)
        return True

    async def stop(self, seconds: float) -> None:
        """Start no more handlers; give running ones ``seconds`` to finish."""
        self._stopped = True
        await self._handlers.stop(seconds)
        ending = [line.task for line in self._lines.values() if line.task and line.is_accounting]
        if ending:
            await asyncio.wait(ending, timeout=seconds)

    async def close(self) -> None:
        """Drop all messages in hand."""
        await self._tasks.stop()

    async def _drain(self, line: _Line) -> None:
        owned, pending = line.owned, line.pending
        while pending and not self._stopped:
            await owned.wait_until_locked()
            if owned.dropped or self._stopped:
                return
            part = self._next_part(line)
            await self._handle(line, part)

    def _next_part(self, line: _Line) -> list[ReceivedMessage]:
        first = line.pending[0]
        listener = self._handlers.find(first.topic)
        size = self._handlers.batch_size(listener) if listener is not None else 1
        part: list[ReceivedMessage] = []
        for message in line.pending:  # one retry topic serves all topics of the group
            if len(part) == size or message.topic != first.topic:
                break
            part.append(message)
        return part

    async def _handle(self, line: _Line, part: list[ReceivedMessage]) -> None:
        listener = self._handlers.find(part[0].topic)
        if listener is None:
            await self._handle_failure(line, part, LookupError(f"no handler for {part[0].topic}"))
            return
        outcome = line.outcome = asyncio.get_running_loop().create_future()

        def report(_: object, error: BaseException | None) -> None:
            outcome.set_result(error)

        call = line.call = Call(line.owned, listener, part)
        if listener.is_async and self._handlers.tracer is None:
            job = partial(self._run, line, call)
            self._handlers.start_job(job, report, self._handlers.rank_of(part))
        else:
            self._handlers.start(call, report)
        error = await outcome
        call = line.call
        if not call.skipped:
            await self._account(line, call, error)
        line.call = None

    async def _account(self, line: _Line, call: Call, error: BaseException | None) -> None:
        """Handle the outcome of a call."""
        part, listener = list(call.messages), call.listener
        self._handlers.count(
            line.owned.queue.topic, len(part), call.seconds, failed=error is not None
        )
        if error is None:
            self._done(line, part, commit=listener.auto_commit or _commits(call))
        elif isinstance(error, Rollback) and not listener.auto_commit:
            await self._roll_back(line, part, error)
        else:
            await self._handle_failure(line, part, error)

    async def _run(self, line: _Line, call: Call) -> None:
        """Call an async handler with one part of a line after the other, in one job of a worker.

        Ends after the part whose outcome is left to :meth:`_handle`: its handler failed, it is the
        last that may be handled now, or other lines are to have their turn.
        """
        listener, pending = call.listener, line.pending
        for left in reversed(range(_PARTS_MAX)):
            if not left:
                await asyncio.sleep(0)  # handlers that never wait must not starve the loop
            result = call()
            if call.skipped:
                return
            if isinstance(result, Awaitable):
                await result
            count = len(call.messages)
            if (
                not left
                or len(pending) == count
                or self._stopped
                or not line.owned.may_handle
                or self._handlers.find(pending[count].topic) is not listener
            ):
                return
            self._handlers.count(line.owned.queue.topic, count, call.seconds, failed=False)
            self._done(line, call.messages, commit=listener.auto_commit or _commits(call))
            call = line.call = Call(line.owned, listener, self._next_part(line))

    def _done(self, line: _Line, part: Sequence[ReceivedMessage], *, commit: bool) -> None:
        for _ in part:
            line.pending.popleft()
        if not commit:
            line.uncommitted += part
            return
        line.owned.finish([*line.uncommitted, *part])
        line.uncommitted.clear()

    async def _roll_back(
        self, line: _Line, part: Sequence[ReceivedMessage], error: Rollback
    ) -> None:
        logger.info("rolled back: id=%s reason=%s", part[0].message_id, error)
        line.pending.extendleft(reversed(line.uncommitted))
        line.uncommitted.clear()
        line.call = None
        if not self._stopped:
            await line.owned.wait_until_gone(self._suspend_seconds(error))

    async def _handle_failure(
        self, line: _Line, part: list[ReceivedMessage], error: BaseException
    ) -> None:
        for message in part:
            if isinstance(error, Suspend | Retry):
                logger.info("queue suspended: id=%s reason=%s", message.message_id, error)
            else:
                logger.warning("handler failed: id=%s", message.message_id, exc_info=error)
        at_once = isinstance(error, Retry) and error.delay_level == DEAD_LETTER
        kept: list[ReceivedMessage] = []
        for message in part:
            if (at_once or self._is_last(message)) and await self._retire(message, error):
                line.owned.finish([message])
            else:
                kept.append(_again(message))
        for _ in part:
            line.pending.popleft()
        line.pending.extendleft(reversed(kept))
        line.call = None
        if kept and not self._stopped:
            await line.owned.wait_until_gone(self._suspend_seconds(error))

    def _is_last(self, message: ReceivedMessage) -> bool:
        limit = self._config.retry_max
        return limit >= 0 and message.reconsume_times >= limit

    async def _retire(self, message: ReceivedMessage, error: BaseException) -> bool:
        if self._send_back is None:
            logger.error("message given up: id=%s", message.message_id)
            return True
        return await self._send_back.dead_letter(message, why_of(error))

    def _suspend_seconds(self, error: BaseException) -> float:
        wished = error.seconds if isinstance(error, Suspend) else None
        seconds = self._config.suspend_seconds if wished is None else wished
        return min(max(seconds, SUSPEND_SECONDS_MIN), SUSPEND_SECONDS_MAX)


def _commits(call: Call) -> bool:
    return call.result is Consumed.COMMIT


def _again(message: ReceivedMessage) -> ReceivedMessage:
    record = msgspec.structs.replace(message.record, reconsume_times=message.reconsume_times + 1)
    return ReceivedMessage(record, message.queue, message.queue_end, message.queue_begin)
