"""Automatic batches of messages that are sent at about the same time.

A message waits for others until its group has ``bytes_max``, or for ``seconds``. Messages of a
group have the same topic, queue, priority and ``wait_store``, and the same sharding key unless
their queue is given. Each caller gets the result of its own message. Delayed messages, large ones
and those with a selector or their own timeout are sent alone. Messages to one given queue, or with
one sharding key, keep the order of the calls: if one cannot join those before it, their group is
sent first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from rocketpost.client.config import ProducerConfig
from rocketpost.client.message import Message, SendResult, check_message
from rocketpost.client.patience import TimeLimit
from rocketpost.client.producer.batching import PackedBatch, split_result
from rocketpost.client.producer.flight import OutgoingSend
from rocketpost.client.tasks import BackgroundTasks
from rocketpost.client.turns import Turn, Turns
from rocketpost.codec.batch import ENTRY_BYTES_MIN, BatchItem
from rocketpost.errors import NotConnected, RocketpostError
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue
from rocketpost.transport.unique_id import unique_id

COUNT_MAX: Final = 1000
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Maximum bytes that wait for others; further messages are sent alone."""
_PROPERTIES_EXPECTED: Final = 80

_Sent = tuple[OutgoingSend, asyncio.Future[SendResult]]
StartAlone = Callable[[float], Awaitable[asyncio.Future[SendResult]]]
"""Starts the send of one message, which may take so many seconds."""
SendTogether = Callable[[PackedBatch, MessageQueue | None], Awaitable[_Sent]]
"""Starts the send of a batch, to a given queue or to any."""
_Key = tuple[str, MessageQueue | None, str | None, int | None, bool]


class _Group:
    """Messages that wait for others."""

    __slots__ = ("futures", "packed", "queue", "size", "timer")

    def __init__(self, queue: MessageQueue | None) -> None:
        self.packed = PackedBatch([], [], [])
        self.queue = queue
        self.size = 0
        self.futures: list[asyncio.Future[SendResult]] = []
        self.timer: asyncio.TimerHandle | None = None


