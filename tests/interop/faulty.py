"""A sink that fails where a plan says so: once each, in the middle of its work.

A plan is a directory of files named ``KIND-BATCH``; who finds one takes it away and fails.

    task      a task fails after half of its rows were sent
    worker    the Python process of a task is killed there
    end       a task fails when all of its rows are sent
    before    the driver fails before a batch is committed
    after     the driver fails when a batch is committed, but Spark has not noted that
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from rocketpost.spark.bodies.sink_bodies import SinkBodies
from rocketpost.spark.sink.options import SinkOptions
from rocketpost.spark.sink.writer import StreamWriter
from rocketpost.spark.source.formats import RocketMQSource

FORMAT = "rocketmq-faulty"


class FaultySource(RocketMQSource):
    """``format("rocketmq")`` with the option ``faults``, the directory of the plan."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def __init__(self, options: dict[str, str]) -> None:
        self.faults = options["faults"]
        kept = {key: value for key, value in options.items() if key.lower() != "faults"}
        super().__init__(CaseInsensitiveDict(kept))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return FaultyWriter(*self._sink(schema), self.faults)


class FaultyWriter(StreamWriter):
    def __init__(self, options: SinkOptions, packing: SinkBodies, faults: str) -> None:
        super().__init__(options, packing)
        self.faults = faults

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        written = super().write(self._cut(iterator, batch_id))
        if self._takes("end", batch_id):
            raise RuntimeError("planned: at the end of a task")
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        if self._takes("before", batchId):
            raise RuntimeError("planned: before a commit")
        super().commit(messages, batchId)
        if self._takes("after", batchId):
            raise RuntimeError("planned: after a commit")

    def _cut(self, batches: Iterator[pa.RecordBatch], batch_id: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if self._takes("task", batch_id):
                raise RuntimeError("planned: in the middle of a task")
            if self._takes("worker", batch_id):
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch.slice(half)

    def _takes(self, kind: str, batch_id: int) -> bool:
        try:
            Path(self.faults, f"{kind}-{batch_id}").unlink()
        except FileNotFoundError:
            return False
        return True
