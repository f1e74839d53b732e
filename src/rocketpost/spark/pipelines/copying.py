"""Copies of messages as rows for the sink, with the user's properties, numbered by origin.

The number of a copy is its queue offset, under a producer named after the copy job, its selection
and the original queue. So a job that is killed and started again stores every copy once, however
Spark distributes the rows; a job of another name or selection is independent of it. One task sends
all copies of a queue, in the order of their offsets. That keeps their order, and lets a run treat
rows as stored even if brokers no longer remember all gaps.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from rocketpost.client import MessageQueue
from rocketpost.errors import ConfigError
from rocketpost.model import properties as names
from rocketpost.model.stamp import PRODUCER_ID_MAX, producer_id_problem
from rocketpost.spark.source.plan import QueueKey

COPY_OF: Final = "COPY_OF"
COPY_BY: Final = "COPY_BY"
COPY_ID: Final = "COPY_ID"
COPY_BORN: Final = "COPY_BORN_MS"
COPY_STORED: Final = "COPY_STORED_MS"
MARKS: Final = (COPY_OF, COPY_BY, COPY_ID, COPY_BORN, COPY_STORED)
"""Properties of a copy that name its origin."""

_SYSTEMS: Final = sorted({*names.RESERVED, names.UNIQUE_KEY})
"""Properties that copies lack, because they would make them delayed, half messages or retries."""
_RATE_PER_TASK: Final = 10_000
_ROWS_IN_TURN: Final = 1000
_ROWS_IN_PLACE: Final = 256
_PLACE: Final = "struct<brokerName: string, queueId: int>"
_DIGITS: Final = 8
_NAME_MAX: Final = 64
_QUEUE: Final = ("topic", "brokerName", "queueId")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyConfig:
    """Settings of a copy job.

    Attributes:
        name_servers: ``host:port;host:port`` of the brokers that get them.
        name: The name of the job; the same name and selection continue it.
        topic: The target topic of all copies; their original topics if None.
        rate: The limit of messages per second, for all tasks together.
        tasks: The limit of concurrent tasks.
        keep_order: Whether copies of one queue stay in order, in one queue. Messages with a
            sharding key keep the order of their key in any case.
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
            raise ConfigError("a copy needs a name without /, under which it can be continued")
        if problem := producer_id_problem(self.name):
            raise ConfigError(f"the name {self.name!r} cannot be used: {problem}")
        if len(self.name) > _NAME_MAX:
            raise ConfigError(f"the name {self.name!r} is longer than {_NAME_MAX} characters")
        if self.tasks < 1 or (self.rate is not None and self.rate < 1):
            raise ConfigError("rate and tasks must be at least 1")


class Origin(NamedTuple):
    """The messages to copy from one queue."""

    queue: QueueKey
    messages: int
    first: int
    last: int
    first_ms: int
    last_ms: int


def drop_own_copies(frame: DataFrame, config: CopyConfig) -> DataFrame:
    """Return messages without copies that this job itself has made.

    The job may send to a topic that it reads; the next run would copy the copies.
    """
    is_own = f.coalesce(f.col("properties")[COPY_BY] == config.name, f.lit(False))
    if config.topic is not None:
        is_own = is_own & (f.col("topic") == config.topic)
    return frame.filter(~is_own)


def count_origins(frame: DataFrame) -> list[Origin]:
    """Return the number of messages to copy from each queue."""
    rows = frame.groupBy(*_QUEUE).agg(
        f.count("*"),
        f.min("queueOffset"),
        f.max("queueOffset"),
        f.unix_millis(f.min("storeTimestamp")),
        f.unix_millis(f.max("storeTimestamp")),
    )
    return sorted(Origin(QueueKey(*row[:3]), *row[3:]) for row in rows.collect())


def producer_id(config: CopyConfig, selection: str, queue: QueueKey) -> str:
    """Return the producer id of the copies of a queue.

    It includes the selection. Otherwise another selection under the same name would skip messages
    that the first one left out.
    """
    text = f"{selection}\0{config.topic or ''}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
    plain = f"{config.name}/{digest}/{'/'.join(map(str, queue))}"
    if producer_id_problem(plain) is None:
        return plain
    long = hashlib.sha256(f"{text}\0{queue!r}".encode()).hexdigest()
    return f"{config.name}/{digest}/{long}"[:PRODUCER_ID_MAX]


