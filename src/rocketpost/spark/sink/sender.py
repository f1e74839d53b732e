"""Sender of the rows of one task: in order, many at a time, each acknowledged or an error.

Rows that fail because a server is down are sent again for ``sendTimeoutMs``. Numbered messages are
repeated by their producer, which keeps their order. Without numbers, all messages from the first
failed one on are sent again, even those that were stored, because the last message of a key must
stay the last.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from rocketpost.client import ClientConfig, Producer, ProducerConfig
from rocketpost.client.admin import AdminClient
from rocketpost.errors import ClientError, ConfigError, RouteNotFound
from rocketpost.spark.options import find_credentials
from rocketpost.spark.outage import TRANSIENT, TemporarilyMissing, retry_during_outage
from rocketpost.spark.sink.known_brokers import FILE
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.rows import OutgoingMessage, Rows
from rocketpost.spark.tls_options import find_tls

T = TypeVar("T")

PRODUCERS_MAX: Final = 1024
_REQUEST_ROWS_MAX: Final = 1000
_ORDERED_MIN: Final = 16
"""Fewer rows for one queue are sent one by one; this many share a request that is awaited."""
_BURST_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 0.1
_UNKNOWN_MAX: Final = 3
"""Number of retries for an unknown topic when a sink starts."""


class Sender:
    """Sends the rows of one task. Belongs to the event loop.

    Args:
        options: The options of the sink.
        partition: The number of the task.
        batch_id: The number of the batch; 0 if there is only one.
        brokers: Brokers that may have rows of an earlier run; they must be up.
    """

    def __init__(
        self,
        options: SinkOptions,
        *,
        partition: int,
        batch_id: int,
        brokers: frozenset[str] = frozenset(),
    ) -> None:
        self._options = options
        self._brokers = brokers
        self._partition = partition
        self._batch_id = batch_id
        self._producers: dict[str | None, Producer] = {}
        self._under_way: set[asyncio.Future[Any]] = set()
        self._slots = asyncio.Semaphore(options.in_flight)
        self._due = 0.0
        """The time at which the next row may be sent, if there is a rate."""
        self._failure: BaseException | None = None
        self._transient_error: BaseException | None = None
        """The error because of which rows must be sent again."""
        self._asked: set[tuple[str, str | None]] = set()
        """Topics and producers for which all brokers were asked."""
        self._accepting_topics: set[str] = set()
        """Topics that have stored a row of this task."""
        self._tickets = itertools.count()
        self._unconfirmed: dict[int, list[OutgoingMessage]] = {}
        """Requests without numbers that are under way, and after a failure all later ones."""
        self._own_id = ""
        """The producer id for rows without their own numbers."""
        if options.is_exactly_once and options.is_named:
            self._own_id = f"{options.sink}/{partition}"
        self._rows = Rows(options, self._own_id if options.is_exactly_once else None)
        self.sent = 0
        self.stored_before = 0

    @property
    def skipped(self) -> int:
        """The number of rows skipped because of their size."""
        return self._rows.skipped

    async def send(self, rows: pa.RecordBatch) -> None:
        """Start to send rows; wait while too many are under way.

        Raises:
            RocketpostError: One of these or of earlier rows was refused or could not be sent.
        """
        options = self._options
        count_max = _REQUEST_ROWS_MAX
        if options.rate is not None:
            count_max = min(count_max, max(1, int(options.rate * _BURST_SECONDS)))
        new = await self._select_new(list(self._rows.messages(rows)))
        for some in group_requests(iter(new), bytes_max=options.batch_bytes, count_max=count_max):
            await self._pace(len(some))
            self._raise_failure()
            await self._resend_failed()
            await self._start(some)
            self.sent += len(some)

    async def finish(self) -> None:
        """Wait until all rows are acknowledged.

        Raises:
            RocketpostError: A row was refused or could not be sent.
        """
        await self._wait_idle()
        await self._resend_failed()

    async def close(self) -> None:
        """Wait for requests under way and close the connections."""
        for producer in self._producers.values():
            await producer.stop()
        self._producers.clear()

    async def _start(self, some: list[OutgoingMessage]) -> None:
        """Start to send rows that share a request; those of one queue are in order."""
        producer = await self._open_producer(some[0].producer_id)
        is_anywhere = some[0].queue is None
        if len(some) > 1 and is_anywhere:
            await self._slots.acquire()
            self._watch(asyncio.create_task(self._send_together(producer, some)), some)
        elif len(some) >= _ORDERED_MIN:
            # No later request may overtake this one. Earlier ones were sent before.
            batch = asyncio.create_task(self._send_batch(producer, some))
            self._watch(batch, some)
            await asyncio.wait([batch])
        else:
            for one in some:
                self._watch(await self._send_soon(producer, one), [one])

    async def _send_soon(self, producer: Producer, one: OutgoingMessage) -> asyncio.Future[Any]:
        async def start() -> asyncio.Future[Any]:
            return await producer.send_soon(one.message, queue=one.queue, sequence=one.sequence)

        return await self._retry_unknown_topic(start, one.message.topic)

    async def _send_batch(self, producer: Producer, some: list[OutgoingMessage]) -> None:
        messages, first = [each.message for each in some], some[0]

        async def send() -> object:
            return await producer.send_batch(
                messages, queue=first.queue, first_sequence=first.sequence
            )

        await self._retry_unknown_topic(send, first.message.topic)

    async def _select_new(self, rows: list[OutgoingMessage]) -> list[OutgoingMessage]:
        """Return the rows that no earlier run has stored.

        A row that brokers no longer remember counts as new. Brokers refuse it, which is an error,
        unless the options say that such rows were stored.
        """
        if not rows or rows[0].sequence is None:
            return rows
        is_forgotten_new = self._options.on_forgotten == "error"
        new: list[OutgoingMessage] = []
        for (topic, producer_id), each in itertools.groupby(rows, _topic_and_producer):
            some = list(each)
            producer = await self._open_producer(producer_id)
            if (topic, producer_id) not in self._asked:
                await self._retry_unknown_topic(
                    partial(self._require_brokers, producer, topic), topic
                )
                self._asked.add((topic, producer_id))
            sequences = [row.sequence for row in some if row.sequence is not None]
            known = await producer.were_stored(topic, sequences)
            new += [
                row
                for row, was_stored in zip(some, known, strict=True)
                if was_stored is False or (was_stored is None and is_forgotten_new)
            ]
        self.stored_before += len(rows) - len(new)
        return new

    async def _require_brokers(self, producer: Producer, topic: str) -> None:
        """Check that every known broker has reported the stored rows of a producer.

        Raises:
            TemporarilyMissing: A broker is down, and may have stored rows.
        """
        if missing := self._brokers - await producer.asked_brokers(topic):
            hint = f"remove it from {self._options.checkpoint}/{FILE}"
            raise TemporarilyMissing(
                f"the broker {min(missing)} is unavailable, and may hold rows that this "
                "sink has sent; if it will not return, "
                f"{hint if self._options.checkpoint else 'start again'}"
            )

    async def _send_together(self, producer: Producer, some: list[OutgoingMessage]) -> None:
        try:
            await self._send_batch(producer, some)
        finally:
            self._slots.release()

    async def _retry_unknown_topic(self, start: Callable[[], Awaitable[T]], topic: str) -> T:
        """Start a send, and retry while the topic is missing."""

        async def ask() -> T:
            try:
                return await start()
            except RouteNotFound as error:
                if self._batch_id or await self._has_brokers():
                    raise
                raise TemporarilyMissing(f"{error}; no broker is available") from error

        return await retry_during_outage(
            ask,
            seconds=self._options.send_timeout_ms / 1000,
            pause=_PAUSE_SECONDS,
            unknown_max=None if self._existed(topic) else _UNKNOWN_MAX,
        )

    def _existed(self, topic: str) -> bool:
        """Return whether a topic existed before, so that its absence is temporary."""
        return self._batch_id > 0 or topic in self._accepting_topics

    async def _has_brokers(self) -> bool:
        options = self._options
        config = ClientConfig(
            name_servers=options.name_servers,
            credentials=find_credentials(options),
            tls=find_tls(options),
        )
        async with AdminClient(config=config) as admin:
            return bool((await admin.cluster.info()).broker_addr_table)

    async def _resend_failed(self) -> None:
        """Send failed rows and all later ones again, in order, until they are acknowledged."""
        if self._transient_error is None:
            return
        await self._wait_idle()
        again = list(self._unconfirmed.values())

        async def resend() -> None:
            await self._wait_idle()
            self._unconfirmed, self._transient_error = {}, None
            for some in again:
                await self._start(some)
            await self._wait_idle()
            if (error := self._transient_error) is not None:
                raise error

        seconds = self._options.send_timeout_ms / 1000
        await retry_during_outage(resend, seconds=seconds, pause=_PAUSE_SECONDS)

    async def _wait_idle(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._raise_failure()

    def _watch(self, future: asyncio.Future[Any], some: list[OutgoingMessage]) -> None:
        ticket = next(self._tickets)
        if some[0].producer_id is None:
            self._unconfirmed[ticket] = some
        self._under_way.add(future)
        future.add_done_callback(lambda done: self._finish(done, ticket, some))

    def _finish(
        self, future: asyncio.Future[Any], ticket: int, some: list[OutgoingMessage]
    ) -> None:
        topic = some[0].message.topic
        self._under_way.discard(future)
        error = ClientError("a send was cancelled") if future.cancelled() else future.exception()
        if error is None:
            self._accepting_topics.add(topic)
        if error is None and self._transient_error is None:
            self._unconfirmed.pop(ticket, None)
        elif isinstance(error, RouteNotFound) and not self._existed(topic):
            self._failure = self._failure or error
        elif ticket in self._unconfirmed and isinstance(error, TRANSIENT):
            self._transient_error = self._transient_error or error
        elif error is not None:
            error.add_note(_describe_rows(some))
            self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _pace(self, count: int) -> None:
        """Wait until rows may be sent. Time lost in long pauses is not made up."""
        rate = self._options.rate
        if rate is not None:
            now = asyncio.get_running_loop().time()
            due = max(self._due, now - _BURST_SECONDS)
            self._due = due + count / rate
            if due > now:
                await asyncio.sleep(due - now)

    async def _open_producer(self, producer_id: str | None) -> Producer:
        producer = self._producers.get(producer_id)
        if producer is None:
            if len(self._producers) >= PRODUCERS_MAX:
                raise ConfigError(f"a task has rows of more than {PRODUCERS_MAX} producerIds")
            options = self._options
            config = ProducerConfig(
                name_servers=options.name_servers,
                send_timeout=options.send_timeout_ms / 1000,
                message_bytes_max=max(options.message_bytes_max, options.batch_bytes),
                credentials=find_credentials(options),
                tls=find_tls(options),
            )
            is_named = producer_id is not None
            producer = Producer(
                options.producer_group,
                config=config,
                idempotent=is_named,
                producer_id=producer_id,
                epoch=self._batch_id if is_named and producer_id == self._own_id else 0,
            )
            await producer.start()
            self._producers[producer_id] = producer
        return producer


def _describe_rows(some: list[OutgoingMessage]) -> str:
    """Return a description of the rows of a refused request."""
    first = some[0]
    where = ""
    if (queue := first.queue) is not None:
        where = f" to queue {queue.queue_id} of {queue.broker_name}"
    which = "of the row" if len(some) == 1 else f"of {len(some)} rows, the first of which is"
    return f"{which} {first.message!r}{where}"


def _topic_and_producer(row: OutgoingMessage) -> tuple[str, str | None]:
    return row.message.topic, row.producer_id


def group_requests(
    messages: Iterator[OutgoingMessage], *, bytes_max: int, count_max: int = _REQUEST_ROWS_MAX
) -> Iterator[list[OutgoingMessage]]:
    """Yield groups of adjacent messages that may share a request."""
    some: list[OutgoingMessage] = []
    size = 0
    for message in messages:
        length = len(message.message.body)
        fits = some and message.follows(some[-1]) and len(some) < count_max
        if some and not (fits and size + length <= bytes_max):
            yield some
            some, size = [], 0
        some.append(message)
        size += length
    if some:
        yield some
