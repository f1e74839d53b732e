"""Which messages a copying takes: of which topics, from where, and which of them.

A selection is fixed before it is read: brokers go on storing, and what is counted must be what is
then sent.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from rocketpost.errors import ClientError, ConfigError
from rocketpost.model.properties import KEY_SEPARATOR
from rocketpost.spark.broker_session import BrokerSession
from rocketpost.spark.options import SourceOptions, fix_offsets
from rocketpost.spark.pipelines.archive import archived, opened
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey
from rocketpost.spark.source.time_bounds import find_first_since

_NARROW: Final = (
    "topic string, brokerName string, queueId int, queueOffset bigint, keys string, tags string, "
    "storeTimestamp timestamp, properties map<string,string>"
)


class Span(NamedTuple):
    """Offsets of a queue: from ``start``, before ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages; what is None or empty does not matter.

    Attributes:
        topics: Whose messages.
        name_servers: ``host:port;host:port`` of the brokers that have them.
        lake: Read what was archived here, not what brokers have.
        start_ms: Stored then or later.
        end_ms: Stored before.
        tags: One of these tags.
        keys: One of these keys.
        offsets: Only these offsets of these queues.
    """

    topics: tuple[str, ...]
    name_servers: str = ""
    lake: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    offsets: Mapping[QueueKey, Span] | None = None

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("a topic is required: whose messages to take")
        if not self.lake and not self.name_servers:
            raise ConfigError("a lake or name servers are required: where the messages are")
        if self.start_ms is not None and self.end_ms is not None and self.start_ms >= self.end_ms:
            raise ConfigError("the time range is empty: its end is not after its beginning")
        for queue, span in (self.offsets or {}).items():
            if queue.topic not in self.topics:
                raise ConfigError(f"the offsets name {queue}, but that topic is not selected")
            if not 0 <= span.start < span.end:
                raise ConfigError(f"the offsets {span.start} to {span.end} of {queue} are none")

    @property
    def words(self) -> str:
        """The selection as text; the same text takes the same messages."""
        said = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("name_servers", "offsets") and getattr(self, field.name)
        }
        if self.offsets:
            said["offsets"] = sorted((*queue, *span) for queue, span in self.offsets.items())
        return json.dumps(said, sort_keys=True)


class Found(NamedTuple):
    """The messages of a selection, fixed."""

    whole: DataFrame
    """With every column."""
    narrow: DataFrame
    """The same without bodies, to count."""


def select(spark: SparkSession, selection: Selection) -> Found:
    """Return the messages of a selection.

    Raises:
        ConfigError: Nothing was archived there, or a queue does not exist.
        ClientError: Brokers cannot be asked.
    """
    if selection.lake:
        check_lake(selection)
        every = archived(spark, selection.lake, selection.topics)
        frame = every.filter(_condition(selection))
        return Found(frame, frame)
    given = fixed(selection).given()
    condition = _condition(selection)
    live = spark.read.format("rocketmq").options(**given).load().filter(condition)
    slim = spark.read.format("rocketmq").schema(_NARROW).options(**given).load()
    return Found(live, slim.filter(condition))


def fixed(selection: Selection) -> SourceOptions:
    """Return how the messages that brokers have now are read, however many come meanwhile.

    Raises:
        ConfigError: A queue does not exist.
        ClientError: Brokers cannot be asked, or offsets are gone.
    """
    source = SourceOptions(
        name_servers=selection.name_servers,
        topic=",".join(selection.topics),
        expression=" || ".join(selection.tags) or "*",
    )
    with BrokerSession(source) as broker_session:
        bounds = broker_session.bounds(broker_session.queues())
        start = {queue: bound.first for queue, bound in bounds.items()}
        end = {queue: bound.end for queue, bound in bounds.items()}
        if selection.start_ms is not None:
            start = find_first_since(
                broker_session, bounds, dict.fromkeys(bounds, selection.start_ms)
            )
        if selection.end_ms is not None:
            end = find_first_since(broker_session, bounds, dict.fromkeys(bounds, selection.end_ms))
    if selection.offsets is not None:
        start, end = _narrowed(start, end, bounds, selection.offsets)
    end = {queue: max(at, start[queue]) for queue, at in end.items()}
    return fix_offsets(source, start, end)


def parse_offsets(text: str) -> dict[QueueKey, Span]:
    """Read offsets by queue: ``{"Orders": {"broker-a": {"0": [100, 200]}}}``.

    Raises:
        ConfigError: The text is no such JSON.
    """
    try:
        found = {}
        for topic, brokers in json.loads(text).items():
            for broker, queues in brokers.items():
                for queue_id, span in queues.items():
                    start, end = map(int, span)
                    found[QueueKey(topic, broker, int(queue_id))] = Span(start, end)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            'offsets must look like {"Orders": {"broker-a": {"0": [100, 200]}}}, where 100 is '
            f"taken and 200 is not, not {text}"
        ) from None
    return found


def _narrowed(
    start: Offsets,
    end: Offsets,
    bounds: Mapping[QueueKey, Bounds],
    offsets: Mapping[QueueKey, Span],
) -> tuple[Offsets, Offsets]:
    """Cut ranges to the offsets that are wanted; queues that are not named become empty."""
    for queue, span in offsets.items():
        if queue not in bounds:
            raise ConfigError(f"the offsets name a queue that does not exist: {queue}")
        if span.start < bounds[queue].first:
            raise ClientError(
                f"messages are gone: offset {span.start} of {queue} was wanted, and "
                f"{bounds[queue].first} is the first that is left. Begin there, or take a lake"
            )
    low = {queue: max(at, offsets[queue].start) for queue, at in start.items() if queue in offsets}
    high = {queue: min(at, offsets[queue].end) for queue, at in end.items() if queue in offsets}
    return start | low, start | high


def check_lake(selection: Selection) -> None:
    """Refuse what the lake of a selection does not have; one without a lake is fine.

    Raises:
        ConfigError: Nothing was archived there, or nothing of a topic or a queue.
        ClientError: What was archived of a queue begins later.
    """
    if not selection.lake:
        return
    held = opened(selection.lake, selection.topics)[1].ranges
    for queue, span in (selection.offsets or {}).items():
        if queue not in held:
            raise ConfigError(f"the offsets name a queue that was not archived: {queue}")
        if span.start < held[queue].start:
            raise ClientError(
                f"offset {span.start} of {queue} was wanted, and {held[queue].start} is the first "
                f"that was archived in {selection.lake}"
            )


def _condition(selection: Selection) -> Column:
    """Return what a message must meet, beside its topic."""
    stored = f.unix_millis("storeTimestamp")
    wanted = []
    if selection.start_ms is not None:
        wanted.append(stored >= selection.start_ms)
    if selection.end_ms is not None:
        wanted.append(stored < selection.end_ms)
    if selection.tags:
        wanted.append(f.col("tags").isin(*selection.tags))
    if selection.keys:
        keys = f.array(*map(f.lit, selection.keys))
        wanted.append(f.arrays_overlap(f.split("keys", KEY_SEPARATOR), keys))
    if selection.offsets is not None:
        places = [_at(queue, span) for queue, span in selection.offsets.items()]
        wanted.append(reduce(Column.__or__, places, f.lit(False)))
    return reduce(Column.__and__, wanted, f.lit(True))


def _at(queue: QueueKey, span: Span) -> Column:
    return (
        (f.col("topic") == queue.topic)
        & (f.col("brokerName") == queue.broker)
        & (f.col("queueId") == queue.queue_id)
        & f.col("queueOffset").between(span.start, span.end - 1)
    )
