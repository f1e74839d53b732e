"""Consumption by popping: queues that members share, message by message.

handler returns          the message is acknowledged
handler raises           it is delivered again to any member, with a delay that grows each time
it failed too often      a copy goes to the dead-letter topic, then it is acknowledged
not begun in time        nothing; the broker delivers it to the next member that asks
not begun at the end     it is returned at once, for the next member that asks

The broker keeps the offsets. An acknowledgement counts even if another member now has the queue.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from rocketpost.client.config import PushConsumerConfig
from rocketpost.client.consumer.pop_calls import PopCalls, PoppedMessage, PopQuery
from rocketpost.client.consumer.push.handlers import Call, Handlers, HandlerSpec
from rocketpost.client.consumer.push.retry import DEAD_LETTER, RETRY_MAX_DEFAULT, Retry, SendBack
from rocketpost.client.consumer.push.workers import Report
from rocketpost.client.session import Session
from rocketpost.client.tasks import BackgroundTasks
from rocketpost.codec.faults import FlowControl, NoMessage
from rocketpost.errors import RocketpostError
from rocketpost.model.group import Subscription
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)

DELAYS_SECONDS: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""Delays of the levels 1, 2, ..."""
FIRST_LEVEL: Final = 3
"""The level after the first failure, unless the handler chooses one."""
_FLOW_CONTROL_SECONDS: Final = 0.02

Outcome = Callable[[PoppedMessage], Awaitable[None]]


def retry_seconds(message: PoppedMessage, level: int) -> float:
    """Return the delay until a failed message is delivered again."""
    level = level if level > 0 else FIRST_LEVEL + message.reconsume_times
    return float(DELAYS_SECONDS[min(level, len(DELAYS_SECONDS)) - 1])


class _Source:
    """A queue, or all queues of a broker, to pop from."""

    def __init__(self, queue: MessageQueue, unfinished_max: int) -> None:
        self.queue = queue
        self.is_leaving = False
        """Whether to send no more pops; pops in flight still count."""
        self._unfinished = 0
        self._unfinished_max = unfinished_max
        self._room = asyncio.Event()
        self._room.set()

    def take(self, count: int) -> None:
        self._unfinished += count
        if self._unfinished > self._unfinished_max:
            self._room.clear()

    def finish(self, count: int) -> None:
        self._unfinished -= count
        if self._unfinished <= self._unfinished_max:
            self._room.set()

    async def wait_for_room(self) -> None:
        await self._room.wait()


class _Hand:
    """The messages of one call of a handler."""

    __slots__ = ("call", "deadline", "messages", "source")

    def __init__(
        self,
        source: _Source,
        messages: Sequence[PoppedMessage],
        listener: HandlerSpec,
        deadline: float,
    ) -> None:
        self.source = source
        self.messages = messages
        self.deadline = deadline
        self.call = Call(self, listener, messages)

    @property
    def may_handle(self) -> bool:
        """Whether the messages are still ours."""
        return time.monotonic() < self.deadline


