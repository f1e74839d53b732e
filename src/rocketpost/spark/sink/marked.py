"""Sends the rows of one task so that any broker has each once: what is there already is left out.

A row's message has an id that follows from its number. Before the first row of a topic goes out,
what an earlier attempt may have stored is looked through (``spark.sink.marks``) and left out.
Requests go to one queue each, one at a time, so that a failure leaves a beginning of what was sent
there and order is kept. After a failure the queue is looked at again: what came through is not
repeated.

What other tasks of the batch send meanwhile is looked through only if it must be, or every task
would read what all others write. The driver tells where the queues ended before any task started;
an attempt that Spark counts as the first looks no further, unless the first row of the topic, which
always goes before all others, is found in the index: Spark counts anew when it runs a stage again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa

from rocketpost.client import Message, MessageQueue, Producer, ProducerConfig
from rocketpost.client.blocking.loop_thread import LoopThread
from rocketpost.client.producer.numbering import stamp_id
from rocketpost.client.producer.queue_choice import select_by_hash
from rocketpost.codec.batch import ENTRY_BYTES_MIN
from rocketpost.errors import ConfigError, RocketpostError
from rocketpost.model.stamp import Stamp
from rocketpost.spark.options import find_credentials
from rocketpost.spark.outage import TRANSIENT, retry_during_outage
from rocketpost.spark.sink.marks import Marks, Stands, unsure
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.rows import Rows
from rocketpost.spark.source.plan import Offsets, QueueKey, Range

_TOGETHER_MAX: Final = 1000
_ATTEMPTS: Final = 3
"""So many attempts fit into ``sendTimeoutMs``."""
_BURST_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 0.1
_UNKNOWN_MAX: Final = 3
SETTLE_SECONDS: Final = 1.0
"""What a dead attempt has sent is stored by then: brokers drop requests that wait 200 ms."""


class Row(NamedTuple):
    """A message, its id and its queue."""

    message_id: str
    message: Message
    queue: MessageQueue
    size: int

    @property
    def key(self) -> QueueKey:
        """The queue, as offsets have it."""
        return QueueKey(self.queue.topic, self.queue.broker_name, self.queue.queue_id)


class MarkedSending:
    """Sends for one task. Blocking; belongs to the thread of the task.

    Args:
        thread: The loop of the process.
        options: The sink's.
        partition: The number of the task.
        batch_id: The number of the batch; 0 if there is only one.
        plan: What the driver knew of topics before any task of this run was started.
        is_again: Whether an earlier attempt of this run may have sent something.
        marks: Where to look for what is stored.
        producer: Sends, each request once; one is started if None.
        settle_seconds: After so long what a dead attempt has sent is stored or lost.
    """

    def __init__(
        self,
        thread: LoopThread,
        options: SinkOptions,
        *,
        partition: int,
        batch_id: int,
        plan: Mapping[str, Stands],
        is_again: bool,
        marks: Marks | None = None,
        producer: Producer | None = None,
        settle_seconds: float = SETTLE_SECONDS,
    ) -> None:
        self._thread = thread
        self._options = options
        self._batch_id = batch_id
        self._own_id = f"{options.sink}/{partition}"
        self._rows = Rows(options, self._own_id)
        self._marks = marks or Marks(options)
        self._settle_seconds = settle_seconds
        self._plan = plan
        self._is_again = is_again
        self._is_settled = False
        self._opened: set[str] = set()
        """Topics whose first row of this task is stored."""
        self._turn = partition
        self._due = 0.0
        self._producer = producer
        self._queues: dict[str, list[MessageQueue]] = {}
        self._ends: Offsets = {}
        """Up to where each queue was looked through, or is known to be ours."""
        self._found: dict[str, tuple[QueueKey, int]] = {}
        self.firsts: Offsets = {}
        """No row of this task lies before these."""
        self.sent = 0
        self.stored_before = 0

    @property
    def skipped(self) -> int:
        """How many rows were left out for their size."""
        return self._rows.skipped

    def send(self, rows: pa.RecordBatch) -> None:
        """Send rows, and return when all are acknowledged.

        Raises:
            RocketpostError: One was refused or could not be sent.
        """
        for some in self._bursts(list(self._new(rows))):
            heads = self._heads(some)
            for row in heads.values():
                self._deliver([row])
            self._deliver([row for row in some if row.message_id not in heads])
            self.sent += len(some)

    def finish(self) -> None:
        """Everything is acknowledged already."""

    def close(self) -> None:
        """Close the connections."""
        if self._producer is not None:
            self._thread.call(self._producer.stop())

    def _new(self, rows: pa.RecordBatch) -> Iterator[Row]:
        """Yield the rows that are not stored yet, each with its queue."""
        turns: dict[str, _Turn] = {}
        for out in self._rows.messages(rows):
            assert out.producer_id is not None
            assert out.sequence is not None
            topic = out.message.topic
            epoch = self._batch_id if out.producer_id == self._own_id else 0
            message_id = stamp_id(Stamp(out.producer_id, epoch, out.sequence))
            if topic not in self._queues:
                self._meet(topic, message_id)
            if self._is_stored(message_id):
                self.stored_before += 1
                continue
            size = ENTRY_BYTES_MIN + len(out.message.body)
            size += len(out.message.property_text(message_id).encode("utf-8", "replace"))
            queue = out.queue
            if queue is None and out.message.sharding_key:
                queue = select_by_hash(self._queues[topic], out.message.sharding_key)
            if queue is None:
                turn = turns.setdefault(topic, _Turn(self._options.batch_bytes))
                self._turn += turn.is_over(size)
                queue = self._queues[topic][self._turn % len(self._queues[topic])]
            yield Row(message_id, out.message, queue, size)
        self._turn += bool(turns)

    def _heads(self, rows: list[Row]) -> dict[str, Row]:
        """Return the rows that are the first of this task for their topic, by id."""
        heads = {}
        for row in rows:
            if row.queue.topic not in self._opened:
                self._opened.add(row.queue.topic)
                heads[row.message_id] = row
        return heads

    # What is there already.

    def _meet(self, topic: str, first_id: str) -> None:
        """Look through what earlier attempts may have sent to a topic."""
        producer = self._started()
        stands = self._plan.get(topic)
        if stands is not None and not self._is_again:
            self._is_again = self._marks.is_indexed(topic, first_id, is_known=bool(stands))
        if self._is_again and not self._is_settled:
            time.sleep(self._settle_seconds)
            self._is_settled = True
        if self._is_again:
            stands = None
        if stands is None:
            stands = self._marks.stands(topic)
        queues = self._thread.call(self._route(producer, topic, is_known=bool(stands)))
        hidden = {_key(queue) for queue in queues} - set(stands)
        if hidden:
            # Also where nobody knew the topic: its broker may be back by now, with our messages.
            stands = self._marks.stands(topic)
            hidden -= set(stands)
            if stands and hidden:
                raise ConfigError(
                    f"{min(hidden)} can be written to but not read, and so nobody can tell what "
                    "an earlier attempt stored there; let the topic have as many read queues as "
                    "write queues"
                )
        is_bounded = self._options.scan_since is not None
        self._found |= self._marks.found(unsure(stands, self._batch_id, is_bounded=is_bounded))
        self._ends |= {queue: stand.bounds.end for queue, stand in stands.items()}
        self._queues[topic] = queues

    async def _route(self, producer: Producer, topic: str, *, is_known: bool) -> list[MessageQueue]:
        """Return the queues of a topic; one that is known is waited for."""
        return await retry_during_outage(
            partial(producer.queues, topic),
            seconds=self._options.send_timeout_ms / 1000,
            pause=_PAUSE_SECONDS,
            unknown_max=None if is_known else _UNKNOWN_MAX,
        )

    def _is_stored(self, message_id: str) -> bool:
        place = self._found.get(message_id)
        if place is None:
            return False
        if not self._is_settled:
            # There was an earlier attempt, and what it sent last may have come in meanwhile.
            self._is_settled = True
            time.sleep(self._settle_seconds)
            self._look_again(list(self._ends))
        self._note(*place)
        return True

    def _look_again(self, queues: list[QueueKey]) -> None:
        by_topic: dict[str, list[QueueKey]] = {}
        for queue in queues:
            by_topic.setdefault(queue.topic, []).append(queue)
        for some in by_topic.values():
            ends = self._marks.ends(some)
            ranges = [Range(queue, self._ends.get(queue, 0), ends[queue]) for queue in some]
            self._found |= self._marks.found(ranges)
            self._ends |= ends

    def _note(self, queue: QueueKey, offset: int) -> None:
        self.firsts[queue] = min(offset, self.firsts.get(queue, offset))

    # Sending.

    def _deliver(self, rows: list[Row]) -> None:
        """Send rows until all are stored."""
        until = time.monotonic() + self._options.send_timeout_ms / 1000
        while rows:
            rows, error = self._thread.call(self._attempt(rows))
            if error is None:
                return
            if not isinstance(error, TRANSIENT) or time.monotonic() > until:
                raise error
            time.sleep(self._settle_seconds)
            self._look_again(sorted({row.key for row in rows}))
            stored = [row for row in rows if row.message_id in self._found]
            for row in stored:
                self._note(*self._found[row.message_id])
            rows = [row for row in rows if row.message_id not in self._found]

    async def _attempt(self, rows: list[Row]) -> tuple[list[Row], RocketpostError | None]:
        """Send rows once; returns those that were not acknowledged, and why."""
        places = asyncio.Semaphore(self._options.in_flight)
        by_queue: dict[MessageQueue, list[Row]] = {}
        for row in rows:
            by_queue.setdefault(row.queue, []).append(row)

        async def one(some: list[Row]) -> tuple[list[Row], RocketpostError | None]:
            async with places:
                return await self._send_in_order(some)

        ended = await asyncio.gather(*map(one, by_queue.values()))
        errors = [error for _, error in ended if error is not None]
        # One that will not pass counts more than one that may.
        errors.sort(key=lambda error: isinstance(error, TRANSIENT))
        return [row for some, _ in ended for row in some], errors[0] if errors else None

    async def _send_in_order(self, rows: list[Row]) -> tuple[list[Row], RocketpostError | None]:
        producer = self._producer
        assert producer is not None
        seconds = self._options.send_timeout_ms / 1000 / _ATTEMPTS
        at = 0
        for some in requests(rows, bytes_max=self._options.batch_bytes):
            first = some[0]
            try:
                if len(some) == 1:
                    future = await producer.send_soon(
                        first.message,
                        queue=first.queue,
                        message_id=first.message_id,
                        timeout=seconds,
                    )
                    result = await future
                else:
                    results = await producer.send_batch(
                        [row.message for row in some],
                        queue=first.queue,
                        message_ids=[row.message_id for row in some],
                        timeout=seconds,
                    )
                    result = results[0]
            except RocketpostError as error:
                return rows[at:], error
            at += len(some)
            self._note(first.key, result.queue_offset)
            self._ends[first.key] = result.queue_offset + len(some)
        return [], None

    def _bursts(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Yield rows, at the wished rate if there is one."""
        rate = self._options.rate
        count = max(1, int(rate * _BURST_SECONDS)) if rate is not None else len(rows)
        for at in range(0, len(rows), max(1, count)):
            some = rows[at : at + count]
            if rate is not None:
                now = time.monotonic()
                due = max(self._due, now - _BURST_SECONDS)
                self._due = due + len(some) / rate
                time.sleep(max(0.0, due - now))
            yield some

    def _started(self) -> Producer:
        if self._producer is None:
            self._producer = self._thread.call(_started(self._options))
        return self._producer


class _Turn:
    """How much the queue whose turn it is has got."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = self._count = 0

    def is_over(self, size: int) -> bool:
        """Count a row, and tell whether it is the first of another turn."""
        is_over = self._bytes + size > self._bytes_max or self._count == _TOGETHER_MAX
        if is_over and self._count:
            self._bytes, self._count = size, 1
            return True
        self._bytes, self._count = self._bytes + size, self._count + 1
        return False


def requests(rows: list[Row], *, bytes_max: int) -> Iterator[list[Row]]:
    """Put rows of one queue together that share a request, in their order."""
    some: list[Row] = []
    size = 0
    for row in rows:
        if some and (size + row.size > bytes_max or len(some) == _TOGETHER_MAX):
            yield some
            some, size = [], 0
        some.append(row)
        size += row.size
    if some:
        yield some


async def _started(options: SinkOptions) -> Producer:
    config = ProducerConfig(
        name_servers=options.name_servers,
        send_timeout=options.send_timeout_ms / 1000,
        retries=0,
        message_bytes_max=max(options.message_bytes_max, options.batch_bytes),
        credentials=find_credentials(options),
    )
    producer = Producer(options.producer_group, config=config)
    await producer.start()
    return producer


def _key(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)
