"""Find the payment of each order: two topics joined into a third.

python examples/spark_join.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)

A payment counts if it comes within ten minutes. Spark forgets orders and payments that can find no
partner any more, so the state has a bound.
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
    orders = (
        decoded(stream(spark, name_servers, "Orders"), "at timestamp, id string, amount double")
        .select("at", "id", "amount")
        .withWatermark("at", "1 minute")
    )
    payments = (
        decoded(stream(spark, name_servers, "Payments"), "at timestamp, order string")
        .select(f.col("at").alias("paidAt"), "order")
        .withWatermark("paidAt", "1 minute")
    )
    in_time = f.expr("order = id AND paidAt >= at AND paidAt <= at + INTERVAL 10 MINUTES")
    paid = orders.join(payments, in_time)
    rows = paid.select(encoded("id", "amount", "at", "paidAt"), f.col("id").alias("keys"))
    return to_topic(
        rows, name_servers=name_servers, topic="PaidOrders", checkpoint=checkpoint, every=every
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        query = job(make_session("paid orders"), NAME_SERVERS, "checkpoints/paid-orders")
        query.awaitTermination()