def choose_task_count(config: CopyConfig, found: Sequence[Origin], at_once: int) -> int:
    """Return the number of tasks that send.

    Each task gets its share of the rate. So with a rate there are no more tasks than it needs, than
    Spark runs at the same time, and than there are queues: other shares would be lost.

    Args:
        config: The settings of the job.
        found: The original queues.
        at_once: The number of tasks that Spark runs at the same time.
    """
    most = min(config.tasks, len(found))
    if config.rate is not None:
        most = min(most, at_once, -(-config.rate // _RATE_PER_TASK))
    return max(1, most)


def assign_tasks(found: Sequence[Origin], tasks: int) -> dict[QueueKey, int]:
    """Return the task of each queue, with about the same work for all tasks."""
    loads = [0] * tasks
    tasks_of = {}
    for origin in sorted(found, key=lambda each: (-each.messages, each.queue)):
        task = loads.index(min(loads))
        loads[task] += origin.messages
        tasks_of[origin.queue] = task
    return tasks_of


def choose_target_queue(queue: QueueKey, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the target queue of a queue: the one of the same name, or one chosen by its name.

    It depends on nothing else, so that a run can continue another.
    """
    for each in queues:
        if (each.broker_name, each.queue_id) == (queue.broker, queue.queue_id):
            return each
    ordered = sorted(queues, key=lambda each: (each.broker_name, each.queue_id))
    return ordered[(zlib.crc32(queue.broker.encode()) + queue.queue_id) % len(ordered)]


def make_copies(
    frame: DataFrame,
    config: CopyConfig,
    *,
    selection: str,
    found: Sequence[Origin],
    tasks: int,
    queues_of: Callable[[str], Sequence[MessageQueue]],
    topics: Sequence[str] = (),
    topic: Column | None = None,
    more: Mapping[str, Column] | None = None,
) -> DataFrame:
    """Return the rows of copies, in their tasks and in the order of sending.

    Within a task the queues take turns, so that all of them progress together.

    Args:
        frame: Messages, with all columns of the source.
        config: The settings of the job.
        selection: The selection as text.
        found: The original queues.
        tasks: The number of tasks that send.
        queues_of: Returns the writable queues of a topic.
        topics: All target topics, if ``topic`` is a column.
        topic: The target topic of each row, if not configured; the original topic if None.
        more: Additional properties of copies.
    """
    goal = f.col("topic") if topic is None else topic
    if config.topic is not None:
        goal, topics = f.lit(config.topic), [config.topic]
    table = _make_table(frame, config, selection, found, tasks=tasks, queues_of=queues_of)
    rows = frame.withColumn("__to", goal).join(f.broadcast(table), list(_QUEUE))
    place = f.col("__namesake")
    if not config.keep_order:
        places = _list_target_queues(
            frame, queues_of, topics or sorted({each.queue.topic for each in found})
        )
        rows = rows.join(f.broadcast(places), "__to", "left")
        place = f.element_at("__places", _target_number())
    columns = _copy_columns(rows, place, _copy_properties(config, more or {}))
    placed = columns.repartitionById(tasks, "__task")
    return placed.sortWithinPartitions("__turn", "producerId", "sequence").drop("__task", "__turn")


def _copy_columns(rows: DataFrame, place: Column, properties: Column) -> DataFrame:
    """Return the columns of the sink for each copy, with its task and turn."""
    sharding = f.nullif(f.col("properties")[names.SHARDING_KEY], f.lit(""))
    is_free = sharding.isNull()  # otherwise its key determines the queue
    level = f.col("properties")[names.PRIORITY].try_cast("int")
    turn = f.floor((f.col("queueOffset") - f.col("__first")) * f.col("__turns") / f.col("__span"))
    return rows.withColumn("__place", f.when(is_free, place)).select(
        "body",
        f.col("__to").alias("topic"),
        "tags",
        "keys",
        "flag",
        properties.alias("properties"),
        sharding.alias("shardingKey"),
        f.when(is_free & (level >= 0), level).alias("priority"),
        f.col("__place.brokerName").alias("brokerName"),
        f.col("__place.queueId").alias("queueId"),
        "producerId",
        f.col("queueOffset").alias("sequence"),
        "__task",
        turn.alias("__turn"),
    )


def send(rows: DataFrame, config: CopyConfig, *, tasks: int) -> None:
    """Send rows of :func:`make_copies` with some tasks: each once, at the rate of the options.

    Raises:
        PySparkException: A task failed permanently; send the rows again to continue.
    """
    writer = rows.write.format("rocketmq").mode("append")
    writer = writer.option("nameServer", config.name_servers).option("delivery", "exactlyOnce")
    # All of a producer's rows come in order from one task, with fewer under way than brokers
    # remember gaps: what they have forgotten was stored.
    writer = writer.option("onForgotten", "skip")
    if config.rate is not None:
        writer = writer.option("rateLimitPerTask", max(1, config.rate // tasks))
    writer.save()


def _make_table(
    frame: DataFrame,
    config: CopyConfig,
    selection: str,
    found: Sequence[Origin],
    *,
    tasks: int,
    queues_of: Callable[[str], Sequence[MessageQueue]],
) -> DataFrame:
    """Return the decisions for each queue as a small table."""
    tasks_of = assign_tasks(found, tasks)
    turns = max(-(-origin.messages // _ROWS_IN_TURN) for origin in found)
    rows: list[tuple[object, ...]] = []
    for origin in found:
        namesake = None
        if config.keep_order:
            to = choose_target_queue(origin.queue, queues_of(config.topic or origin.queue.topic))
            namesake = to.broker_name, to.queue_id
        span = origin.last - origin.first + 1
        name = producer_id(config, selection, origin.queue)
        start = zlib.crc32("/".join(map(str, origin.queue)).encode())
        place = (tasks_of[origin.queue], origin.first, span, turns, start, namesake)
        rows.append((*origin.queue, name, *place))
    schema = (
        "topic string, brokerName string, queueId int, producerId string, __task int, "
        f"__first bigint, __span bigint, __turns bigint, __start bigint, __namesake {_PLACE}"
    )
    return frame.sparkSession.createDataFrame(rows, schema)


def _list_target_queues(
    frame: DataFrame, queues_of: Callable[[str], Sequence[MessageQueue]], topics: Sequence[str]
) -> DataFrame:
    """Return the queues of topics in the order of their names: __to, __places."""
    rows = [
        (topic, sorted((queue.broker_name, queue.queue_id) for queue in queues_of(topic)))
        for topic in topics
    ]
    return frame.sparkSession.createDataFrame(rows, f"__to string, __places array<{_PLACE}>")


def _target_number() -> Column:
    """Return the number of the target queue if order does not matter; adjacent copies share one.

    It follows from the original alone. So two runs, concurrent or not, send a copy to the same
    broker, which stores it once.
    """
    turn = f.floor(f.col("queueOffset") / _ROWS_IN_PLACE) + f.col("__start")
    return (f.pmod(turn, f.size("__places")) + 1).cast("int")


def _copy_properties(config: CopyConfig, more: Mapping[str, Column]) -> Column:
    """Return the properties of a copy: those of the user, and the origin."""
    marks = {
        COPY_OF: f.concat_ws("/", *_QUEUE, "queueOffset"),
        COPY_BY: f.lit(config.name),
        COPY_ID: f.coalesce("uniqKey", "msgId", f.lit("?")),
        COPY_BORN: f.unix_millis("bornTimestamp").cast("string"),
        COPY_STORED: f.unix_millis("storeTimestamp").cast("string"),
        **more,
    }
    dropped = [*_SYSTEMS, *MARKS, *more]
    users = f.map_filter(
        "properties", lambda name, value: ~name.isin(dropped) & (f.trim(value) != "")
    )
    pairs = [part for name, value in marks.items() for part in (f.lit(name), value)]
    return f.map_concat(users, f.create_map(*pairs))
