"""Writers that Spark calls to send a frame or a stream to topics.

A task sends its rows in order and returns when each is acknowledged. With ``delivery=exactlyOnce``
each message has a number. It is the number of the row in the task, under a producer named after the
sink and the task with the batch as epoch, or it comes from columns of the frame. A task, batch or
driver that runs twice sends the same numbers, and brokers store each once. With
``delivery=effectivelyOnce`` the numbers become message ids, and tasks skip stored rows
(``spark.sink.marked_sender``). The driver reads the marks before the tasks start, and stores new
ones when all tasks have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from rocketpost.client.blocking.loop_thread import LoopThread, shared
from rocketpost.errors import ConfigError, NotSupported
from rocketpost.spark.bodies.sink_bodies import SinkBodies
from rocketpost.spark.outage import TRANSIENT
from rocketpost.spark.sink.known_brokers import update_known_brokers_blocking
from rocketpost.spark.sink.marked_sender import MarkedSender
from rocketpost.spark.sink.marks import Marks, MarksByQueue
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.sender import Sender
from rocketpost.spark.source.plan import Offsets
from rocketpost.spark.workers.preparation import prepare_worker

logger = logging.getLogger(__name__)

_ROWS_PER_BATCH: Final = 1000
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class TaskResult(WriterCommitMessage):
    """The result of a task."""

    sent: int
    skipped: int
    firsts: Offsets = field(default_factory=dict)
    """Offsets of the first rows of the task, for marks."""
    batch_id: int = 0
    """The number of the batch with which stored rows were searched."""


class _SinkPlan(NamedTuple):
    """Facts that the driver collects for its tasks."""

    marks: Mapping[str, MarksByQueue]
    """Marks by topic, for ``delivery=effectivelyOnce``."""
    brokers: frozenset[str]
    """Brokers that may have rows of an earlier run."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, options: SinkOptions, packing: SinkBodies) -> None:
        self.options = options
        self.packing = packing
        self.plan = _make_plan(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        return _write(self.options, self.plan, _pack_batches(self.packing, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Store marks, if the delivery needs them."""
        prepare_worker()
        _mark(self.options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, options: SinkOptions, packing: SinkBodies) -> None:
        self.options = options
        self.packing = packing
        self.plan = _make_plan(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        return _write(self.options, self.plan, _pack_batches(self.packing, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Store marks, if the delivery needs them; the rows themselves are stored already."""
        prepare_worker()
        _mark(self.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: rows stay stored, and their numbers prevent duplicates in the next run."""


def _make_plan(options: SinkOptions) -> _SinkPlan:
    """Collect the facts for the tasks, before any task of this run has started."""
    marks = {}
    if options.is_marked and options.topic:
        marks[options.topic] = Marks(options).read_marks(options.topic)
    brokers = (
        update_known_brokers_blocking(options) if options.is_exactly_once else frozenset[str]()
    )
    return _SinkPlan(marks, brokers)


def _mark(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    if not options.is_marked:
        return
    firsts: Offsets = {}
    batch_id = 0
    for message in messages:
        assert isinstance(message, TaskResult)
        # From a task: in foreachBatch tasks know the batch of the stream, and the driver does not.
        batch_id = message.batch_id
        for queue, first in message.firsts.items():
            firsts[queue] = min(first, firsts.get(queue, first))
    try:
        Marks(options).commit(batch_id, firsts)
    except TRANSIENT as error:
        # All rows are stored. The next batch searches from the previous marks, which takes longer.
        logger.warning("marks not written: sink=%s reason=%s", options.sink, error)


def _pack_batches(
    packing: SinkBodies, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield small batches with bodies of bytes."""
    row = 0
    for batch in batches:
        for at in range(0, batch.num_rows, _ROWS_PER_BATCH):
            some = batch.slice(at, _ROWS_PER_BATCH)
            yield packing.pack(some, row)
            row += some.num_rows


def _write(options: SinkOptions, plan: _SinkPlan, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    prepare_worker()
    context = TaskContext.get()
    assert context is not None
    epoch = options.epoch
    if epoch is None:
        epoch = int(context.getLocalProperty(_BATCH_ID) or 0)
    thread = shared.enter()
    try:
        if options.is_marked:
            return _send_marked(thread, options, plan.marks, epoch, batches)
        sending = thread.call(_open_sender(options, plan.brokers, context.partitionId(), epoch))
        try:
            return _send_all(thread, sending, batches)
        finally:
            thread.call(sending.close())
    except NotSupported as error:
        raise ConfigError(
            f"delivery={options.delivery} needs brokers of Rocketpost: {error}. "
            "With others use delivery=effectivelyOnce"
        ) from error
    finally:
        shared.leave()


def _send_marked(
    thread: LoopThread,
    options: SinkOptions,
    plan: Mapping[str, MarksByQueue],
    batch_id: int,
    batches: Iterator[pa.RecordBatch],
) -> TaskResult:
    context = TaskContext.get()
    assert context is not None
    sending = MarkedSender(
        thread,
        options,
        partition=context.partitionId(),
        batch_id=batch_id,
        plan=plan,
        is_again=context.attemptNumber() > 0,
    )
    try:
        for batch in batches:
            sending.send(batch)
    finally:
        sending.close()
    return TaskResult(sending.sent, sending.skipped, sending.firsts, batch_id)


async def _open_sender(
    options: SinkOptions, brokers: frozenset[str], partition: int, batch_id: int
) -> Sender:
    await asyncio.sleep(0)
    return Sender(options, partition=partition, batch_id=batch_id, brokers=brokers)


def _send_all(thread: LoopThread, sending: Sender, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    for batch in batches:
        thread.call(sending.send(batch))
    thread.call(sending.finish())
    return TaskResult(sending.sent, sending.skipped)
