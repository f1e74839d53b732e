"""Options of ``format("rocketmq-log")``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.model.group import parse_tags
from rocketpost.model.properties import split_keys
from rocketpost.settings import option
from rocketpost.spark.body_options import check_choice
from rocketpost.spark.row_options import RowOptions
from rocketpost.spark.source.predicates import NumberBounds, Predicates, TextBounds

_CLOCK_STEP_MS: Final = 600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(RowOptions):
    """Options of the source ``format("rocketmq-log")``."""

    path: str = option("path", "")
    topic: str = option("topic", "")
    tags: str = option("tags", "*")
    keys: str = option("keys", "")
    unique_key: str = option("uniqKey", "")
    starting_timestamp: int | None = option("startingTimestamp", None)
    ending_timestamp: int | None = option("endingTimestamp", None)
    clock_step_ms: int = option("maxClockStepMs", _CLOCK_STEP_MS)
    view: str = option("view", "consumer")
    broker_name: str = option("brokerName", "")
    split_bytes: int | None = option("splitBytes", None)
    check_crc: bool = option("checkCrc", False)
    on_corrupt: str = option("onCorrupt", "fail")

    def __post_init__(self) -> None:
        if not self.paths:
            raise ConfigError(
                "path is required: the root of a store, or several separated by commas"
            )
        self.check_rows()
        check_choice("view", self.view, "consumer", "log")
        check_choice("onCorrupt", self.on_corrupt, "fail", "stop", "skip")
        if self.split_bytes is not None and self.split_bytes < 1024 * 1024:
            raise ConfigError(f"splitBytes={self.split_bytes} is too small; at least 1048576")
        if self.clock_step_ms < 0:
            raise ConfigError(f"maxClockStepMs={self.clock_step_ms} is too small")
        for key, value in (
            ("topic", self.topic),
            ("keys", self.keys),
            ("uniqKey", self.unique_key),
        ):
            if value and not value.strip(" ,"):
                raise ConfigError(f"{key}={value!r} names nothing; leave it out to read everything")
        self._check_times()

    def _check_times(self) -> None:
        start, end = self.starting_timestamp, self.ending_timestamp
        if start is not None and end is not None and start > end:
            raise ConfigError("startingTimestamp is later than endingTimestamp")
        is_timed = start is not None or end is not None or self.takes_filters
        if self.clock_step_ms != _CLOCK_STEP_MS and not is_timed:
            raise ConfigError(
                "maxClockStepMs needs startingTimestamp, endingTimestamp or filterPushdown=once"
            )

    @property
    def paths(self) -> list[str]:
        """The stores to read."""
        return [path.strip() for path in self.path.split(",") if path.strip()]

    @property
    def words(self) -> frozenset[str]:
        """Keys of which a message must have one; empty for all messages."""
        return frozenset(split_keys(self.keys))

    @property
    def requested_bounds(self) -> Predicates:
        """The bounds of columns that the options set, except for keys."""
        topics, tags, unique, times = TextBounds(), TextBounds(), TextBounds(), NumberBounds()
        if self.topic:
            topics = topics.restrict_to(
                name.strip() for name in self.topic.split(",") if name.strip()
            )
        wanted_tags = parse_tags("", self.tags, version=0).tags_set
        if wanted_tags:
            tags = tags.restrict_to(wanted_tags)
        if self.unique_key:
            unique = unique.restrict_to(self.unique_key.split())
        if self.starting_timestamp is not None or self.ending_timestamp is not None:
            end = None if self.ending_timestamp is None else self.ending_timestamp - 1
            times = times.restrict_to_range(self.starting_timestamp, end)
        return Predicates(topics=topics, tags=tags, unique_keys=unique, store_ms=times)
