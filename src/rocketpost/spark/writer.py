"""Rows to messages: what Spark calls to write a frame or a stream to topics.

A task sends its rows in their order and returns when every one is acknowledged. With
``delivery=exactlyOnce`` each message has a number: that of its row in the task, under a producer
named after sink and task whose epoch is the batch, or the numbers that the frame brings along. A
task, a batch or a driver that runs twice sends the same numbers, and brokers store each once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from rocketpost.client.loop_thread import LoopThread, shared
from rocketpost.spark.sending import Sending
from rocketpost.spark.sink_options import SinkOptions

_ROWS_AT_ONCE: Final = 1000
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """What a task did."""

    sent: int
    skipped: int


class BatchWriter(DataSourceArrowWriter):
    """Writes a frame."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        return _write(self.options, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream, batch by batch."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task."""
        return _write(self.options, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """A batch needs no commit: every message is stored when its task returns."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """What was sent stays; Spark runs the batch again, and numbers keep it from doubling."""


def _write(options: SinkOptions, batches: Iterator[pa.RecordBatch]) -> Written:
    context = TaskContext.get()
    assert context is not None
    epoch = options.epoch
    if epoch is None:
        epoch = int(context.getLocalProperty(_BATCH_ID) or 0)
    thread = shared.enter()
    try:
        sending = thread.call(_opened(options, context.partitionId(), epoch))
        try:
            return _sent(thread, sending, batches)
        finally:
            thread.call(sending.close())
    finally:
        shared.leave()


async def _opened(options: SinkOptions, partition: int, batch_id: int) -> Sending:
    await asyncio.sleep(0)
    return Sending(options, partition=partition, batch_id=batch_id)


def _sent(thread: LoopThread, sending: Sending, batches: Iterator[pa.RecordBatch]) -> Written:
    for batch in batches:
        for at in range(0, batch.num_rows, _ROWS_AT_ONCE):
            thread.call(sending.send(batch.slice(at, _ROWS_AT_ONCE)))
    thread.call(sending.finish())
    return Written(sending.sent, sending.skipped)
