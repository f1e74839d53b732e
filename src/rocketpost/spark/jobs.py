"""Functions for users' stream jobs: from topics through Spark to topics, exactly once.

    orders = decoded(stream(spark, name_servers, "Orders"), "customer string, amount double")
    totals = orders.groupBy("customer").agg(...)
    to_topic(totals, name_servers=..., topic="Totals", checkpoint="/checkpoints/totals")

After a shuffle the rows of a batch may have another order when the batch runs again, and numbers
would then belong to other rows. So :func:`to_topic` sorts every batch by its rows alone before it
numbers them.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.sink_bodies import SinkBodies
from rocketpost.spark.options import SourceOptions, parse_options
from rocketpost.spark.sink.options import (
    COLUMNS,
    Delivery,
    SinkOptions,
    check_columns,
    derive_sink_name,
)

ONCE: Final = "once"
_TASKS: Final = 4
_NAMES: Final = frozenset(name.lower() for name in COLUMNS)


def stream(spark: SparkSession, name_servers: str, topic: str, **options: object) -> DataFrame:
    """Return a topic as a stream that starts at its first message, unless options say otherwise.

    Args:
        spark: The session.
        name_servers: ``host:port;host:port``.
        topic: The topic, or several separated by commas.
        options: Options of ``format("rocketmq")``.

    Raises:
        ConfigError: An option is unknown or not valid.
    """
    given = {"nameServer": name_servers, "topic": topic}
    if not any(key.lower().startswith("starting") for key in options):
        given["startingOffsets"] = "earliest"
    given |= {key: str(value) for key, value in options.items()}
    parse_options(SourceOptions, given)
    return spark.readStream.format("rocketmq").options(**given).load()


def decoded(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """Return messages with the fields of their JSON bodies as columns instead of ``body``.

    A body that is not such JSON gives nulls. If the schema has a field ``_corrupt_record string``,
    the field gets the text of the body.
    """
    others = [name for name in frame.columns if name != "body"]
    text = f.col("body").cast("string")
    return frame.select(*others, f.from_json(text, schema).alias("__body")).select(
        *others, "__body.*"
    )


def encoded(*columns: str | Column) -> Column:
    """Return a column ``body`` with columns as JSON; the opposite of :func:`decoded`."""
    return f.to_json(f.struct(*columns)).alias("body")


def to_topic(
    frame: DataFrame,
    *,
    name_servers: str,
    checkpoint: str,
    topic: str = "",
    order_by: tuple[str, ...] = (),
    tasks: int = _TASKS,
    every: str = "",
    delivery: str = Delivery.EXACTLY_ONCE.value,
    **options: object,
) -> StreamingQuery:
    """Send each row of a stream once, even if Spark repeats a batch, a task or a driver.

    Args:
        frame: Rows with the columns of the sink, and those in ``order_by``.
        name_servers: ``host:port;host:port``.
        checkpoint: The directory for Spark's progress; it also identifies the sink.
        topic: The topic for rows without a column ``topic``.
        order_by: Columns by which the rows of one ``shardingKey`` are sorted within a batch.
        tasks: The number of concurrent senders; may change only with a new checkpoint.
        every: The interval of batches, such as ``10 seconds``. ``once`` sends all present rows and
            ends. Batches follow each other without a pause if empty.
        delivery: The delivery of the sink; ``effectivelyOnce`` for Apache's brokers.
        options: Other options of the sink, such as ``bodyFormat``.

    Raises:
        ConfigError: A column or an option is not valid.
    """
    given = {"nameServer": name_servers, "delivery": delivery, "sinkId": _sink_id(checkpoint)}
    if topic:
        given["topic"] = topic
    given |= {key: str(value) for key, value in options.items()}
    names = _list_sent_columns(frame, parse_options(SinkOptions, given), order_by)
    if tasks < 1:
        raise ConfigError("tasks must be at least 1")

    def send(batch: DataFrame, batch_id: int) -> None:
        rows = in_order(batch, names, order_by=order_by, tasks=tasks)
        writer = rows.write.format("rocketmq").mode("append").options(**given)
        writer.option("checkpointLocation", checkpoint).option("epoch", batch_id).save()

    writer = frame.writeStream.foreachBatch(send).option("checkpointLocation", checkpoint)
    if every == ONCE:
        writer = writer.trigger(availableNow=True)
    elif every:
        writer = writer.trigger(processingTime=every)
    return writer.start()


def in_order(
    rows: DataFrame, names: list[str], *, order_by: tuple[str, ...] = (), tasks: int = _TASKS
) -> DataFrame:
    """Return columns of rows, partitioned and sorted by the rows alone.

    Args:
        rows: The rows.
        names: The columns to return.
        order_by: Columns by which the rows of one ``shardingKey`` are sorted first.
        tasks: The number of partitions.
    """
    kinds = {field.name: field.dataType for field in rows.schema}
    sort_keys = [_sort_key(_column(name), kinds[name]) for name in names]
    keys = [f.col(name) for name in names if name.lower() == "shardingkey"]
    shared = rows.repartition(tasks, *(keys or sort_keys))
    sorted_rows = shared.sortWithinPartitions(*keys, *map(_column, order_by), *sort_keys)
    return sorted_rows.select(*map(_column, names))


def _column(name: str) -> Column:
    """Return a column by its name, which may contain dots."""
    quoted = name.replace("`", "``")
    return f.col(f"`{quoted}`")


def _list_sent_columns(
    frame: DataFrame, options: SinkOptions, order_by: tuple[str, ...]
) -> list[str]:
    """Return the names of the columns to send.

    Raises:
        ConfigError: A column is missing, or the sink has no use for it.
    """
    routing = [name for name in frame.columns if name.lower() in _NAMES]
    is_whole = options.has_fields and "body" not in map(str.lower, frame.columns)
    names = frame.columns if is_whole else routing
    unused = set(frame.columns) - set(names) - set(order_by)
    if unused:
        raise ConfigError(f"the sink cannot use the column {min(unused)}")
    sent = StructType([field for field in frame.schema if field.name in names])
    check_columns(SinkBodies(sent, options).columns, options)
    return names


def _sort_key(column: Column, kind: DataType) -> Column:
    """Return a sort key for a column: maps cannot be compared, but their sorted entries can."""
    if "map<" not in kind.simpleString():
        return column
    match kind:
        case MapType():
            value = kind.valueType
            entries = f.transform(
                f.map_entries(column),
                lambda each: f.struct(each["key"], _sort_key(each["value"], value)),
            )
            return f.array_sort(entries)
        case ArrayType():
            element = kind.elementType
            return f.transform(column, lambda each: _sort_key(each, element))
        case StructType():
            parts = [_sort_key(column[each.name], each.dataType) for each in kind.fields]
            return f.when(column.isNotNull(), f.struct(*parts))
    return column  # not a map: only a name in the type contains "map<"


def _sink_id(checkpoint: str) -> str:
    if not checkpoint:
        raise ConfigError("a checkpoint is required: it identifies a repeated run")
    return derive_sink_name(checkpoint)
