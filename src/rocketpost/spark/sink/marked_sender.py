"""Sender of the rows of one task that stores each row once on any broker.

The message of a row has an id that follows from the row's number. Before it sends the first row of
a topic, the sender searches for messages that an earlier attempt stored (``spark.sink.marks``), and
skips those rows. Each request goes to one queue, one at a time, so that after a failure the queue
has the first part of the rows, in order. The sender then searches the queue again and does not
repeat rows that were stored.

Messages of other tasks of the batch are searched only if necessary; otherwise every task would read
what all others write. The driver passes the ends of the queues from before any task started. An
attempt that Spark counts as the first searches only up to there, unless the first row of the topic,
which is always sent before all others, is in the index: Spark restarts its count when it repeats a
stage.
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
from rocketpost.spark.sink.marks import Marks, MarksByQueue, plan_search
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.rows import Rows
from rocketpost.spark.source.plan import Offsets, QueueKey, Range
from rocketpost.spark.tls_options import find_tls

_REQUEST_ROWS_MAX: Final = 1000
_ATTEMPTS: Final = 3
"""Number of attempts within ``sendTimeoutMs``."""
_BURST_SECONDS: Final = 0.1
_PAUSE_SECONDS: Final = 0.1
_UNKNOWN_MAX: Final = 3
SETTLE_SECONDS: Final = 1.0
"""Requests of a dead attempt are stored after this time: brokers drop those that wait 200 ms."""


class Row(NamedTuple):
    """A message with its id and its queue."""

    message_id: str
    message: Message
    queue: MessageQueue
    size: int

    @property
    def key(self) -> QueueKey:
        """The key of the queue."""
        return QueueKey(self.queue.topic, self.queue.broker_name, self.queue.queue_id)


class MarkedSender:
    """Sends the rows of one task. Blocking; belongs to the thread of the task.

    Args:
        thread: The event-loop thread of the process.
        options: The options of the sink.
        partition: The number of the task.
        batch_id: The number of the batch; 0 if there is only one.
        plan: The marks of topics before any task of this run was started.
        is_again: Whether an earlier attempt of this run may have sent rows.
        marks: The marks of the sink.
        producer: The producer, without retries; one is started if None.
        settle_seconds: The time after which requests of a dead attempt are stored or lost.
    """

    def __init__(
        self,
        thread: LoopThread,
        options: SinkOptions,
        *,
        partition: int,
        batch_id: int,
        plan: Mapping[str, MarksByQueue],
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
        """Topics for which the first row of this task is stored."""
        self._turn = partition
        self._due = 0.0
        self._producer = producer
        self._queues: dict[str, list[MessageQueue]] = {}
        self._ends: Offsets = {}
        """The offset of each queue up to which messages were searched, or sent by this task."""
        self._found: dict[str, tuple[QueueKey, int]] = {}
        self.firsts: Offsets = {}
        """Offsets of the first rows of this task."""
        self.sent = 0
        self.stored_before = 0

    @property
    def skipped(self) -> int:
        """The number of rows skipped because of their size."""
        return self._rows.skipped

    def send(self, rows: pa.RecordBatch) -> None:
        """Send rows, and return when all are acknowledged.

        Raises:
            RocketpostError: A row was refused or could not be sent.
        """
        for some in self._pace_rows(list(self._select_new(rows))):
            heads = self._select_first_rows(some)
            for row in heads.values():
                self._deliver([row])
            self._deliver([row for row in some if row.message_id not in heads])
            self.sent += len(some)

    def finish(self) -> None:
        """Do nothing: all rows are acknowledged already."""

    def close(self) -> None:
        """Close the connections."""
        if self._producer is not None:
            self._thread.call(self._producer.stop())

    def _select_new(self, rows: pa.RecordBatch) -> Iterator[Row]:
        """Yield the rows that are not stored yet, each with its queue."""
        turns: dict[str, _RoundRobin] = {}
        for out in self._rows.messages(rows):
            assert out.producer_id is not None
            assert out.sequence is not None
            topic = out.message.topic
            epoch = self._batch_id if out.producer_id == self._own_id else 0
            message_id = stamp_id(Stamp(out.producer_id, epoch, out.sequence))
            if topic not in self._queues:
                self._search_topic(topic, message_id)
            if self._is_stored(message_id):
                self.stored_before += 1
                continue
            size = ENTRY_BYTES_MIN + len(out.message.body)
            size += len(out.message.property_text(message_id).encode("utf-8", "replace"))
            queue = out.queue
            if queue is None and out.message.sharding_key:
                queue = select_by_hash(self._queues[topic], out.message.sharding_key)
            if queue is None:
                turn = turns.setdefault(topic, _RoundRobin(self._options.batch_bytes))
                self._turn += turn.is_over(size)
                queue = self._queues[topic][self._turn % len(self._queues[topic])]
            yield Row(message_id, out.message, queue, size)
        self._turn += bool(turns)

    def _select_first_rows(self, rows: list[Row]) -> dict[str, Row]:
        """Return the first row of this task for each topic, by id."""
        heads = {}
        for row in rows:
            if row.queue.topic not in self._opened:
                self._opened.add(row.queue.topic)
                heads[row.message_id] = row
        return heads

    # Search for stored rows.

    def _search_topic(self, topic: str, first_id: str) -> None:
        """Search for rows that earlier attempts sent to a topic."""
        producer = self._started()
        marks = self._plan.get(topic)
        if marks is not None and not self._is_again:
            self._is_again = self._marks.is_indexed(topic, first_id, is_known=bool(marks))
        if self._is_again and not self._is_settled:
            time.sleep(self._settle_seconds)
            self._is_settled = True
        if self._is_again:
            marks = None
        if marks is None:
            marks = self._marks.read_marks(topic)
        queues = self._thread.call(self._find_queues(producer, topic, is_known=bool(marks)))
        hidden = {_queue_key(queue) for queue in queues} - set(marks)
        if hidden:
            # Also for an unknown topic: its broker may have returned meanwhile, with our messages.
            marks = self._marks.read_marks(topic)
            hidden -= set(marks)
            if marks and hidden:
                raise ConfigError(
                    f"{min(hidden)} can be written to but not read, so it cannot be "
                    "checked what an earlier attempt stored there; give the topic as many "
                    "read queues as write queues"
                )
        is_bounded = self._options.scan_since is not None
        self._found |= self._marks.find_ids(
            plan_search(marks, self._batch_id, is_bounded=is_bounded)
        )
        self._ends |= {queue: each.bounds.end for queue, each in marks.items()}
        self._queues[topic] = queues

    async def _find_queues(
        self, producer: Producer, topic: str, *, is_known: bool
    ) -> list[MessageQueue]:
        """Return the queues of a topic; wait for a topic that existed before."""
        return await retry_during_outage(
            partial(producer.queues, topic),
            seconds=self._options.send_timeout_ms / 1000,
            pause=_PAUSE_SECONDS,
            unknown_max=None if is_known else _UNKNOWN_MAX,
        )

    def _is_stored(self, message_id: str) -> bool:
        stored_at = self._found.get(message_id)
        if stored_at is None:
            return False
        if not self._is_settled:
            # There was an earlier attempt, and its last rows may have been stored meanwhile.
            self._is_settled = True
            time.sleep(self._settle_seconds)
            self._search_again(list(self._ends))
        self._note_first(*stored_at)
        return True

    def _search_again(self, queues: list[QueueKey]) -> None:
        by_topic: dict[str, list[QueueKey]] = {}
        for queue in queues:
            by_topic.setdefault(queue.topic, []).append(queue)
        for some in by_topic.values():
            ends = self._marks.find_ends(some)
            ranges = [Range(queue, self._ends.get(queue, 0), ends[queue]) for queue in some]
            self._found |= self._marks.find_ids(ranges)
            self._ends |= ends

    def _note_first(self, queue: QueueKey, offset: int) -> None:
        self.firsts[queue] = min(offset, self.firsts.get(queue, offset))

    # Send rows.

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
            self._search_again(sorted({row.key for row in rows}))
            stored = [row for row in rows if row.message_id in self._found]
            for row in stored:
                self._note_first(*self._found[row.message_id])
            rows = [row for row in rows if row.message_id not in self._found]

    async def _attempt(self, rows: list[Row]) -> tuple[list[Row], RocketpostError | None]:
        """Send rows once; return those that were not acknowledged, and the error."""
        gate = asyncio.Semaphore(self._options.in_flight)
        by_queue: dict[MessageQueue, list[Row]] = {}
        for row in rows:
            by_queue.setdefault(row.queue, []).append(row)

        async def one(some: list[Row]) -> tuple[list[Row], RocketpostError | None]:
            async with gate:
                return await self._send_in_order(some)

        ended = await asyncio.gather(*map(one, by_queue.values()))
        errors = [error for _, error in ended if error is not None]
        # A permanent error is reported before a transient one.
        errors.sort(key=lambda error: isinstance(error, TRANSIENT))
        return [row for some, _ in ended for row in some], errors[0] if errors else None

    async def _send_in_order(self, rows: list[Row]) -> tuple[list[Row], RocketpostError | None]:
        producer = self._producer
        assert producer is not None
        seconds = self._options.send_timeout_ms / 1000 / _ATTEMPTS
        at = 0
        for some in split_requests(rows, bytes_max=self._options.batch_bytes):
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
            self._note_first(first.key, result.queue_offset)
            self._ends[first.key] = result.queue_offset + len(some)
        return [], None

    def _pace_rows(self, rows: list[Row]) -> Iterator[list[Row]]:
        """Yield groups of rows, at the rate of the options if there is one."""
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
            self._producer = self._thread.call(_start_producer(self._options))
        return self._producer


class _RoundRobin:
    """Counts the rows and bytes of the queue that is being filled."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = self._count = 0

    def is_over(self, size: int) -> bool:
        """Count a row, and return whether it belongs to the next queue."""
        is_over = self._bytes + size > self._bytes_max or self._count == _REQUEST_ROWS_MAX
        if is_over and self._count:
            self._bytes, self._count = size, 1
            return True
        self._bytes, self._count = self._bytes + size, self._count + 1
        return False


def split_requests(rows: list[Row], *, bytes_max: int) -> Iterator[list[Row]]:
    """Yield the rows of one queue in groups that share a request, in order."""
    some: list[Row] = []
    size = 0
    for row in rows:
        if some and (size + row.size > bytes_max or len(some) == _REQUEST_ROWS_MAX):
            yield some
            some, size = [], 0
        some.append(row)
        size += row.size
    if some:
        yield some


async def _start_producer(options: SinkOptions) -> Producer:
    config = ProducerConfig(
        name_servers=options.name_servers,
        send_timeout=options.send_timeout_ms / 1000,
        retries=0,
        message_bytes_max=max(options.message_bytes_max, options.batch_bytes),
        credentials=find_credentials(options),
        tls=find_tls(options),
    )
    producer = Producer(options.producer_group, config=config)
    await producer.start()
    return producer


def _queue_key(queue: MessageQueue) -> QueueKey:
    return QueueKey(queue.topic, queue.broker_name, queue.queue_id)
