"""Settings of the metrics endpoint."""

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


class MetricsExporter(enum.Enum):
    """Way in which metrics leave the broker."""

    DISABLE = enum.auto()
    PROM = enum.auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig(AccessConfig):
    """Settings of the HTTP port that Prometheus scrapes and health checks ask.

    RocketMQ opens the port at ``brokerIP1``. Here it is open to this machine alone unless
    ``metricsPromExporterHost`` says otherwise, since it shows the names of all topics and groups.
    """

    metrics_exporter: MetricsExporter = option("metricsExporterType", MetricsExporter.DISABLE)
    metrics_port: int = option("metricsPromExporterPort", 5557)
    metrics_host: str = option("metricsPromExporterHost", "127.0.0.1")
    metrics_labels: str = option("metricsLabel", "")
    metrics_series_max: int = option("metricsOtelCardinalityLimit", 50_000)

    def check_metrics(self) -> None:
        """Check the values; called by ``__post_init__`` of the class that inherits this one.

        Raises:
            ConfigError: A value is invalid.
        """
        if not 0 <= self.metrics_port <= _PORT_MAX:
            raise ConfigError(f"metricsPromExporterPort must be 0 to {_PORT_MAX}")
        if not 1 <= self.metrics_series_max <= _SERIES_MAX:
            raise ConfigError(f"metricsOtelCardinalityLimit must be 1 to {_SERIES_MAX}")
        parse_labels(self.metrics_labels)


def parse_labels(text: str) -> dict[str, str]:
    """Read the pairs of ``metricsLabel``, as in ``zone:a,env:prod``.

    Raises:
        ConfigError: A pair has no colon, or its name is not a label name.
    """
    labels = {}
    for pair in filter(None, (each.strip() for each in text.split(","))):
        name, colon, value = pair.partition(":")
        if not colon or not _LABEL_NAME.fullmatch(name):
            raise ConfigError(
                f"metricsLabel={text}: {pair!r} is not name:value, with letters, digits and "
                "underscores in the name"
            )
        labels[name] = value
    return labels
