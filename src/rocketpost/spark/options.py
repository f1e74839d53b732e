"""Options of sources and sinks: parsed once, checked, and kept as frozen values.

Names are case-insensitive, as Spark's are. An unknown name is refused with the most similar one.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from rocketpost.client.credentials import Credentials, credentials_of, environment_credentials
from rocketpost.errors import ConfigError
from rocketpost.settings import build, format_value, keys_of, option
from rocketpost.spark.body_options import check_choice
from rocketpost.spark.option_checks import (
    EARLIEST,
    check_expression,
    check_name_servers,
    check_order,
    compile_pattern,
    parse_duration,
    parse_json,
    parse_offsets,
    parse_times,
)
from rocketpost.spark.row_options import RowOptions
from rocketpost.spark.source.plan import Offsets, QueueKey, nest_offsets
from rocketpost.spark.tls_options import check_tls

T = TypeVar("T")
K = TypeVar("K", bound="HasCredentials")

ALIASES: Final = {"maxMessagesPerTrigger": "maxOffsetsPerTrigger"}
"""Other names of options."""
_FOREIGN_NAMES: Final = {
    "consumergroup": "group",
    "kafka.bootstrap.servers": "nameServer",
    "kafka.group.id": "group",
    "subexpression": "tags",
    "subscribe": "topic",
    "subscribepattern": "topicPattern",
    "tags": "subExpression",
}
"""Our names for options of other sources, mainly Kafka's."""
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
_MAY_BE_EMPTY: Final = frozenset({"nameServer", "path", "securityToken", "subExpression", "tags"})
"""Options for which an empty value means all, or has an error message of its own."""
_FOR_STREAMS: Final = (
    "commitOffsetsToBroker",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "maxTriggerDelay",
)
_BEGINNINGS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
_OFFSETS: Final = ("startingOffsets", "endingOffsets")
_NAMED_OFFSETS: Final = ("earliest", "latest", "group")
_ENDINGS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


def parse_options(cls: type[T], values: Mapping[str, str]) -> T:
    """Parse options.

    Raises:
        ConfigError: An option is unknown, not valid, or not valid together with another.
    """
    known = {key.lower(): key for key in keys_of(cls)}
    others = {alias.lower(): key for alias, key in ALIASES.items() if key.lower() in known}
    given = {}
    for name, value in values.items():
        key = known.get(name.lower()) or others.get(name.lower())
        if key is None:
            if name.lower() in _SPARKS_OWN:
                continue
            raise ConfigError(f"there is no option {name!r}{_hint(name.lower(), known)}")
        if key in given:
            raise ConfigError(f"{key} is given twice, once as {name}")
        if not value.strip() and key not in _MAY_BE_EMPTY:
            raise ConfigError(f"{key} is empty; give it a value, or leave it out")
        if key in _OFFSETS and value.strip().lower() in _NAMED_OFFSETS:
            value = value.strip().lower()  # any letter case, as in Kafka's source
        given[key] = value
    return build(cls, given)


