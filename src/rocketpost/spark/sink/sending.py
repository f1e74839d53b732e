"""Sends the rows of one task: in order, many at a time, every one acknowledged or an error.

What fails because a server is away is sent again for ``sendTimeoutMs``. Numbered messages are so by
their producer, which keeps their order. Of others everything from the first that failed on is sent
again, also what came through behind it: the last message of a key must stay the last.
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
from rocketpost.spark.sink.brokers import FILE
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.rows import Outgoing, Rows

T = TypeVar("T")

PRODUCERS_MAX: Final = 1024
_TOGETHER_MAX: Final = 1000
_ORDERED_MIN: Final = 16
"""Fewer rows for one queue go one by one, many under way; so many are waited for together."""
_BURST_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 0.1
_UNKNOWN_MAX: Final = 3
"""How often a topic that nobody knows is asked for again when a sink starts."""


class Sending:
    """Sends for one task. Belongs to the event loop.

    Args:
        options: The sink's.
        partition: The number of the task.
        batch_id: The number of the batch; 0 if there is only one.
        brokers: Those that may hold what an earlier run has sent; they must be there.
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
        self._places = asyncio.Semaphore(options.in_flight)
        self._due = 0.0
        """When the next row may be sent, if there is a rate."""
        self._failure: BaseException | None = None
        self._passing: BaseException | None = None
        """Why something must be sent again."""
        self._met: set[tuple[str, str | None]] = set()
        """Topics and producers of which brokers have told what they hold."""
        self._taken: set[str] = set()
        """Topics that have taken a row of this task."""
        self._tickets = itertools.count()
        self._unsure: dict[int, list[Outgoing]] = {}
        """What is under way without a number and, after a failure, all that came behind it."""
        self._own_id = ""
        """The producer of rows that bring no numbers along."""
        if options.is_exactly_once and options.is_named:
            self._own_id = f"{options.sink}/{partition}"
        self._rows = Rows(options, self._own_id if options.is_exactly_once else None)
        self.sent = 0
        self.stored_before = 0

    @property
    def skipped(self) -> int:
        """How many rows were left out for their size."""
        return self._rows.skipped

    async def send(self, rows: pa.RecordBatch) -> None:
        """Start to send rows; waits while too many are under way.

        Raises:
            RocketpostError: One was refused or could not be sent, of these or of earlier ones.
        """
        options = self._options
        count_max = _TOGETHER_MAX
        if options.rate is not None:
            count_max = min(count_max, max(1, int(options.rate * _BURST_SECONDS)))
        new = await self._new(list(self._rows.messages(rows)))
        for some in together(iter(new), bytes_max=options.batch_bytes, count_max=count_max):
            await self._pace(len(some))
            self._check()
            await self._mend()
            await self._start(some)
            self.sent += len(some)

    async def finish(self) -> None:
        """Return when everything is acknowledged.

        Raises:
            RocketpostError: Something was refused or could not be sent.
        """
        await self._idle()
        await self._mend()

    async def close(self) -> None:
        """Wait for what is under way and close the connections."""
        for producer in self._producers.values():
            await producer.stop()
        self._producers.clear()

    async def _start(self, some: list[Outgoing]) -> None:
        """Start to send rows that share a request; those of one queue are in order."""
        producer = await self._producer(some[0].producer_id)
        is_anywhere = some[0].queue is None
        if len(some) > 1 and is_anywhere:
            await self._places.acquire()
            self._watch(asyncio.create_task(self._send_together(producer, some)), some)
        elif len(some) >= _ORDERED_MIN:
            # Nothing may overtake it. What was started before leaves before.
            batch = asyncio.create_task(self._send_batch(producer, some))
            self._watch(batch, some)
            await asyncio.wait([batch])
        else:
            for one in some:
                self._watch(await self._send_soon(producer, one), [one])

    async def _send_soon(self, producer: Producer, one: Outgoing) -> asyncio.Future[Any]:
        async def start() -> asyncio.Future[Any]:
            return await producer.send_soon(one.message, queue=one.queue, sequence=one.sequence)

        return await self._patiently(start, one.message.topic)

    async def _send_batch(self, producer: Producer, some: list[Outgoing]) -> None:
        messages, first = [each.message for each in some], some[0]

        async def send() -> object:
            return await producer.send_batch(
                messages, queue=first.queue, first_sequence=first.sequence
            )

        await self._patiently(send, first.message.topic)

    async def _new(self, rows: list[Outgoing]) -> list[Outgoing]:
        """Return the rows that no earlier run has stored.

        One of which nobody knows any more counts as new: brokers refuse it, which is an error,
        unless the options say that such rows were stored.
        """
        if not rows or rows[0].sequence is None:
            return rows
        is_forgotten_new = self._options.on_forgotten == "error"
        new: list[Outgoing] = []
        for (topic, producer_id), each in itertools.groupby(rows, _numbered_by):
            some = list(each)
            producer = await self._producer(producer_id)
            if (topic, producer_id) not in self._met:
                await self._patiently(partial(self._meet, producer, topic), topic)
                self._met.add((topic, producer_id))
            sequences = [row.sequence for row in some if row.sequence is not None]
            known = await producer.were_stored(topic, sequences)
            new += [
                row
                for row, was_stored in zip(some, known, strict=True)
                if was_stored is False or (was_stored is None and is_forgotten_new)
            ]
        self.stored_before += len(rows) - len(new)
        return new

    async def _meet(self, producer: Producer, topic: str) -> None:
        """Have every broker tell what it holds of a producer.

        Raises:
            TemporarilyMissing: One is away, and may hold something.
        """
        if missing := self._brokers - await producer.asked_brokers(topic):
            hint = f"remove it from {self._options.checkpoint}/{FILE}"
            raise TemporarilyMissing(
                f"the broker {min(missing)} is away, and may hold what this sink has sent; "
                f"if it is gone for good, {hint if self._options.checkpoint else 'start again'}"
            )

    async def _send_together(self, producer: Producer, some: list[Outgoing]) -> None:
        try:
            await self._send_batch(producer, some)
        finally:
            self._places.release()

    async def _patiently(self, start: Callable[[], Awaitable[T]], topic: str) -> T:
        """Start a send, and wait for the topic if it is not there."""

        async def ask() -> T:
            try:
                return await start()
            except RouteNotFound as error:
                if self._batch_id or await self._has_brokers():
                    raise
                raise TemporarilyMissing(f"{error}; no broker is there at all") from error

        return await retry_during_outage(
            ask,
            seconds=self._options.send_timeout_ms / 1000,
            pause=_PAUSE_SECONDS,
            unknown_max=None if self._was_there(topic) else _UNKNOWN_MAX,
        )

    def _was_there(self, topic: str) -> bool:
        """Tell whether a topic that nobody knows is away, and not a mistake."""
        return self._batch_id > 0 or topic in self._taken

    async def _has_brokers(self) -> bool:
        options = self._options
        config = ClientConfig(
            name_servers=options.name_servers, credentials=find_credentials(options)
        )
        async with AdminClient(config=config) as admin:
            return bool((await admin.cluster.info()).broker_addr_table)

    async def _mend(self) -> None:
        """Send again what failed and all behind it, in order, until it is acknowledged."""
        if self._passing is None:
            return
        await self._idle()
        again = list(self._unsure.values())

        async def resend() -> None:
            await self._idle()
            self._unsure, self._passing = {}, None
            for some in again:
                await self._start(some)
            await self._idle()
            if (error := self._passing) is not None:
                raise error

        seconds = self._options.send_timeout_ms / 1000
        await retry_during_outage(resend, seconds=seconds, pause=_PAUSE_SECONDS)

    async def _idle(self) -> None:
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._check()

    def _watch(self, future: asyncio.Future[Any], some: list[Outgoing]) -> None:
        ticket = next(self._tickets)
        if some[0].producer_id is None:
            self._unsure[ticket] = some
        self._under_way.add(future)
        future.add_done_callback(lambda done: self._done(done, ticket, some))

    def _done(self, future: asyncio.Future[Any], ticket: int, some: list[Outgoing]) -> None:
        topic = some[0].message.topic
        self._under_way.discard(future)
        error = ClientError("a send was cancelled") if future.cancelled() else future.exception()
        if error is None:
            self._taken.add(topic)
        if error is None and self._passing is None:
            self._unsure.pop(ticket, None)
        elif isinstance(error, RouteNotFound) and not self._was_there(topic):
            self._failure = self._failure or error
        elif ticket in self._unsure and isinstance(error, TRANSIENT):
            self._passing = self._passing or error
        elif error is not None:
            error.add_note(_told(some))
            self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _pace(self, count: int) -> None:
        """Wait until rows may be sent; what was missed for long is not made up for."""
        rate = self._options.rate
        if rate is not None:
            now = asyncio.get_running_loop().time()
            due = max(self._due, now - _BURST_SECONDS)
            self._due = due + count / rate
            if due > now:
                await asyncio.sleep(due - now)

    async def _producer(self, producer_id: str | None) -> Producer:
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


def _told(some: list[Outgoing]) -> str:
    """Return which rows were refused, as far as one can tell: brokers know no rows."""
    first = some[0]
    where = ""
    if (queue := first.queue) is not None:
        where = f" to queue {queue.queue_id} of {queue.broker_name}"
    which = "of the row" if len(some) == 1 else f"of {len(some)} rows, the first of which is"
    return f"{which} {first.message!r}{where}"


def _numbered_by(row: Outgoing) -> tuple[str, str | None]:
    return row.message.topic, row.producer_id


def together(
    messages: Iterator[Outgoing], *, bytes_max: int, count_max: int = _TOGETHER_MAX
) -> Iterator[list[Outgoing]]:
    """Put neighbours together that may share a request."""
    some: list[Outgoing] = []
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
