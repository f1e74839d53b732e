"""Options of the sink, and its columns."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass
from typing import Final

from rocketpost.client.credentials import credentials_of
from rocketpost.errors import ConfigError
from rocketpost.settings import option
from rocketpost.spark.body_options import BodyOptions, check_choice
from rocketpost.spark.option_checks import check_name_servers
from rocketpost.spark.tls_options import check_tls


class Delivery(enum.Enum):
    """The guarantee for rows of a task, batch or driver that runs twice."""

    AT_LEAST_ONCE = "atLeastOnce"
    EXACTLY_ONCE = "exactlyOnce"
    EFFECTIVELY_ONCE = "effectivelyOnce"


COLUMNS: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string",),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "brokerName": ("string",),
    "queueId": ("int",),
    "flag": ("int",),
    "delayLevel": ("int",),
    "deliverTimeMs": ("bigint",),
    "priority": ("int",),
    "producerId": ("string",),
    "sequence": ("bigint",),
}
"""The columns of the sink, and the types that each may have."""

_SINK_ID_DIGITS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions(BodyOptions):
    """Options of the sink ``format("rocketmq")``."""

    name_servers: str = option("nameServer", "")
    topic: str = option("topic", "")
    producer_group: str = option("producerGroup", "SPARK_SINK")
    delivery: str = option("delivery", "atLeastOnce")
    sink_id: str = option("sinkId", "")
    checkpoint: str = option("checkpointLocation", "")
    epoch: int | None = option("epoch", None)
    send_timeout_ms: int = option("sendTimeoutMs", 30_000)
    batch_bytes: int = option("batchBytes", 1024 * 1024)
    in_flight: int = option("inFlight", 4)
    message_bytes_max: int = option("maxMessageBytes", 4 * 1024 * 1024)
    on_too_large: str = option("onTooLarge", "error")
    on_forgotten: str = option("onForgotten", "error")
    rate: int | None = option("rateLimitPerTask", None)
    scan_since: int | None = option("scanSince", None)
    access_key: str = option("accessKey", "", secret=True)
    secret_key: str = option("secretKey", "", secret=True)
    security_token: str = option("securityToken", "", secret=True)
    tls: bool | None = option("tls", None)
    tls_file: str = option("tlsConfigFile", "")

    def __post_init__(self) -> None:
        check_name_servers(self.name_servers)
        credentials_of(self.access_key, self.secret_key, self.security_token)
        check_tls(self)
        check_choice("delivery", self.delivery, *(kind.value for kind in Delivery))
        check_choice("onTooLarge", self.on_too_large, "error", "skip")
        check_choice("onForgotten", self.on_forgotten, "error", "skip")
        self.check_bodies()
        if self.body_format == "json" and (self.body_schema or self.body_schema_file):
            raise ConfigError(
                "bodyFormat=json writes the columns by their own types; leave bodySchema out"
            )
        for key, value in (
            ("sendTimeoutMs", self.send_timeout_ms),
            ("batchBytes", self.batch_bytes),
            ("inFlight", self.in_flight),
            ("maxMessageBytes", self.message_bytes_max),
            ("rateLimitPerTask", 1 if self.rate is None else self.rate),
            ("scanSince", 1 if self.scan_since is None else self.scan_since),
        ):
            if value < 1:
                raise ConfigError(f"{key}={value} is too small")
        if self.epoch is not None and self.epoch < 0:
            raise ConfigError(f"epoch={self.epoch} is not the number of a batch")
        if self.scan_since is not None and not self.is_marked:
            raise ConfigError(
                "scanSince needs delivery=effectivelyOnce: no other delivery searches for rows"
            )
        if self.on_forgotten != "error" and not self.is_exactly_once:
            raise ConfigError(
                "onForgotten needs delivery=exactlyOnce: brokers remember no other rows"
            )

    @property
    def is_exactly_once(self) -> bool:
        """Whether brokers store a repeated row only once."""
        return self.delivery == Delivery.EXACTLY_ONCE.value

    @property
    def is_marked(self) -> bool:
        """Whether tasks search for stored rows before they send."""
        return self.delivery == Delivery.EFFECTIVELY_ONCE.value

    @property
    def is_named(self) -> bool:
        """Whether the options identify the sink."""
        return bool(self.sink_id or self.checkpoint)

    @property
    def sink(self) -> str:
        """The name under which brokers remember the messages of this sink.

        Raises:
            ConfigError: The options do not identify the sink.
        """
        self.check_sink_name()
        return self.sink_id or derive_sink_name(self.checkpoint)

    def check_sink_name(self) -> None:
        """Check that the options identify the sink, so that a second run is recognized.

        Raises:
            ConfigError: They do not.
        """
        if not self.is_named:
            raise ConfigError(
                f"delivery={self.delivery} needs sinkId, or checkpointLocation given by "
                f".option(){'' if self.is_marked else ', or the columns producerId and sequence'}: "
                "they identify a repeated run"
            )


def derive_sink_name(checkpoint: str) -> str:
    """Return the name of a sink that is identified by its checkpoint."""
    return hashlib.sha256(checkpoint.encode()).hexdigest()[:_SINK_ID_DIGITS]


def check_columns(columns: list[tuple[str, str]], options: SinkOptions) -> None:
    """Check the columns of a frame.

    Raises:
        ConfigError: A column is missing, unknown or of another type.
    """
    given = dict(columns)
    known = {name.lower(): name for name in COLUMNS}
    for name, kind in columns:
        wanted = COLUMNS.get(known.get(name.lower(), ""))
        if wanted is None:
            raise ConfigError(
                f"the sink cannot use the column {name}; its columns are {', '.join(COLUMNS)}"
            )
        if options.body_format == "string" and name.lower() == "body":
            wanted = ("string",)
        if kind not in wanted:
            raise ConfigError(f"the column {name} is {kind}; it must be {' or '.join(wanted)}")
    names = {name.lower() for name in given}
    if "body" not in names:
        raise ConfigError("the column body is required")
    if "topic" not in names and not options.topic:
        raise ConfigError("a topic is required, as an option or as a column")
    if ("brokername" in names) != ("queueid" in names):
        raise ConfigError("brokerName and queueId must be given together: they name a queue")
    if ("producerid" in names) != ("sequence" in names):
        raise ConfigError("producerId and sequence must be given together: they number a message")
    if "sequence" in names and not (options.is_exactly_once or options.is_marked):
        raise ConfigError("producerId and sequence need delivery=exactlyOnce or effectivelyOnce")
    if options.is_marked and (delays := names & {"delaylevel", "delivertimems"}):
        raise ConfigError(
            "delivery=effectivelyOnce cannot find rows that are still waiting to be due; "
            f"leave out {known[min(delays)]}, or use another delivery"
        )
