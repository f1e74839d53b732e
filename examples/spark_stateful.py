"""Pass the readings of each device on once, and say how many were lost: state of one's own.

python examples/spark_stateful.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)

Devices number their readings, send them with their name as sharding key, and may send some twice.
All that is remembered of a device is its last number, and that for a day after its last reading.
State of one's own runs Python for every device of a batch, a few thousand rows a second: for keys
that are few, not for every message (examples/spark_deduplicate.py is for that). It needs
``pip install 'rocketpost[spark,stateful]'``.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from rocketpost.spark.jobs import decoded, encoded, stream, to_topic
from rocketpost.spark.session import make_session

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
DAY_MS = 24 * 3600 * 1000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    # Else Spark would make empty batches without end, to see whether state has expired.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


class Once(StatefulProcessor):
    """Lets the readings of a device pass whose numbers are new."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "number bigint", ttlDurationMs=DAY_MS)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[Row]:
        (device,) = key
        known = self._last.get()
        last = known[0] if known is not None else None
        for row in sorted(rows, key=lambda row: row.number):
            if last is not None and row.number <= last:
                continue
            lost = 0 if last is None else row.number - last - 1
            last = row.number
            yield Row(device=device, number=last, value=row.value, lost=lost)
        self._last.update((last,))

    def close(self) -> None:
        """There is nothing to close."""


def job(spark: SparkSession, name_servers: str, checkpoint: str, every: str = "") -> StreamingQuery:
    readings = decoded(
        stream(spark, name_servers, "Readings"), "device string, number bigint, value double"
    )
    numbered = readings.filter("device IS NOT NULL AND number IS NOT NULL")
    once = (
        numbered.select("device", "number", "value")
        .groupBy("device")
        .transformWithState(
            statefulProcessor=Once(),
            outputStructType="device string, number bigint, value double, lost bigint",
            outputMode="Append",
            timeMode="ProcessingTime",
        )
    )
    body = encoded("device", "number", "value", "lost")
    rows = once.select(body, f.col("device").alias("shardingKey"), "number")
    return to_topic(
        rows,
        name_servers=name_servers,
        topic="ReadingsOnce",
        checkpoint=checkpoint,
        order_by=("number",),
        every=every,
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        session = make_session("readings once", options=SETTINGS)
        query = job(session, NAME_SERVERS, "checkpoints/readings-once")
        query.awaitTermination()
