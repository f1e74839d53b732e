"""The SDK for threads and scripts: the same clients, with calls that wait.

::

    with Producer("orders", name_servers="127.0.0.1:9876") as producer:
        producer.send(Message("Orders", b"..."))

All clients of a process share one background thread with an event loop. They may be used by any
thread. In a forked child they connect again on their first use, with client and message ids of
their own, and never touch the parent's connections. A push consumer is the exception: it consumes
only in the process that started it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from rocketpost.client import admin as async_admin
from rocketpost.client import lite_pull_consumer as async_lite
from rocketpost.client import producer as async_producer
from rocketpost.client import pull_consumer as async_pull
from rocketpost.client import push_consumer as async_push
from rocketpost.client import transaction as async_transaction
from rocketpost.client.allocation import AllocationStrategy
from rocketpost.client.blocking_base import BlockingClient
from rocketpost.client.blocking_simple import SimpleConsumer
from rocketpost.client.choosing import QueueSelector
from rocketpost.client.config import (
    ClientConfig,
    LitePullConsumerConfig,
    ProducerConfig,
    PullConsumerConfig,
    PushConsumerConfig,
    check_group,
)
from rocketpost.client.fetch import PullResult
from rocketpost.client.handlers import BatchHandler, Handler
from rocketpost.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rocketpost.client.offset_calls import Boundary
from rocketpost.client.subscriptions import Announcement
from rocketpost.model.group import SUBSCRIBE_ALL
from rocketpost.model.route import MessageQueue

__all__ = [
    "AdminClient",
    "LitePullConsumer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
]

T = TypeVar("T")


class Producer(BlockingClient[async_producer.Producer]):
    """Sends messages; see :class:`rocketpost.client.Producer`. Thread-safe."""

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: ProducerConfig | None = None,
        idempotent: bool = False,
        producer_id: str | None = None,
        epoch: int = 0,
    ) -> None:
        def make() -> async_producer.Producer:
            return async_producer.Producer(
                group,
                name_servers=name_servers,
                config=self._named(config),
                idempotent=idempotent,
                producer_id=producer_id,
                epoch=epoch,
            )

        make()  # what is wrong with the arguments is said here, not when it starts
        super().__init__(make)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
    ) -> SendResult:
        """Send a message and return where it went."""
        return self._call(
            lambda inner: inner.send(
                message, queue=queue, selector=selector, timeout=timeout, sequence=sequence
            )
        )

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        sequence: int | None = None,
        message_id: str | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """Start a send and return its result to be; waits only while too much is under way."""

        async def start(
            inner: async_producer.Producer,
        ) -> concurrent.futures.Future[SendResult]:
            future = await inner.send_soon(
                message,
                queue=queue,
                selector=selector,
                timeout=timeout,
                sequence=sequence,
                message_id=message_id,
            )
            outer: concurrent.futures.Future[SendResult] = concurrent.futures.Future()
            future.add_done_callback(lambda done: _copy(done, outer))
            return outer

        return self._call(start)

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send a message without learning whether it arrived."""
        self._call(lambda inner: inner.send_oneway(message, queue=queue, selector=selector))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,
        first_sequence: int | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together; more than fit one request become several."""
        return self._call(
            lambda inner: inner.send_batch(
                messages,
                queue=queue,
                timeout=timeout,
                first_sequence=first_sequence,
                message_ids=message_ids,
            )
        )

    def recall(self, topic: str, handle: str, *, timeout: float | None = None) -> str:
        """Recall a timed message that is not due yet; returns its id."""
        return self._call(lambda inner: inner.recall(topic, handle, timeout=timeout))

    def last_sequence(self, topic: str) -> int | None:
        """Return the highest sequence of this id and epoch that a broker has stored."""
        return self._call(lambda inner: inner.last_sequence(topic))

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Send a message, wait until a consumer replies to it, and return the reply."""
        return self._call(
            lambda inner: inner.request(message, queue=queue, selector=selector, timeout=timeout)
        )

    def reply_to(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Reply to a message whose sender waits for that."""
        return self._call(
            lambda inner: inner.reply_to(
                request, body, tags=tags, properties=properties, timeout=timeout
            )
        )

    def flush(self) -> None:
        """Return once nothing is under way any more."""
        self._call(lambda inner: inner.flush())

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` that can be written to."""
        return self._call(lambda inner: inner.queues(topic))


class PullConsumer(BlockingClient[async_pull.PullConsumer]):
    """Pulls by queue and offset; see :class:`rocketpost.client.PullConsumer`. Thread-safe."""

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: PullConsumerConfig | None = None,
    ) -> None:
        check_group(group)
        super().__init__(
            lambda: async_pull.PullConsumer(
                group, name_servers=name_servers, config=self._named(config)
            )
        )

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` that can be read, sorted."""
        return self._call(lambda inner: inner.queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        count_max: int = 32,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
        hold: bool = False,
        hold_seconds: float | None = None,
        timeout: float | None = None,
    ) -> PullResult:
        """Return the messages of ``queue`` from ``offset`` on, or why there are none."""
        return self._call(
            lambda inner: inner.pull(
                queue,
                offset,
                count_max=count_max,
                tags=tags,
                sql=sql,
                hold=hold,
                hold_seconds=hold_seconds,
                timeout=timeout,
            )
        )

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message still there."""
        return self._call(lambda inner: inner.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return self._call(lambda inner: inner.max_offset(queue))

    def search_offset(
        self, queue: MessageQueue, timestamp_ms: int, *, boundary: Boundary = Boundary.LOWER
    ) -> int:
        """Return the offset of the message stored around ``timestamp_ms``."""
        return self._call(lambda inner: inner.search_offset(queue, timestamp_ms, boundary=boundary))

    def fetch_offset(self, queue: MessageQueue) -> int | None:
        """Return where the group stands; None if it has never committed an offset here."""
        return self._call(lambda inner: inner.fetch_offset(queue))

    def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Store ``offset`` as the next one that the group wants."""
        self._call(lambda inner: inner.commit_offset(queue, offset))


class TransactionProducer(BlockingClient[async_transaction.TransactionProducer]):
    """Sends in transactions; see :class:`rocketpost.client.TransactionProducer`. Thread-safe.

    The local transaction runs in the calling thread, the checker in a thread of its own.
    """

    def __init__(
        self,
        group: str,
        *,
        checker: Callable[[ReceivedMessage], async_transaction.Outcome],
        topics: Sequence[str] = (),
        name_servers: str | None = None,
        config: ProducerConfig | None = None,
    ) -> None:
        check_group(group)
        super().__init__(
            lambda: async_transaction.TransactionProducer(
                group,
                checker=checker,
                topics=topics,
                name_servers=name_servers,
                config=self._named(config),
            )
        )

    def send_in_transaction(
        self,
        message: Message,
        execute: Callable[[Message, str], async_transaction.Outcome],
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
        immunity_seconds: int | None = None,
    ) -> async_transaction.TransactionResult:
        """Store a message as a half, run the local transaction, and end both alike."""
        transaction = self._call(
            lambda inner: inner.begin(
                message,
                queue=queue,
                selector=selector,
                timeout=timeout,
                immunity_seconds=immunity_seconds,
            )
        )
        state, error = async_transaction.TransactionState.ROLLBACK, None
        if transaction.sent.status is SendStatus.SEND_OK:
            try:
                state = async_transaction.checked_state(execute(message, transaction.id))
            except Exception as raised:
                state, error = async_transaction.TransactionState.UNKNOWN, raised
        return self._call(lambda inner: inner.end_quietly(transaction, state, error))


class LitePullConsumer(BlockingClient[async_lite.LitePullConsumer]):
    """Polls; see :class:`rocketpost.client.LitePullConsumer`. Thread-safe.

    A forked child subscribes anew as a member of its own; what was assigned has to be again.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: LitePullConsumerConfig | None = None,
        strategy: AllocationStrategy | None = None,
    ) -> None:
        check_group(group)
        self._topics: dict[str, tuple[str, str | None]] = {}

        def make() -> async_lite.LitePullConsumer:
            inner = async_lite.LitePullConsumer(
                group, name_servers=name_servers, config=self._named(config), strategy=strategy
            )
            for topic, (tags, sql) in self._topics.items():
                inner.subscribe(topic, tags=tags, sql=sql)
            return inner

        super().__init__(make)

    def subscribe(self, topic: str, *, tags: str = SUBSCRIBE_ALL, sql: str | None = None) -> None:
        """Take part in the sharing of the queues of ``topic``."""
        if self._inner is not None:
            self._now(lambda inner: inner.subscribe(topic, tags=tags, sql=sql))
        self._topics[topic] = tags, sql

    def unsubscribe(self, topic: str) -> None:
        """Read no more of ``topic``."""
        if self._inner is not None:
            self._now(lambda inner: inner.unsubscribe(topic))
        self._topics.pop(topic, None)

    def assign(
        self,
        queues: Collection[MessageQueue],
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
    ) -> None:
        """Read these queues, in place of those that were assigned before."""
        self._call(lambda inner: inner.assign(queues, tags=tags, sql=sql))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now, sorted."""
        return self._now(lambda inner: inner.assignment)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of ``topic`` that can be read, sorted."""
        return self._call(lambda inner: inner.queues(topic))

    def poll(self, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Return some messages of one queue; none if none come within ``timeout`` seconds."""
        return self._call(lambda inner: inner.poll(timeout))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store what was polled as consumed, or ``offsets`` as the next ones."""
        self._call(lambda inner: inner.commit(offsets))

    def commit_soon(self) -> None:
        """Store what has been polled until now as consumed, without waiting for that."""
        self._now(lambda inner: inner.commit_soon())

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's stored offset; None if there is none."""
        return self._call(lambda inner: inner.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from ``offset``; what was fetched and not polled is forgotten."""
        self._call(lambda inner: inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on from the oldest message."""
        self._call(lambda inner: inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on behind the newest message."""
        self._call(lambda inner: inner.seek_to_end(queue))

    def seek_to_time(self, queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on from the first message stored at that time or later."""
        self._call(lambda inner: inner.seek_to_time(queue, timestamp_ms))

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch nothing more, or nothing more of ``queues``."""
        self._now(lambda inner: inner.pause(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch again, of ``queues`` or else of everything that was paused."""
        self._now(lambda inner: inner.resume(queues))


class PushConsumer(BlockingClient[async_push.PushConsumer]):
    """Has handlers called; see :class:`rocketpost.client.PushConsumer`. Thread-safe.

    Plain handlers run in threads of their own, never in the caller's.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | None = None,
        config: PushConsumerConfig | None = None,
        strategy: AllocationStrategy | None = None,
    ) -> None:
        check_group(group)
        self._wishes: list[Callable[[async_push.PushConsumer], Announcement]] = []
        self._stopped = threading.Event()

        def make() -> async_push.PushConsumer:
            inner = async_push.PushConsumer(
                group, name_servers=name_servers, config=self._named(config), strategy=strategy
            )
            for wish in self._wishes:
                wish(inner)
            return inner

        super().__init__(make, survives_fork=False)

    def subscribe(
        self,
        topic: str,
        handler: Handler,
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
        orderly: bool = False,
        auto_commit: bool = True,
    ) -> None:
        """Have ``handler`` called with each message of ``topic``."""
        self._wish(
            lambda inner: inner.subscribe(
                topic, handler, tags=tags, sql=sql, orderly=orderly, auto_commit=auto_commit
            )
        )

    def subscribe_batches(
        self,
        topic: str,
        handler: BatchHandler,
        *,
        tags: str = SUBSCRIBE_ALL,
        sql: str | None = None,
        orderly: bool = False,
        auto_commit: bool = True,
    ) -> None:
        """Have ``handler`` called with up to ``batch_max`` messages of ``topic`` at a time."""
        self._wish(
            lambda inner: inner.subscribe_batches(
                topic, handler, tags=tags, sql=sql, orderly=orderly, auto_commit=auto_commit
            )
        )

    def unsubscribe(self, topic: str) -> None:
        """Have no more messages of ``topic``."""
        self._wish(lambda inner: inner.unsubscribe(topic))

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client; it has one once started."""
        return self._now(lambda inner: inner.client_id)

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that are ours now."""
        return self._now(lambda inner: inner.queues)

    def pause(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch nothing more, or nothing more of ``queues``."""
        self._now(lambda inner: inner.pause(queues))

    def resume(self, queues: Collection[MessageQueue] | None = None) -> None:
        """Fetch again, of ``queues`` or else of everything that was paused."""
        self._now(lambda inner: inner.resume(queues))

    def start(self) -> None:
        """Connect, tell the brokers, and begin to consume."""
        self._stopped.clear()
        super().start()

    def stop(self) -> None:
        """Stop fetching, let handlers at work finish, store the offsets, take leave."""
        super().stop()
        self._stopped.set()

    def run_forever(self) -> None:
        """Return when another thread stops the consumer, or an interrupt comes."""
        self._running()
        self._stopped.wait()

    def after_fork(self) -> None:
        """Forget what is the parent's."""
        super().after_fork()
        self._stopped = threading.Event()

    def _wish(self, wish: Callable[[async_push.PushConsumer], Announcement]) -> None:
        if self._inner is not None:

            async def now(inner: async_push.PushConsumer) -> None:
                await wish(inner)

            self._call(now)
        self._wishes.append(wish)


class AdminClient(BlockingClient[async_admin.AdminClient]):
    """Administration; see :mod:`rocketpost.client.admin`. Thread-safe."""

    def __init__(
        self, *, name_servers: str | None = None, config: ClientConfig | None = None
    ) -> None:
        super().__init__(
            lambda: async_admin.AdminClient(name_servers=name_servers, config=self._named(config))
        )

    def call(self, work: Callable[[async_admin.AdminClient], Coroutine[Any, Any, T]]) -> T:
        """Return what a call of the async client returns.

        ::

            info = admin.call(lambda a: a.cluster.info())
        """
        return self._call(work)


def _copy(done: asyncio.Future[SendResult], outer: concurrent.futures.Future[SendResult]) -> None:
    if done.cancelled():
        outer.cancel()
        return
    error = done.exception()
    if not outer.set_running_or_notify_cancel():
        return
    if error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(done.result())
