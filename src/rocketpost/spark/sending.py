"""Sends the rows of one task: in order, many at a time, every one acknowledged or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rocketpost.client import Message, MessageQueue, Producer, ProducerConfig
from rocketpost.errors import ClientError, ConfigError, MessageRefused
from rocketpost.spark.sink_options import COLUMNS, SinkOptions

PRODUCERS_MAX: Final = 1024
_TOGETHER_MAX: Final = 1000
_ORDERED_MIN: Final = 16
"""Fewer rows for one queue go one by one, many under way; so many are waited for together."""
_BURST_SECONDS: Final = 0.1
_NAMES: Final = {name.lower(): name for name in COLUMNS}


class Outgoing(NamedTuple):
    """A message, and where and as what it goes."""

    message: Message
    queue: MessageQueue | None
    producer_id: str | None
    sequence: int | None

    @property
    def may_share(self) -> bool:
        """Whether it may go together with its neighbours."""
        return self.message.sharding_key is None and not self.message.is_delayed

    def follows(self, other: Outgoing) -> bool:
        """Whether it may be in one request with ``other``, right behind it."""
        return (
            self.may_share
            and other.may_share
            and self.queue == other.queue
            and self.message.topic == other.message.topic
            and self.producer_id == other.producer_id
            and (self.sequence is None) == (other.sequence is None)
            and (self.sequence is None or self.sequence == (other.sequence or 0) + 1)
        )


class Sending:
    """Sends for one task. Belongs to the event loop.

    Args:
        options: The sink's.
        partition: The number of the task.
        batch_id: The number of the batch; 0 if there is only one.
    """

    def __init__(self, options: SinkOptions, *, partition: int, batch_id: int) -> None:
        self._options = options
        self._partition = partition
        self._batch_id = batch_id
        self._producers: dict[str | None, Producer] = {}
        self._under_way: set[asyncio.Future[Any]] = set()
        self._places = asyncio.Semaphore(options.in_flight)
        self._due = 0.0
        """When the next row may be sent, if there is a rate."""
        self._failure: BaseException | None = None
        self._row = 0
        self._own_id = ""
        """The producer of rows that bring no numbers along."""
        if options.is_exactly_once and options.is_named:
            self._own_id = f"{options.sink}/{partition}"
        self.sent = 0
        self.skipped = 0
        self.stored_before = 0

    async def send(self, rows: pa.RecordBatch) -> None:
        """Start to send rows; waits while too many are under way.

        Raises:
            RocketpostError: One was refused or could not be sent, of these or of earlier ones.
        """
        options = self._options
        count_max = _TOGETHER_MAX
        if options.rate is not None:
            count_max = min(count_max, max(1, int(options.rate * _BURST_SECONDS)))
        new = [each for each in self._outgoing(rows) if await self._is_new(each)]
        for some in together(iter(new), bytes_max=options.batch_bytes, count_max=count_max):
            await self._pace(len(some))
            self._check()
            await self._start(some)
            self.sent += len(some)

    async def finish(self) -> None:
        """Return when everything is acknowledged.

        Raises:
            RocketpostError: Something was refused or could not be sent.
        """
        if self._under_way:
            await asyncio.wait(self._under_way)
        self._check()

    async def close(self) -> None:
        """Wait for what is under way and close the connections."""
        for producer in self._producers.values():
            await producer.stop()
        self._producers.clear()

    async def _start(self, some: list[Outgoing]) -> None:
        """Start to send rows that share a request; those of one queue are in order."""
        producer = await self._producer(some[0].producer_id)
        queue = some[0].queue
        if len(some) > 1 and queue is None:
            await self._places.acquire()
            self._watch(asyncio.create_task(self._send_together(producer, some)))
        elif len(some) >= _ORDERED_MIN:
            # Nothing may overtake it. What was started before leaves before.
            messages = [each.message for each in some]
            await producer.send_batch(messages, queue=queue, first_sequence=some[0].sequence)
        else:
            for one in some:
                self._watch(
                    await producer.send_soon(one.message, queue=queue, sequence=one.sequence)
                )

    async def _is_new(self, row: Outgoing) -> bool:
        """Whether no earlier run has stored a row.

        One of which nobody knows any more counts as new: brokers refuse it, which is an error,
        unless the options say that such rows were stored.
        """
        if row.sequence is None:
            return True
        producer = await self._producer(row.producer_id)
        was_stored = await producer.was_stored(row.message.topic, row.sequence)
        if was_stored is False or (was_stored is None and self._options.on_forgotten == "error"):
            return True
        self.stored_before += 1
        return False

    async def _send_together(self, producer: Producer, some: list[Outgoing]) -> None:
        try:
            messages = [each.message for each in some]
            await producer.send_batch(messages, first_sequence=some[0].sequence)
        finally:
            self._places.release()

    def _watch(self, future: asyncio.Future[Any]) -> None:
        self._under_way.add(future)
        future.add_done_callback(self._done)

    def _done(self, future: asyncio.Future[Any]) -> None:
        self._under_way.discard(future)
        if future.cancelled():
            self._failure = self._failure or ClientError("a send was cancelled")
        elif (error := future.exception()) is not None:
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

    def _outgoing(self, rows: pa.RecordBatch) -> Iterator[Outgoing]:
        options = self._options
        names = [_NAMES[name.lower()] for name in rows.schema.names]
        columns = [column.to_pylist() for column in rows.columns]
        for values in zip(*columns, strict=True):
            row = dict(zip(names, values, strict=True))
            number, self._row = self._row, self._row + 1
            try:
                made = _made(row, options)
            except MessageRefused as error:
                if options.on_too_large == "skip" and _is_too_large(row, options):
                    self.skipped += 1
                    continue
                raise MessageRefused(f"row {number} of the task: {error}") from None
            if not options.is_exactly_once or made.producer_id is not None:
                yield made
            else:
                yield made._replace(producer_id=self._own_id, sequence=number)


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


def _made(row: dict[str, Any], options: SinkOptions) -> Outgoing:
    """Return the message that a row means.

    Raises:
        MessageRefused: It means none.
    """
    body = row["body"]
    topic = options.topic or row.get("topic")
    if not topic or body is None:
        raise MessageRefused("it has no topic" if body is not None else "its body is null")
    if isinstance(body, str):
        body = body.encode()
    if len(body) > options.message_bytes_max:
        raise MessageRefused(
            f"its body has {len(body)} bytes; at most {options.message_bytes_max} (maxMessageBytes)"
        )
    message = Message(
        topic,
        body,
        tags=row.get("tags"),
        keys=row.get("keys") or "",
        properties=dict(row.get("properties") or ()),
        flag=row.get("flag") or 0,
        sharding_key=row.get("shardingKey"),
        delay_level=row.get("delayLevel") or 0,
        deliver_at_ms=row.get("deliverTimeMs"),
    )
    queue = None
    if row.get("queueId") is not None and row.get("brokerName") is not None:
        queue = MessageQueue(row["brokerName"], row["queueId"], topic)
    producer_id, sequence = row.get("producerId"), row.get("sequence")
    if "sequence" in row and (producer_id is None or sequence is None):
        raise MessageRefused("its producerId or sequence is null")
    return Outgoing(message, queue, producer_id, sequence)


def _is_too_large(row: dict[str, Any], options: SinkOptions) -> bool:
    return row["body"] is not None and len(row["body"]) > options.message_bytes_max
