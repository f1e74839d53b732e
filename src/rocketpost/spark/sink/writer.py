"""Rows to messages: what Spark calls to write a frame or a stream to topics.

A task sends its rows in their order and returns when every one is acknowledged. With
``delivery=exactlyOnce`` each message has a number: that of its row in the task, under a producer
named after sink and task whose epoch is the batch, or the numbers that the frame brings along. A
task, a batch or a driver that runs twice sends the same numbers, and brokers store each once. With
``delivery=effectivelyOnce`` the numbers become ids, and what is there already is left out
(``spark.sink.marked``); the driver looks at the queues before the tasks start, and marks their ends
when all have ended.
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
from rocketpost.spark.bodies.packing import Packing
from rocketpost.spark.outage import TRANSIENT
from rocketpost.spark.sink.brokers import noted_blocking
from rocketpost.spark.sink.marked import MarkedSending
from rocketpost.spark.sink.marks import Marks, Stands
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.sending import Sending
from rocketpost.spark.source.plan import Offsets
from rocketpost.spark.workers.preparation import prepare_worker

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE: Final = 1000
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What a task did."""

    sent: int
    skipped: int
    firsts: Offsets = field(default_factory=dict)
    """No row of the task lies before these, if somebody has to know."""
    batch_id: int = 0
    """The batch under which it was looked for what is there already."""


class _Plan(NamedTuple):
    """What a driver tells its tasks."""

    stands: Mapping[str, Stands]
    """Where marks stand, by topic; for brokers that do not number."""
    brokers: frozenset[str]
    """Which brokers may hold what an earlier run has sent."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, options: SinkOptions, packing: Packing) -> None:
        self.options = options
        self.packing = packing
        self.plan = _plan(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        return _write(self.options, self.plan, _packed(self.packing, iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Mark what is stored, if nobody else remembers it."""
        prepare_worker()
        _mark(self.options, messages)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, options: SinkOptions, packing: Packing) -> None:
        self.options = options
        self.packing = packing
        self.plan = _plan(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        return _write(self.options, self.plan, _packed(self.packing, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Mark what is stored, if nobody else remembers it; all of it is stored already."""
        prepare_worker()
        _mark(self.options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was sent stays; Spark runs the batch again, and numbers keep it from doubling."""


def _plan(options: SinkOptions) -> _Plan:
    """Return what is known before any task of this run has started."""
    stands = {}
    if options.is_marked and options.topic:
        stands[options.topic] = Marks(options).stands(options.topic)
    brokers = noted_blocking(options) if options.is_exactly_once else frozenset[str]()
    return _Plan(stands, brokers)


def _mark(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    if not options.is_marked:
        return
    firsts: Offsets = {}
    batch_id = 0
    for message in messages:
        assert isinstance(message, Written)
        # Tasks know it best: in foreachBatch they have a batch of a stream, and the driver none.
        batch_id = message.batch_id
        for queue, first in message.firsts.items():
            firsts[queue] = min(first, firsts.get(queue, first))
    try:
        Marks(options).commit(batch_id, firsts)
    except TRANSIENT as error:
        # All is stored. The next batch searches from the marks before, which takes longer.
        logger.warning("marks not written: sink=%s reason=%s", options.sink, error)


def _packed(packing: Packing, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield small batches with bodies of bytes."""
    row = 0
    for batch in batches:
        for at in range(0, batch.num_rows, _ROWS_AT_ONCE):
            some = batch.slice(at, _ROWS_AT_ONCE)
            yield packing.packed(some, row)
            row += some.num_rows


def _write(options: SinkOptions, plan: _Plan, batches: Iterator[pa.RecordBatch]) -> Written:
    prepare_worker()
    context = TaskContext.get()
    assert context is not None
    epoch = options.epoch
    if epoch is None:
        epoch = int(context.getLocalProperty(_BATCH_ID) or 0)
    thread = shared.enter()
    try:
        if options.is_marked:
            return _marked(thread, options, plan.stands, epoch, batches)
        sending = thread.call(_opened(options, plan.brokers, context.partitionId(), epoch))
        try:
            return _sent(thread, sending, batches)
        finally:
            thread.call(sending.close())
    except NotSupported as error:
        raise ConfigError(
            f"delivery={options.delivery} needs brokers of Rocketpost: {error}. "
            "With others use delivery=effectivelyOnce"
        ) from error
    finally:
        shared.leave()


def _marked(
    thread: LoopThread,
    options: SinkOptions,
    plan: Mapping[str, Stands],
    batch_id: int,
    batches: Iterator[pa.RecordBatch],
) -> Written:
    context = TaskContext.get()
    assert context is not None
    sending = MarkedSending(
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
    return Written(sending.sent, sending.skipped, sending.firsts, batch_id)


async def _opened(
    options: SinkOptions, brokers: frozenset[str], partition: int, batch_id: int
) -> Sending:
    await asyncio.sleep(0)
    return Sending(options, partition=partition, batch_id=batch_id, brokers=brokers)


def _sent(thread: LoopThread, sending: Sending, batches: Iterator[pa.RecordBatch]) -> Written:
    for batch in batches:
        thread.call(sending.send(batch))
    thread.call(sending.finish())
    return Written(sending.sent, sending.skipped)
