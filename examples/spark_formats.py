"""JSON in, an aggregate, Avro out: what each customer has ordered by the minute, topic to topic.

python examples/spark_formats.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)

The source reads bodies by the types of their JSON; the sink writes all columns that route no
message (here all but ``shardingKey``) by a schema of Avro, and refuses columns that do not fit it.
"""

import contextlib
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from rocketpost.spark.jobs import stream, to_topic
from rocketpost.spark.session import make_session

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
ORDER = "at timestamp, customer string, amount decimal(9,2)"
TOTAL = """{"type": "record", "name": "Total", "fields": [
  {"name": "customer", "type": "string"},
  {"name": "minute", "type": {"type": "long", "logicalType": "timestamp-millis"}},
  {"name": "total", "type": ["null",
    {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 2}]}]}"""


def job(spark: SparkSession, name_servers: str, checkpoint: str, every: str = "") -> StreamingQuery:
    orders = stream(spark, name_servers, "Orders", bodyFormat="json", bodySchema=ORDER)
    totals = (
        orders.select("body.*")
        .withWatermark("at", "30 seconds")  # so late an order may come
        .groupBy(f.window("at", "1 minute"), "customer")
        .agg(f.sum("amount").alias("total"))
    )
    return to_topic(
        totals.selectExpr("customer", "window.start AS minute", "total", "customer AS shardingKey"),
        name_servers=name_servers,
        topic="OrderTotals",
        checkpoint=checkpoint,
        every=every,
        bodyFormat="avro",
        bodySchema=TOTAL,
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        query = job(make_session("order totals"), NAME_SERVERS, "checkpoints/order-totals")
        query.awaitTermination()
