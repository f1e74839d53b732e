"""Records of a trace topic as a table: events reported by producers and consumers."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.codec.trace import (
    EndTransactionTrace,
    MessageKind,
    Pub,
    RecallTrace,
    SubAfter,
    SubBefore,
    decode_traces,
)
from rocketpost.spark.options import SourceOptions

_SCHEMA: Final = (
    "array<struct<kind string, timeMs bigint, `group` string, topic string, uniqKey string, "
    "keys string, costMs bigint, success boolean, requestId string, isHalf boolean>>"
)
_Fields = tuple[str, int, str, str, str, str, int, bool, str, bool]
_COMMITTED: Final = "COMMIT_MESSAGE"


def read_traces(spark: SparkSession, name_servers: str, trace_topic: str) -> DataFrame:
    """Return the records of a trace topic, one per row; unreadable ones are left out."""
    decoded = f.udf(list_fields, _SCHEMA, useArrow=False)
    source = SourceOptions(name_servers=name_servers, topic=trace_topic)
    reader = spark.read.format("rocketmq").schema("body binary")
    for key, value in source.given_values().items():
        reader = reader.option(key, value)
    return reader.load().select(f.inline(decoded("body")))


def select_sent(records: DataFrame, topics: tuple[str, ...]) -> DataFrame:
    """Return the messages that producers report as sent: uniqKey, keys, timeMs, costMs.

    A half message counts as sent if its transaction was committed; a recalled message does not.
    """
    ours = records.filter(f.col("success") & f.col("topic").isin(*topics))
    pubs = ours.filter("kind = 'Pub'").select("uniqKey", "keys", "timeMs", "costMs", "isHalf")
    committed = ours.filter("kind = 'EndTransaction'").select("uniqKey").distinct()
    recalled = ours.filter("kind = 'Recall'").select("uniqKey").distinct()
    whole = pubs.filter("NOT isHalf")
    halves = pubs.filter("isHalf").join(committed, "uniqKey", "left_semi")
    return whole.unionByName(halves).join(recalled, "uniqKey", "left_anti").drop("isHalf")


def select_handled(records: DataFrame, group: str | None) -> DataFrame:
    """Return successful handlings of messages: uniqKey, keys, doneMs, costMs."""
    begun = records.filter("kind = 'SubBefore'").select(
        "requestId", "uniqKey", f.col("group").alias("begunBy"), f.col("timeMs").alias("begunMs")
    )
    # Clients may send a trace twice; every handling has its own request id.
    after = records.filter("kind = 'SubAfter' AND success").drop("topic", "kind").distinct()
    # Old clients report group and time only before they handle a message.
    both = after.join(begun.distinct(), ["requestId", "uniqKey"], "left")
    done = (
        both.withColumn(
            "by", f.when(f.col("group") == "", f.col("begunBy")).otherwise(f.col("group"))
        )
        .withColumn(
            "doneMs",
            f.when(f.col("timeMs") > 0, f.col("timeMs")).otherwise(
                f.col("begunMs") + f.col("costMs")
            ),
        )
        .select("uniqKey", "keys", "doneMs", "costMs", "by")
    )
    return done.filter(f.col("by") == group) if group else done


def list_fields(body: bytes | None) -> list[_Fields]:
    """Return the records of one trace message as rows of the table."""
    rows: list[_Fields] = []
    for trace in decode_traces(bytes(body or b"").decode(errors="replace")):
        match trace:
            case Pub():
                is_half = trace.kind == MessageKind.TRANSACTION_HALF
                head = ("Pub", trace.time_ms, trace.group, trace.topic, trace.message_id)
                rows.append((*head, trace.keys, trace.cost_ms, trace.success, "", is_half))
            case SubBefore():
                head = ("SubBefore", trace.time_ms, trace.group, "", trace.message_id)
                rows.append((*head, trace.keys, 0, True, trace.request_id, False))
            case SubAfter():
                done = trace.success
                head = ("SubAfter", trace.time_ms, trace.group, "", trace.message_id)
                rows.append((*head, trace.keys, trace.cost_ms, done, trace.request_id, False))
            case EndTransactionTrace():
                done = trace.state == _COMMITTED
                head = ("EndTransaction", trace.time_ms, trace.group, trace.topic, trace.message_id)
                rows.append((*head, trace.keys, 0, done, "", False))
            case RecallTrace():
                head = ("Recall", trace.time_ms, trace.group, trace.topic, trace.message_id)
                rows.append((*head, "", 0, trace.success, "", False))
    return rows
