"""Pass every event on once, though its producer may have sent it several times.

python examples/spark_deduplicate.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)

Keys are remembered for an hour after an event was stored; the state has no more than that.
"""

import contextlib
import os

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from rocketpost.spark.jobs import stream, to_topic
from rocketpost.spark.session import make_session

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def job(spark: SparkSession, name_servers: str, checkpoint: str, every: str = "") -> StreamingQuery:
    events = stream(spark, name_servers, "Events")
    once = events.withWatermark("storeTimestamp", "1 hour").dropDuplicatesWithinWatermark(["keys"])
    # Which of several equal events stays may change when a batch runs again. So what tells them
    # apart, such as their offsets, is neither taken nor ordered by.
    rows = once.select("body", "keys", "tags")
    return to_topic(
        rows, name_servers=name_servers, topic="EventsOnce", checkpoint=checkpoint, every=every
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        query = job(make_session("events once"), NAME_SERVERS, "checkpoints/events-once")
        query.awaitTermination()
