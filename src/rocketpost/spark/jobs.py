"""Stream jobs of one's own: from topics, through whatever Spark can do, to topics, exactly once.

    orders = decoded(stream(spark, name_servers, "Orders"), "customer string, amount double")
    totals = orders.groupBy("customer").agg(...)
    to_topic(totals, name_servers=..., topic="Totals", checkpoint="/checkpoints/totals")

After a shuffle the rows of a batch may come in another order when the batch runs again, and numbers
by row would then name other rows. So :func:`to_topic` puts every batch in an order that follows
from its rows alone, and only then numbers them.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from rocketpost.errors import ConfigError
from rocketpost.spark.bodies.packing import Packing
from rocketpost.spark.options import SourceOptions, parsed
from rocketpost.spark.sink.options import COLUMNS, Delivery, SinkOptions, check_columns, sink_of

ONCE: Final = "once"
_TASKS: Final = 4
_NAMES: Final = frozenset(name.lower() for name in COLUMNS)


def stream(spark: SparkSession, name_servers: str, topic: str, **options: object) -> DataFrame:
    """Return a topic as a stream that starts at its first message, unless options say otherwise.

    Args:
        spark: The session.
        name_servers: ``host:port;host:port``.
        topic: The topic, or several parted by commas.
        options: Those of ``format("rocketmq")``.

    Raises:
        ConfigError: An option is unknown or makes no sense.
    """
    given = {"nameServer": name_servers, "topic": topic}
    if not any(key.lower().startswith("starting") for key in options):
        given["startingOffsets"] = "earliest"
    given |= {key: str(value) for key, value in options.items()}
    parsed(SourceOptions, given)
    return spark.readStream.format("rocketmq").options(**given).load()


def decoded(frame: DataFrame, schema: StructType | str) -> DataFrame:
    """Return messages with the fields of their JSON bodies as columns instead of ``body``.

    A body that is no such JSON gives nulls; with a field ``_corrupt_record string`` in the schema
    its text is kept there.
    """
    others = [name for name in frame.columns if name != "body"]
    text = f.col("body").cast("string")
    return frame.select(*others, f.from_json(text, schema).alias("__body")).select(
        *others, "__body.*"
    )


def encoded(*columns: str | Column) -> Column:
    """Return a ``body`` that holds columns as JSON; the opposite of :func:`decoded`."""
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
    """Send the rows of a stream, each once, however often Spark runs a batch, task or driver.

    Args:
        frame: Columns of the sink, and whatever ``order_by`` names beside them.
        name_servers: ``host:port;host:port``.
        checkpoint: Where Spark keeps its progress; it also names the sink.
        topic: Where rows go, unless they have a column ``topic``.
        order_by: In which order the rows of one ``shardingKey`` are sent, within a batch.
        tasks: How many send at the same time; may only change with a new checkpoint.
        every: How often a batch is made, such as ``10 seconds``; ``once`` ends when all that is
            there now has been sent; as fast as it goes if empty.
        delivery: The sink's; ``effectivelyOnce`` for brokers of other makes.
        options: Others of the sink, such as ``bodyFormat``.

    Raises:
        ConfigError: A column or an option makes no sense.
    """
    given = {"nameServer": name_servers, "delivery": delivery, "sinkId": _sink_id(checkpoint)}
    if topic:
        given["topic"] = topic
    given |= {key: str(value) for key, value in options.items()}
    names = _names(frame, parsed(SinkOptions, given), order_by)
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
    """Return some columns of rows, shared out and sorted in a way that follows from the rows alone.

    Args:
        rows: The rows.
        names: The columns to return.
        order_by: By what the rows of one ``shardingKey`` are sorted first.
        tasks: Among how many tasks they are shared out.
    """
    kinds = {field.name: field.dataType for field in rows.schema}
    comparable = [_comparable(_column(name), kinds[name]) for name in names]
    keys = [f.col(name) for name in names if name.lower() == "shardingkey"]
    shared = rows.repartition(tasks, *(keys or comparable))
    sorted_rows = shared.sortWithinPartitions(*keys, *map(_column, order_by), *comparable)
    return sorted_rows.select(*map(_column, names))


def _column(name: str) -> Column:
    """Return a column by its name, which may have dots in it."""
    quoted = name.replace("`", "``")
    return f.col(f"`{quoted}`")


def _names(frame: DataFrame, options: SinkOptions, order_by: tuple[str, ...]) -> list[str]:
    """Return the columns that are sent.

    Raises:
        ConfigError: One is missing, or the sink has no use for it.
    """
    routing = [name for name in frame.columns if name.lower() in _NAMES]
    is_whole = options.has_fields and "body" not in map(str.lower, frame.columns)
    names = frame.columns if is_whole else routing
    strange = set(frame.columns) - set(names) - set(order_by)
    if strange:
        raise ConfigError(f"the sink has no use for the column {min(strange)}")
    sent = StructType([field for field in frame.schema if field.name in names])
    check_columns(Packing(sent, options).columns, options)
    return names


def _comparable(column: Column, kind: DataType) -> Column:
    """Return what a column is sorted by: maps cannot be compared, their entries can."""
    if "map<" not in kind.simpleString():
        return column
    match kind:
        case MapType():
            value = kind.valueType
            entries = f.transform(
                f.map_entries(column),
                lambda each: f.struct(each["key"], _comparable(each["value"], value)),
            )
            return f.array_sort(entries)
        case ArrayType():
            element = kind.elementType
            return f.transform(column, lambda each: _comparable(each, element))
        case StructType():
            parts = [_comparable(column[each.name], each.dataType) for each in kind.fields]
            return f.when(column.isNotNull(), f.struct(*parts))
    return column  # a text in the type says map<


def _sink_id(checkpoint: str) -> str:
    if not checkpoint:
        raise ConfigError("a checkpoint is required: by it a second run is known")
    return sink_of(checkpoint)
