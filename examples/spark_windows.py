"""Count the orders of each customer by the minute: a windowed aggregation, topic to topic.

python examples/spark_windows.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)

Each count is sent once, when no order of its minute is expected any more.
"""

import contextlib
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from rocketpost.spark.jobs import decoded, encoded, stream, to_topic
from rocketpost.spark.session import make_session

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def job(spark: SparkSession, name_servers: str, checkpoint: str, every: str = "") -> StreamingQuery:
    orders = decoded(
        stream(spark, name_servers, "Orders"), "at timestamp, customer string, amount double"
    )
    counts = (
        orders.withWatermark("at", "30 seconds")  # so late an order may come
        .groupBy(f.window("at", "1 minute"), "customer")
        .agg(f.count("*").alias("orders"), f.sum("amount").alias("amount"))
    )
    body = encoded("customer", "orders", "amount", f.col("window.start").alias("minute"))
    rows = counts.select(body, f.col("customer").alias("shardingKey"))
    return to_topic(
        rows, name_servers=name_servers, topic="OrderCounts", checkpoint=checkpoint, every=every
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        query = job(make_session("order counts"), NAME_SERVERS, "checkpoints/order-counts")
        query.awaitTermination()
