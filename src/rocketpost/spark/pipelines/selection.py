"""Selection of the messages for a copy job: by topic, source, time, tag, key or offset.

A selection is fixed before it is read: brokers continue to store messages, and the messages that
are counted must be those that are sent.
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
from rocketpost.spark.pipelines.archive import archived, open_archive
from rocketpost.spark.source.plan import Bounds, Offsets, QueueKey
from rocketpost.spark.source.time_bounds import find_first_since

_NARROW: Final = (
    "topic string, brokerName string, queueId int, queueOffset bigint, keys string, tags string, "
    "storeTimestamp timestamp, properties map<string,string>"
)


class OffsetSpan(NamedTuple):
    """A span of offsets of a queue: from ``start``, before ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A selection of messages; None or empty values do not restrict it.

    Attributes:
        topics: The topics.
        name_servers: ``host:port;host:port`` of the brokers that have the messages.
        lake: The lake to read instead of brokers.
        start_ms: The earliest store time.
        end_ms: The end of store times.
        tags: Tags of which a message must have one.
        keys: Keys of which a message must have one.
        offsets: Spans of offsets by queue.
    """

    topics: tuple[str, ...]
    name_servers: str = ""
    lake: str = ""
    start_ms: int | None = None
    end_ms: int | None = None
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    offsets: Mapping[QueueKey, OffsetSpan] | None = None

    def __post_init__(self) -> None:
        if not self.topics:
            raise ConfigError("a topic is required, whose messages are selected")
        if not self.lake and not self.name_servers:
            raise ConfigError("a lake or name servers are required, from which messages are read")
        if self.start_ms is not None and self.end_ms is not None and self.start_ms >= self.end_ms:
            raise ConfigError("the time range is empty: its end is not after its beginning")
        for queue, span in (self.offsets or {}).items():
            if queue.topic not in self.topics:
                raise ConfigError(f"the offsets name {queue}, but that topic is not selected")
            if not 0 <= span.start < span.end:
                raise ConfigError(
                    f"the offsets {span.start} to {span.end} of {queue} are an empty range"
                )

    @property
    def words(self) -> str:
        """The selection as text; equal texts select the same messages."""
        said = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("name_servers", "offsets") and getattr(self, field.name)
        }
        if self.offsets:
            said["offsets"] = sorted((*queue, *span) for queue, span in self.offsets.items())
        return json.dumps(said, sort_keys=True)


class SelectedMessages(NamedTuple):
    """The messages of a selection, fixed."""

    whole: DataFrame
    """The messages with all columns."""
    narrow: DataFrame
    """The messages without bodies, for counting."""


def select(spark: SparkSession, selection: Selection) -> SelectedMessages:
    """Return the messages of a selection.

    Raises:
        ConfigError: The lake is empty, or a queue does not exist.
        ClientError: Brokers do not answer.
    """
    if selection.lake:
        check_lake(selection)
        every = archived(spark, selection.lake, selection.topics)
        frame = every.filter(_condition(selection))
        return SelectedMessages(frame, frame)
    given = fix_selection(selection).given_values()
    condition = _condition(selection)
    live = spark.read.format("rocketmq").options(**given).load().filter(condition)
    slim = spark.read.format("rocketmq").schema(_NARROW).options(**given).load()
    return SelectedMessages(live, slim.filter(condition))


def fix_selection(selection: Selection) -> SourceOptions:
    """Return options that read the present messages of brokers, without later ones.

    Raises:
        ConfigError: A queue does not exist.
        ClientError: Brokers do not answer, or offsets are deleted.
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
        start, end = _narrow_ranges(start, end, bounds, selection.offsets)
    end = {queue: max(at, start[queue]) for queue, at in end.items()}
    return fix_offsets(source, start, end)


def parse_offsets(text: str) -> dict[QueueKey, OffsetSpan]:
    """Parse spans of offsets by queue: ``{"Orders": {"broker-a": {"0": [100, 200]}}}``.

    Raises:
        ConfigError: The text is not such JSON.
    """
    try:
        found = {}
        for topic, brokers in json.loads(text).items():
            for broker, queues in brokers.items():
                for queue_id, span in queues.items():
                    start, end = map(int, span)
                    found[QueueKey(topic, broker, int(queue_id))] = OffsetSpan(start, end)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            'offsets must look like {"Orders": {"broker-a": {"0": [100, 200]}}}, where '
            f"100 is included and 200 is not; got {text}"
        ) from None
    return found


def _narrow_ranges(
    start: Offsets,
    end: Offsets,
    bounds: Mapping[QueueKey, Bounds],
    offsets: Mapping[QueueKey, OffsetSpan],
) -> tuple[Offsets, Offsets]:
    """Restrict ranges to the selected offsets; queues without a span become empty."""
    for queue, span in offsets.items():
        if queue not in bounds:
            raise ConfigError(f"the offsets name a queue that does not exist: {queue}")
        if span.start < bounds[queue].first:
            raise ClientError(
                f"messages were deleted: offset {span.start} of {queue} was requested, "
                f"but {bounds[queue].first} is the first that is left. Begin there, or "
                "read from a lake"
            )
    low = {queue: max(at, offsets[queue].start) for queue, at in start.items() if queue in offsets}
    high = {queue: min(at, offsets[queue].end) for queue, at in end.items() if queue in offsets}
    return start | low, start | high


def check_lake(selection: Selection) -> None:
    """Check that the lake of a selection, if any, has the selected messages.

    Raises:
        ConfigError: The lake is empty, or lacks a topic or a queue.
        ClientError: The archived messages of a queue begin later.
    """
    if not selection.lake:
        return
    held = open_archive(selection.lake, selection.topics)[1].ranges
    for queue, span in (selection.offsets or {}).items():
        if queue not in held:
            raise ConfigError(f"the offsets name a queue that was not archived: {queue}")
        if span.start < held[queue].start:
            raise ClientError(
                f"offset {span.start} of {queue} was requested, but {held[queue].start} "
                f"is the first that was archived in {selection.lake}"
            )


def _condition(selection: Selection) -> Column:
    """Return the condition on messages, except for the topic."""
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


def _at(queue: QueueKey, span: OffsetSpan) -> Column:
    return (
        (f.col("topic") == queue.topic)
        & (f.col("brokerName") == queue.broker)
        & (f.col("queueId") == queue.queue_id)
        & f.col("queueOffset").between(span.start, span.end - 1)
    )