class AutoBatcher:
    """Gathers messages into batches. Belongs to the event loop.

    Args:
        send: Sends a batch.
        bytes_max: Size at which a group is sent.
        seconds: Maximum wait of a message.
        alone_bytes: Size from which a body is sent alone and may be compressed.
        message_bytes_max: Maximum size of a body.
    """

    def __init__(
        self,
        send: SendTogether,
        *,
        bytes_max: int,
        seconds: float,
        alone_bytes: int,
        message_bytes_max: int,
    ) -> None:
        self._send = send
        self._bytes_max = bytes_max
        self._seconds = seconds
        self._alone_bytes = alone_bytes
        self._message_bytes_max = message_bytes_max
        self._groups: dict[_Key, _Group] = {}
        self._chosen: dict[tuple[str, MessageQueue | None, str | None], _Key] = {}
        """The only group that waits for each topic, given queue and sharding key."""
        self._turns = Turns()
        self._held = 0
        self._under_way: set[asyncio.Future[SendResult]] = set()
        self._tasks = BackgroundTasks()
        self._loop = asyncio.get_running_loop()

    def takes(self, message: Message) -> bool:
        """Tell whether a message may be batched.

        Raises:
            MessageRefused: The message breaks a rule.
        """
        check_message(message, body_bytes_max=self._message_bytes_max)
        return (
            len(message.body) + _PROPERTIES_EXPECTED < self._alone_bytes
            and self._held < HELD_BYTES_MAX
            and not message.is_delayed
            and not message.topic.startswith(RETRY_PREFIX)
        )

    async def add(self, message: Message, queue: MessageQueue | None) -> asyncio.Future[SendResult]:
        """Add a message to a group, and return the future of its result.

        The caller that completes a group waits until it may be sent: that is the back-pressure.

        Raises:
            MessageRefused: Its properties are too long.
        """
        message_id = unique_id()
        properties = message.property_text(message_id).encode("utf-8", "replace")
        sharding_key = message.sharding_key if queue is None else None
        key = message.topic, queue, sharding_key, message.priority, message.wait_store
        if queue is not None or sharding_key is not None:
            before = self._chosen.get(key[:3], key)
            if before != key:
                self._depart(before, self._groups[before])
            self._chosen[key[:3]] = key
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(queue)
            group.timer = self._loop.call_later(self._seconds, self._depart, key, group)
        packed, future = group.packed, self._loop.create_future()
        packed.messages.append(message)
        packed.ids.append(message_id)
        packed.items.append(BatchItem(message.flag, message.body, properties))
        group.futures.append(future)
        size = ENTRY_BYTES_MIN + len(message.body) + len(properties)
        group.size += size
        self._held += size
        if group.size >= self._bytes_max or len(packed.items) >= COUNT_MAX:
            # Shielded: a cancelled caller must not cancel the messages of others.
            await asyncio.wait([self._depart(key, group)])
        return future

    async def send_alone(
        self, topic: str, seconds: float, start: StartAlone
    ) -> asyncio.Future[SendResult]:
        """Start the send of a message to a chosen queue, after those that wait for others.

        Raises:
            NotConnected: Those before it could not be sent in ``seconds``; it was not sent.
        """
        for key in [key for key in self._chosen.values() if key[0] == topic]:
            self._depart(key, self._groups[key])
        if topic not in self._turns:
            return await start(seconds)
        limit, turn = TimeLimit(seconds), self._turns.take(topic)
        try:
            try:
                async with asyncio.timeout(seconds):
                    await turn.wait()
            except TimeoutError:
                raise NotConnected(
                    f"earlier messages to {topic} could not be sent in {seconds:g} s"
                ) from None
            return await start(limit.left)
        finally:
            turn.end()

    async def flush(self) -> None:
        """Send everything that waits, and return when all callers have their results."""
        for key, group in list(self._groups.items()):
            self._depart(key, group)
        while len(self._tasks):
            await self._tasks.wait(self._seconds)
        while self._under_way:  # every send ends within its timeout
            await asyncio.wait(set(self._under_way))
            await asyncio.sleep(0)  # let callers whose results are there resume

    def _depart(self, key: _Key, group: _Group) -> asyncio.Task[None]:
        if group.timer is not None:
            group.timer.cancel()
        if self._groups.get(key) is group:
            del self._groups[key]
            self._chosen.pop(key[:3], None)
        work = self._send_group(group, self._turns.take(key[0]))
        return self._tasks.start(work, name=f"send batch to {key[0]}")

    async def _send_group(self, group: _Group, turn: Turn) -> None:
        try:
            await turn.wait()
            out, result = await self._send(group.packed, group.queue)
        except RocketpostError as error:
            _fail(group, error)
        else:
            self._under_way.add(result)
            result.add_done_callback(lambda done: self._end_send(group, out, done))
        finally:
            turn.end()
            self._held -= group.size

    def _end_send(self, group: _Group, out: OutgoingSend, done: asyncio.Future[SendResult]) -> None:
        self._under_way.discard(done)
        _settle(group, out, done)


def _settle(group: _Group, out: OutgoingSend, done: asyncio.Future[SendResult]) -> None:
    if done.cancelled():
        for future in group.futures:
            future.cancel()
        return
    error = done.exception()
    if error is not None:
        _fail(group, error)
        return
    for future, result in zip(group.futures, split_result(out, done.result()), strict=True):
        if not future.done():
            future.set_result(result)


def _fail(group: _Group, error: BaseException) -> None:
    for future in group.futures:
        if not future.done():
            future.set_exception(error)


def auto_batcher_for(send: SendTogether, config: ProducerConfig) -> AutoBatcher | None:
    """Return an automatic batcher if the settings enable it; None otherwise."""
    if not config.auto_batch:
        return None
    alone = min(config.compress_bytes_min or config.auto_batch_bytes, config.auto_batch_bytes)
    return AutoBatcher(
        send,
        bytes_max=config.auto_batch_bytes,
        seconds=config.auto_batch_seconds,
        alone_bytes=alone,
        message_bytes_max=config.message_bytes_max,
    )
