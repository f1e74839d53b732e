"""Keep the orders of a topic as a table of Parquet files, by day: topic to table, exactly once.

python examples/spark_table.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)

Spark's file sink notes which files count, so that a batch that runs again adds nothing. Read the
table with spark.read.parquet("tables/orders"); other programs should read what
``rocketpost pipeline archive`` writes, whose files all count.
"""

import contextlib
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from rocketpost.spark.jobs import ONCE, decoded, stream
from rocketpost.spark.session import make_session

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def job(
    spark: SparkSession,
    name_servers: str,
    checkpoint: str,
    every: str = "1 minute",
    table: str = "tables/orders",
) -> StreamingQuery:
    orders = decoded(
        stream(spark, name_servers, "Orders"), "at timestamp, id string, customer string"
    )
    rows = orders.select(f.to_date("at").alias("day"), "at", "id", "customer", "queueOffset")
    writer = (
        rows.writeStream.format("parquet")
        .partitionBy("day")
        .option("path", table)
        .option("checkpointLocation", checkpoint)
    )
    trigger = {"availableNow": True} if every == ONCE else {"processingTime": every}
    return writer.trigger(**trigger).start()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        query = job(make_session("orders as a table"), NAME_SERVERS, "checkpoints/orders-table")
        query.awaitTermination()
