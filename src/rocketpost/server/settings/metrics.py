"""Settings of metrics: the port that serves them, or the collector that gets them."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.server.settings.access import AccessConfig
from rocketpost.settings import option

_PORT_MAX: Final = 65_535
_SERIES_MAX: Final = 1_000_000
_LABEL_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
USED_LABELS: Final = frozenset((
    "by", "cluster", "consume_mode", "consumer_group", "invocation_status", "is_long_polling",
    "is_retry", "is_system", "kernel", "lane", "language", "le", "member", "message_type",
    "node_id", "node_type", "otel_scope_name", "processor", "protocol_type", "put_status",
    "queue_id", "reason", "replica", "request_code", "response_code", "result",
    "revive_message_type", "role", "storage_medium", "storage_type", "topic", "version", "voter",
))  # fmt: skip
"""The labels that metrics of the broker have."""

_HEADER_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]+")


class MetricsExporter(enum.Enum):
    """Way in which metrics leave the broker."""

    DISABLE = enum.auto()
    PROM = enum.auto()
    OTLP_GRPC = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig(AccessConfig):
    """Settings of metrics: the HTTP port that Prometheus scrapes, or the collector that gets them.

    RocketMQ opens the port at ``brokerIP1``. Here it is open to this machine alone unless
    ``metricsPromExporterHost`` says otherwise, since it shows the names of all topics and groups.
    """

    metrics_exporter: MetricsExporter = option("metricsExporterType", MetricsExporter.DISABLE)
    metrics_port: int = option("metricsPromExporterPort", 5557)
    metrics_host: str = option("metricsPromExporterHost", "127.0.0.1")
    metrics_labels: str = option("metricsLabel", "")
    metrics_series_max: int = option("metricsOtelCardinalityLimit", 50_000)
    metrics_push_target: str = option("metricsGrpcExporterTarget", "")
    metrics_push_headers: str = option("metricsGrpcExporterHeader", "")
    metrics_push_timeout_ms: int = option("metricGrpcExporterTimeOutInMills", 3000)
    metrics_push_interval_ms: int = option("metricGrpcExporterIntervalInMills", 60_000)
    metrics_push_points_max: int = option("metricsExportBatchMaxDataPoints", 1000)
    metrics_in_delta: bool = option("metricsInDelta", False)

    @property
    def push_headers(self) -> dict[str, str]:
        """The headers of requests to a collector; gRPC wants small letters."""
        pairs = parse_labels(
            self.metrics_push_headers, key="metricsGrpcExporterHeader", names=_HEADER_NAME
        )
        return {name.lower(): value for name, value in pairs.items()}

    def check_metrics(self) -> None:
        """Check the values; called by ``__post_init__`` of the class that inherits this one.

        Raises:
            ConfigError: A value is invalid.
        """
        if not 0 <= self.metrics_port <= _PORT_MAX:
            raise ConfigError(f"metricsPromExporterPort must be 0 to {_PORT_MAX}")
        if not 1 <= self.metrics_series_max <= _SERIES_MAX:
            raise ConfigError(f"metricsOtelCardinalityLimit must be 1 to {_SERIES_MAX}")
        for key, number in (
            ("metricGrpcExporterTimeOutInMills", self.metrics_push_timeout_ms),
            ("metricGrpcExporterIntervalInMills", self.metrics_push_interval_ms),
            ("metricsExportBatchMaxDataPoints", self.metrics_push_points_max),
        ):
            if number < 1:
                raise ConfigError(f"{key} must be at least 1")
        if self.metrics_exporter is MetricsExporter.OTLP_GRPC and not self.metrics_push_target:
            raise ConfigError(
                "metricsExporterType=OTLP_GRPC needs metricsGrpcExporterTarget, the address of a "
                "collector such as http://collector:4317"
            )
        for name in parse_labels(self.metrics_labels):
            if name in USED_LABELS:
                raise ConfigError(
                    f"metricsLabel={self.metrics_labels}: metrics of the broker have a label "
                    f"{name} already; choose another name"
                )
            if name.startswith("__"):
                raise ConfigError(
                    f"metricsLabel={self.metrics_labels}: {name} begins with __, and Prometheus "
                    "drops such labels; choose another name"
                )
        _ = self.push_headers


def parse_labels(
    text: str, *, key: str = "metricsLabel", names: re.Pattern[str] = _LABEL_NAME
) -> dict[str, str]:
    """Read pairs of names and values, as in ``zone:a,env:prod``.

    Args:
        text: The value of a setting.
        key: The key of the setting.
        names: The form of a name.

    Raises:
        ConfigError: A pair has no colon, or its name has another form or is there twice.
    """
    labels = {}
    for pair in filter(None, (each.strip() for each in text.split(","))):
        name, colon, value = pair.partition(":")
        if not colon or not names.fullmatch(name):
            raise ConfigError(
                f"{key}={text}: {pair!r} is not name:value, with letters, digits and underscores "
                "in the name"
            )
        if name in labels:
            raise ConfigError(f"{key}={text}: {name} is there twice")
        labels[name] = value
    return labels
