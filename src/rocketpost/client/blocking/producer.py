"""The blocking producers; see ``rocketpost.client.blocking``."""

from __future__ import annotations

import concurrent.futures
import contextvars
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from rocketpost.client.blocking.base import BlockingClient
from rocketpost.client.blocking.loop_thread import CALLED_ON_LOOP, LoopThread
from rocketpost.client.checks import check_function
from rocketpost.client.config import ProducerConfig
from rocketpost.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rocketpost.client.producer import producer as async_producer
from rocketpost.client.producer import transaction as async_transaction
from rocketpost.client.producer.handover import Handover, Start
from rocketpost.client.producer.queue_choice import QueueSelector
from rocketpost.model.route import MessageQueue

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
                config=self._rename(config),
                idempotent=idempotent,
                producer_id=producer_id,
                epoch=epoch,
            )

        self._handovers: dict[async_producer.Producer, Handover] = {}
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
        """Send a message and return its place.

        Threads that send at the same time share the requests to the loop and the writes.
        """
        inner, thread = self._running()
        if thread.is_current:
            raise RuntimeError(CALLED_ON_LOOP)
        start: Start = partial(
            inner.start_send,
            message,
            queue=queue,
            selector=selector,
            timeout=timeout,
            sequence=sequence,
        )
        if inner.config.enable_spans:
            start = _in_context(start)
        return self._handover(inner, thread).send_from_thread(start, _size_of(message))

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
        """Queue a message for sending and return the future of its result.

        Waits only while too many messages are in flight. A message or an argument that breaks a
        rule is refused here; other errors, such as an unknown topic, are in the future.

        Raises:
            MessageRefused: The message breaks a rule; nothing is sent.
            ConfigError: Another argument is invalid.
        """
        inner, thread = self._running()
        if thread.is_current:
            raise RuntimeError(CALLED_ON_LOOP)
        inner.check(message, queue, selector, timeout, sequence, message_id)

        start: Start = partial(
            inner.start_send,
            message,
            queue=queue,
            selector=selector,
            timeout=timeout,
            sequence=sequence,
            message_id=message_id,
        )
        if inner.config.enable_spans:
            start = _in_context(start)
        return self._handover(inner, thread).put_from_thread(start, _size_of(message))

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
        """Send messages of one topic together, in as many requests as needed."""
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
        """Recall a timed message that is not due yet; return its id."""
        return self._call(lambda inner: inner.recall(topic, handle, timeout=timeout))

    def last_sequence(self, topic: str) -> int | None:
        """Return the highest stored sequence of this id and epoch."""
        return self._call(lambda inner: inner.last_sequence(topic))

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout: float | None = None,
    ) -> ReceivedMessage:
        """Send a message, wait for a consumer's reply, and return it."""
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
        """Reply to a message whose sender waits for a reply."""
        return self._call(
            lambda inner: inner.reply_to(
                request, body, tags=tags, properties=properties, timeout=timeout
            )
        )

    def flush(self) -> None:
        """Wait until nothing is in flight."""
        self._call(lambda inner: inner.flush())

    def after_fork(self) -> None:
        """Drop the parent's state."""
        super().after_fork()
        self._handovers = {}

    def _handover(self, inner: async_producer.Producer, thread: LoopThread) -> Handover:
        found = self._handovers.get(inner)
        if found is None:
            config = inner.config
            made = Handover(
                thread.loop, count_max=config.in_flight_max, bytes_max=config.in_flight_bytes_max
            )
            found = self._handovers.setdefault(inner, made)  # another thread may have been faster
        return found

    def _call(self, work: Callable[[async_producer.Producer], Coroutine[Any, Any, T]]) -> T:
        inner, _ = self._running()
        handover = self._handovers.get(inner)
        if handover is None or handover.is_idle:
            return super()._call(work)

        async def in_turn(inner: async_producer.Producer) -> T:
            await handover.wait_drained()  # earlier sends go first
            return await work(inner)

        return super()._call(in_turn)

    async def _finish(self, inner: async_producer.Producer) -> None:
        handover = self._handovers.pop(inner, None)
        if handover is not None:
            await handover.close()
        await inner.stop()

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of ``topic``."""
        return self._call(lambda inner: inner.queues(topic))


def _in_context(start: Start) -> Start:
    """Return the start of a send in the context of this thread, whose span is its parent."""
    return partial(contextvars.copy_context().run, start)


def _size_of(message: object) -> int:
    """Return the size of a body; 0 for what the producer is going to refuse."""
    body = message.body if isinstance(message, Message) else None
    return len(body) if isinstance(body, bytes | bytearray | memoryview) else 0


class TransactionProducer(BlockingClient[async_transaction.TransactionProducer]):
    """Sends in transactions; see :class:`rocketpost.client.TransactionProducer`. Thread-safe.

    The local transaction runs in the calling thread, the checker in its own thread.
    """

    def __init__(
        self,
        group: str,
        *,
        checker: Callable[[ReceivedMessage], async_transaction.Outcome],
        topics: Sequence[str] = (),
        name_servers: str | None = None,
        config: ProducerConfig | None = None,
        check_concurrency: int = 4,
        checks_held_max: int = async_transaction.CHECKS_HELD_MAX,
    ) -> None:
        super().__init__(
            lambda: async_transaction.TransactionProducer(
                group,
                checker=checker,
                topics=topics,
                name_servers=name_servers,
                config=self._rename(config),
                check_concurrency=check_concurrency,
                checks_held_max=checks_held_max,
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
        """Store a half message, run the local transaction, and commit or roll back both."""
        check_function("the local transaction", execute, arguments=2, may_be_async=False)
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
                state = async_transaction.check_state(execute(message, transaction.id))
            except Exception as raised:
                state, error = async_transaction.TransactionState.UNKNOWN, raised
        return self._call(lambda inner: inner.end_quietly(transaction, state, error))
