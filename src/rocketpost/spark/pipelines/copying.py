"""Messages as rows for the sink again: copies that keep what is the user's, numbered by origin.

A copy's number is its queue offset, under the name of the copying and the queue that it comes from.
So a copying that is killed and started again stores every copy once, however Spark shares the rows
out, and two copyings of different names do not know each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from rocketpost.errors import ConfigError
from rocketpost.model import properties as names
from rocketpost.model.stamp import producer_id_problem

_OWN = sorted({*names.RESERVED, names.UNIQUE_KEY})


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyConfig:
    """How copies are sent.

    Attributes:
        name_servers: ``host:port;host:port``.
        name: What this copying is called; the same name again continues it.
        topic: Where all copies go; where they came from if None.
        rate: Messages a second at most, all tasks together.
        tasks: How many send at the same time at most.
        keep_order: Whether copies of one queue stay in order: they share a queue then. Messages
            with a sharding key stay in the order of their key in any case.
    """

    name_servers: str
    name: str
    topic: str | None = None
    rate: int | None = None
    tasks: int = 4
    keep_order: bool = True

    def __post_init__(self) -> None:
        if not self.name_servers:
            raise ConfigError("the name servers are required, such as 127.0.0.1:9876")
        if not self.name or "/" in self.name:
            raise ConfigError("the copying needs a name without /, by which it can be continued")
        if problem := producer_id_problem(f"{self.name}/x"):
            raise ConfigError(f"the name {self.name!r} cannot be used: {problem}")
        if self.tasks < 1 or (self.rate is not None and self.rate < 1):
            raise ConfigError("rate and tasks must be at least 1")


def copies(frame: DataFrame, config: CopyConfig, *, topic: Column) -> DataFrame:
    """Return the rows to send for messages.

    Args:
        frame: Messages, with all columns of the source.
        config: How they are sent.
        topic: Where each goes.
    """
    origin = f.concat_ws("/", "topic", "brokerName", "queueId")
    sharding = f.col("properties")[names.SHARDING_KEY]
    marks = f.create_map(
        f.lit("COPY_OF"),
        f.concat_ws("/", origin, "queueOffset"),
        f.lit("COPY_BY"),
        f.lit(config.name),
    )
    users = f.map_filter("properties", lambda name, value: ~name.isin(_OWN) & (f.trim(value) != ""))
    mine = f.map_filter(users, lambda name, _: ~name.isin("COPY_OF", "COPY_BY"))
    return frame.select(
        "body",
        (f.lit(config.topic) if config.topic else topic).alias("topic"),
        "tags",
        "keys",
        "flag",
        f.map_concat(mine, marks).alias("properties"),
        (f.coalesce(sharding, origin) if config.keep_order else sharding).alias("shardingKey"),
        f.concat_ws("/", f.lit(config.name), origin).alias("producerId"),
        f.col("queueOffset").alias("sequence"),
    )


def send(rows: DataFrame, config: CopyConfig) -> None:
    """Send rows of :func:`copies`: in order by origin, each once, at the wished rate."""
    ordered = rows.repartition(config.tasks, "producerId").sortWithinPartitions(
        "producerId", "sequence"
    )
    writer = ordered.write.format("rocketmq").mode("append")
    writer = writer.option("nameServer", config.name_servers).option("delivery", "exactlyOnce")
    if config.rate is not None:
        writer = writer.option("rateLimitPerTask", max(1, config.rate // config.tasks))
    writer.save()