class PopConsumption:
    """Pops for one consumer. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        group: The consumer group.
        config: The settings of the consumer.
        subscription: Returns the subscription to a topic; None if there is none any more.
        handlers: The handlers.
        send_back: Receives messages that failed too often.
        wait_until_wanted: Waits until a queue is not paused.
    """

    def __init__(
        self,
        session: Session,
        group: str,
        *,
        config: PushConsumerConfig,
        subscription: Callable[[str], Subscription | None],
        handlers: Handlers,
        send_back: SendBack,
        wait_until_wanted: Callable[[MessageQueue], Awaitable[None]],
    ) -> None:
        self._session = session
        self._group = group
        self._config = config
        self._subscription = subscription
        self._handlers = handlers
        self._send_back = send_back
        self._wait_until_wanted = wait_until_wanted
        self._retry_max = config.retry_max if config.retry_max >= 0 else RETRY_MAX_DEFAULT
        self._calls = PopCalls(session, group)
        self._sources: dict[MessageQueue, _Source] = {}
        self._stopping = False
        self._fetching = BackgroundTasks()
        self._settling = BackgroundTasks()
        self._hands: set[_Hand] = set()

    @property
    def queues(self) -> list[MessageQueue]:
        """The popped queues; -1 stands for all queues of a broker."""
        return list(self._sources)

    def apply(self, topic: str, share: Sequence[MessageQueue]) -> None:
        """Make ``share`` the popped queues of ``topic``."""
        wanted = set(share)
        self._release(
            [queue for queue in self._sources if queue.topic == topic and queue not in wanted]
        )
        for queue in share:
            if queue not in self._sources:
                logger.info("popping: group=%s queue=%s", self._group, queue)
                source = self._sources[queue] = _Source(queue, self._config.pop_threshold)
                self._fetching.start(self._fetch(source), name=f"pop {queue}")

    def drop_other_topics(self, topics: Sequence[str]) -> None:
        """Stop popping from topics that are not in ``topics``."""
        self._release([queue for queue in self._sources if queue.topic not in topics])

    def stop_fetching(self) -> None:
        """Stop popping; messages of pops in flight are returned."""
        self._stopping = True
        self._release(list(self._sources))

    async def close(self, seconds: float) -> None:
        """Return messages not begun, after handlers have stopped; wait for acks in flight."""
        for hand in [hand for hand in self._hands if hand.call.skipped]:
            self._end(hand, partial(self._give_up, deadline=hand.deadline))
        await self._settling.wait(seconds)
        await self._fetching.stop()
        await self._settling.stop()

    # Taking.

    def _release(self, queues: Sequence[MessageQueue]) -> None:
        # A broker that holds a pop for us may still deliver messages to it: wait for its answer.
        for queue in queues:
            self._sources.pop(queue).is_leaving = True

    async def _fetch(self, source: _Source) -> None:
        queue, config = source.queue, self._config
        while not source.is_leaving:
            await source.wait_for_room()
            await self._wait_until_wanted(queue)
            subscription = self._subscription(queue.topic)
            if subscription is None or source.is_leaving:
                return
            wish = PopQuery(
                subscription,
                queue.broker_name,
                queue.queue_id,
                count_max=config.pop_count_max,
                invisible_seconds=config.pop_invisible_seconds,
                hold_seconds=config.hold_seconds,
                start_from=config.start_from,
            )
            try:
                messages, was_full = await self._calls.pop(wish)
            except FlowControl:
                await asyncio.sleep(_FLOW_CONTROL_SECONDS)
                continue
            except RocketpostError as error:
                self._session.outages.report_failure("pop failed", queue, error)
                await asyncio.sleep(config.error_seconds)
                await self._session.routes.refresh(queue.topic)
                continue
            self._session.outages.report_success(queue.broker_name, queue.topic)
            self._submit(source, messages)
            if was_full:
                await asyncio.sleep(config.error_seconds)

    def _submit(self, source: _Source, messages: Sequence[PoppedMessage]) -> None:
        source.take(len(messages))
        deadline = time.monotonic() + self._config.pop_invisible_seconds
        wanted = not self._stopping and self._subscription(source.queue.topic) is not None
        listener = self._handlers.find(source.queue.topic) if wanted else None
        if listener is None:
            self._settle(source, messages, partial(self._give_up, deadline=deadline))
            return
        size = self._handlers.batch_size(listener)
        for start in range(0, len(messages), size):
            hand = _Hand(source, messages[start : start + size], listener, deadline)
            self._hands.add(hand)
            self._handlers.start(hand.call, self._report(hand))

    # Outcomes.

    def _report(self, hand: _Hand) -> Report:
        def report(_: object, error: BaseException | None) -> None:
            if hand.call.skipped:
                self._end(hand, partial(self._give_up, deadline=hand.deadline))
                return
            topic, count = hand.source.queue.topic, len(hand.messages)
            self._handlers.count(topic, count, hand.call.seconds, failed=error is not None)
            if error is None:
                self._end(hand, partial(self._ack, deadline=hand.deadline))
                return
            level = error.delay_level if isinstance(error, Retry) else 0
            if not isinstance(error, Retry):
                logger.warning("handler failed: topic=%s", topic, exc_info=error)
            self._end(hand, partial(self._handle_failure, deadline=hand.deadline, level=level))

        return report

    def _end(self, hand: _Hand, outcome: Outcome) -> None:
        self._hands.discard(hand)
        self._settle(hand.source, hand.messages, outcome)

    def _settle(self, source: _Source, messages: Sequence[PoppedMessage], outcome: Outcome) -> None:
        """Apply the outcome of messages."""
        if not messages:
            return

        async def work() -> None:
            try:
                await asyncio.gather(*map(outcome, messages))
            finally:
                source.finish(len(messages))

        self._settling.start(work(), name="settle popped messages")

    async def _ack(self, message: PoppedMessage, deadline: float) -> None:
        while True:
            try:
                await self._calls.ack(message)
                return
            except RocketpostError as error:
                reason = error
            if time.monotonic() + self._config.error_seconds >= deadline:
                logger.warning(
                    "not acknowledged, will be redelivered: id=%s reason=%s",
                    message.message_id,
                    reason,
                )
                return
            await asyncio.sleep(self._config.error_seconds)

    async def _handle_failure(self, message: PoppedMessage, deadline: float, level: int) -> None:
        is_over = level == DEAD_LETTER or message.reconsume_times >= self._retry_max
        if is_over and await self._send_back.dead_letter(message):
            await self._ack(message, deadline)
        else:
            await self._change(message, retry_seconds(message, level))

    async def _give_up(self, message: PoppedMessage, deadline: float) -> None:
        if time.monotonic() < deadline:
            await self._change(message, 0.0)

    async def _change(self, message: PoppedMessage, seconds: float) -> None:
        try:
            await self._calls.change(message, seconds)
        except NoMessage:
            logger.info("invisible time was over: id=%s", message.message_id)
        except RocketpostError as error:
            # It is delivered again after its invisible time, not after the requested delay.
            logger.warning("delay not set: id=%s reason=%s", message.message_id, error)