def _hint(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    meant = _FOREIGN_NAMES.get(name, "").lower()
    found = known.get(meant) or (known[near[0]] if near else None)
    return f"; did you mean {found}?" if found else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(RowOptions):
    """Options of the source ``format("rocketmq")``."""

    name_servers: str = option("nameServer", "")
    topic: str = option("topic", "")
    topic_pattern: str = option("topicPattern", "")
    assign: str = option("assign", "")
    starting_offsets: str = option("startingOffsets", "")
    starting_timestamp: int | None = option("startingTimestamp", None)
    starting_by_timestamp: str = option("startingOffsetsByTimestamp", "")
    timestamp_strategy: str = option("startingOffsetsByTimestampStrategy", "latest")
    ending_offsets: str = option("endingOffsets", "latest")
    ending_timestamp: int | None = option("endingTimestamp", None)
    ending_by_timestamp: str = option("endingOffsetsByTimestamp", "")
    group: str = option("group", "")
    commit_offsets: bool = option("commitOffsetsToBroker", False)
    fail_on_data_loss: bool = option("failOnDataLoss", True)
    offsets_max: int | None = option("maxOffsetsPerTrigger", None)
    offsets_min: int | None = option("minOffsetsPerTrigger", None)
    trigger_delay: str = option("maxTriggerDelay", "15m")
    bytes_max: int | None = option("maxBytesPerTrigger", None)
    partitions_min: int | None = option("minPartitions", None)
    partitions_max: int = option("maxPartitions", 32)
    partition_records_max: int | None = option("maxRecordsPerPartition", None)
    expression: str = option("subExpression", "*")
    expression_type: str = option("subExpressionType", "TAG")
    clock_step_ms: int = option("maxClockStepMs", 600_000)
    pull_count: int = option("pullBatchSize", 1024)
    pull_bytes: int = option("pullMaxBytes", 4 * 1024 * 1024)
    pull_timeout_ms: int = option("pullTimeoutMs", 10_000)
    read_from: str = option("readFrom", "master")
    metadata_ttl_ms: int = option("metadataCacheTtlMs", 10_000)
    retries: int = option("fetchOffset.numRetries", 3)
    retry_interval_ms: int = option("fetchOffset.retryIntervalMs", 100)
    outage_ms: int = option("outageTimeoutMs", 60_000)
    access_key: str = option("accessKey", "", secret=True)
    secret_key: str = option("secretKey", "", secret=True)
    security_token: str = option("securityToken", "", secret=True)
    tls: bool | None = option("tls", None)
    tls_file: str = option("tlsConfigFile", "")

    def __post_init__(self) -> None:
        check_name_servers(self.name_servers)
        credentials_of(self.access_key, self.secret_key, self.security_token)
        check_tls(self)
        self.check_rows()
        check_choice("readFrom", self.read_from, "master", "slave", "any")
        check_choice("subExpressionType", self.expression_type, "TAG", "SQL92")
        check_choice(
            "startingOffsetsByTimestampStrategy", self.timestamp_strategy, "latest", "error"
        )
        check_expression(self.expression_type, self.expression)
        for key, field in keys_of(type(self)).items():
            value = getattr(self, field.name)
            if isinstance(value, int) and value < (0 if key in _MAY_BE_ZERO else 1):
                raise ConfigError(f"{key}={value} is too small")
        self._check_topics()
        self._check_bounds()
        self._check_dependencies()

    def _check_topics(self) -> None:
        if sum(map(bool, (self.topic, self.topic_pattern, self.assign))) != 1:
            raise ConfigError("exactly one of topic, topicPattern and assign is required")
        if self.topic_pattern:
            compile_pattern(self.topic_pattern)
        if self.topic and not self.topics:
            raise ConfigError(f"topic={self.topic!r} names no topic")
        if self.assign and not self.assigned:
            raise ConfigError(f"assign={self.assign} names no queue")

    def _check_bounds(self) -> None:
        """Check the options about starting and ending offsets."""
        given = self.given_values()
        for several in (_BEGINNINGS, _ENDINGS):
            if len(both := [key for key in several if key in given]) > 1:
                raise ConfigError(f"only one of {' and '.join(both)} can be given")
        if self.starting_offsets not in ("", "earliest", "latest", "group"):
            parse_offsets("startingOffsets", self.starting_offsets)
        if self.ending_offsets == "earliest":
            raise ConfigError(
                "endingOffsets=earliest cannot be an end; use latest, or JSON with an offset "
                "for each queue"
            )
        if self.ending_offsets != "latest":
            ends = parse_offsets("endingOffsets", self.ending_offsets)
            if EARLIEST in ends.values():
                raise ConfigError("endingOffsets: -2, the earliest offset, cannot be an end")
        check_order(self.starting_offsets, self.ending_offsets)
        if self.starting_by_timestamp:
            parse_times("startingOffsetsByTimestamp", self.starting_by_timestamp)
        if self.ending_by_timestamp:
            parse_times("endingOffsetsByTimestamp", self.ending_by_timestamp)
        start, end = self.starting_timestamp, self.ending_timestamp
        if start is not None and end is not None and start > end:
            raise ConfigError("startingTimestamp is later than endingTimestamp")

    def _check_dependencies(self) -> None:
        """Check that no option lacks another one that it depends on."""
        given = self.given_values()
        if self.starting_offsets == "group" and not self.group:
            raise ConfigError("startingOffsets=group needs the option group")
        if self.commit_offsets and not self.group:
            raise ConfigError("commitOffsetsToBroker needs the option group")
        if (self.offsets_min or 0) > (self.offsets_max or self.offsets_min or 0):
            raise ConfigError("minOffsetsPerTrigger is more than maxOffsetsPerTrigger")
        parse_duration("maxTriggerDelay", self.trigger_delay)
        if "maxTriggerDelay" in given and self.offsets_min is None:
            raise ConfigError(
                "maxTriggerDelay needs minOffsetsPerTrigger: otherwise no batch waits"
            )
        if "startingOffsetsByTimestampStrategy" in given and not set(_BEGINNINGS[1:]) & set(given):
            raise ConfigError(
                "startingOffsetsByTimestampStrategy needs startingTimestamp or "
                "startingOffsetsByTimestamp"
            )
        if "maxClockStepMs" in given and not self.takes_filters:
            raise ConfigError("maxClockStepMs needs filterPushdown=once: nothing else uses it")

    def check_batch(self) -> None:
        """Check the options of a batch query, which reads once and to the end.

        Raises:
            ConfigError: An option is only for streams.
        """
        for key in self.given_values():
            if key in _FOR_STREAMS:
                raise ConfigError(f"{key} is for streams: a batch reads everything at once")
        if self.starting_offsets == "latest":
            raise ConfigError("startingOffsets=latest reads nothing in a batch")

    def check_stream(self) -> None:
        """Check the options of a stream.

        Raises:
            ConfigError: An option is only for batches.
        """
        for key in self.given_values():
            if key in _ENDINGS:
                raise ConfigError(f"a stream has no end: {key} is for batches")
        if self.takes_filters:
            raise ConfigError("filterPushdown is for batches: Spark offers no filters to streams")

    @property
    def topics(self) -> list[str]:
        """The topics listed by the option topic."""
        return [name.strip() for name in self.topic.split(",") if name.strip()]

    @property
    def is_filtered(self) -> bool:
        """Whether brokers filter messages."""
        return self.expression_type != "TAG" or self.expression.strip() not in ("", "*")

    @property
    def assigned(self) -> list[QueueKey]:
        """The queues listed by the option assign."""
        if not self.assign:
            return []
        value = parse_json("assign", self.assign)
        try:
            return [
                QueueKey(str(topic), str(broker), int(queue))
                for topic, brokers in value.items()
                for broker, queues in brokers.items()
                for queue in queues
            ]
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(
                f'assign must look like {{"Topic": {{"broker-a": [0, 1]}}}}, not {self.assign}'
            ) from None

    @property
    def trigger_delay_seconds(self) -> float:
        """The time that a batch may wait for enough messages."""
        return parse_duration("maxTriggerDelay", self.trigger_delay)

    def given_values(self) -> dict[str, str]:
        """Return the options that differ from their defaults, as texts for Spark."""
        return {
            key: format_value(getattr(self, field.name))
            for key, field in keys_of(type(self)).items()
            if getattr(self, field.name) != field.default
        }

    def selects(self, queue: QueueKey) -> bool:
        """Return whether the options select a queue."""
        if self.assign:
            return queue in self.assigned
        return self.matches(queue.topic) if self.topic_pattern else queue.topic in self.topics

    def matches(self, topic: str) -> bool:
        """Return whether the pattern matches a topic."""
        return compile_pattern(self.topic_pattern).fullmatch(topic) is not None


_MAY_BE_ZERO: Final = frozenset(
    {
        "maxPartitions",
        "startingTimestamp",
        "endingTimestamp",
        "commitOffsetsToBroker",
        "failOnDataLoss",
        "maxClockStepMs",
        "metadataCacheTtlMs",
        "readDecoded",
        "tls",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "outageTimeoutMs",
    }
)


def describe_options(options: object) -> str:
    """Return options as text, without secrets and without defaults."""
    texts = []
    for key, field in keys_of(type(options)).items():
        value = getattr(options, field.name)
        if value != field.default:
            texts.append(f"{key}={'***' if field.metadata['secret'] else value}")
    return ", ".join(texts)


class HasCredentials(Protocol):
    """Options that include credentials."""

    @property
    def access_key(self) -> str:
        """The name of the user."""

    @property
    def secret_key(self) -> str:
        """The secret of the user and the broker."""

    @property
    def security_token(self) -> str:
        """The token of temporary credentials."""


def find_credentials(options: HasCredentials) -> Credentials | None:
    """Return the credentials in the options, or else in the environment.

    Raises:
        ConfigError: A part of them is missing.
    """
    given = credentials_of(options.access_key, options.secret_key, options.security_token)
    return given or environment_credentials()


def with_credentials(options: K) -> K:
    """Return options that include the credentials, for tasks that run in another environment."""
    keys = find_credentials(options)
    if keys is None:
        return options
    return replace_options(
        options,
        access_key=keys.access_key,
        secret_key=keys.secret_key,
        security_token=keys.security_token or "",
    )


def refuse_bounds(options: SourceOptions, why: str) -> None:
    """Check that no starting or ending offsets are given, for jobs that choose them.

    Raises:
        ConfigError: Such an option was given.
    """
    for key in options.given_values():
        if key.startswith(("starting", "ending")):
            raise ConfigError(f"{key} cannot be used here: {why}")


def fix_offsets(options: SourceOptions, start: Offsets, end: Offsets) -> SourceOptions:
    """Return options that read exactly these offsets, even if queues are added later."""
    queues: dict[str, dict[str, list[int]]] = {}
    for queue in sorted(start):
        queues.setdefault(queue.topic, {}).setdefault(queue.broker, []).append(queue.queue_id)
    return replace_options(
        options,
        topic="",
        topic_pattern="",
        assign=json.dumps(queues),
        starting_offsets=json.dumps(nest_offsets(start)),
        ending_offsets=json.dumps(nest_offsets(end)),
    )


def replace_options(options: T, **changes: Any) -> T:
    """Return options with some of them changed."""
    return dataclasses.replace(options, **changes)  # type: ignore[type-var]
