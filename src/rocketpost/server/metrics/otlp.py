"""Metrics sent to an OpenTelemetry collector (``metricsExporterType=OTLP_GRPC``).

The families are those that Prometheus would get, under the same names. They are collected on the
event loop in slices, then converted and sent in a thread. OpenTelemetry is imported only here, and
only if the settings ask for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from rocketpost import VERSION
from rocketpost.errors import ConfigError
from rocketpost.server.metrics.exposition import Family, MetricKind, Sample, read_label_text
from rocketpost.server.settings.metrics import MetricsConfig

logger = logging.getLogger(__name__)

_SCOPE: Final = "broker-meter"
_HTTP: Final = "http://"


class Collected(NamedTuple):
    """One family, with its samples read."""

    family: Family
    samples: list[Sample]


class OtlpExport:
    """Sends metrics at regular times. Owned by the loop.

    Args:
        config: The settings.
        collect: Returns all families, and the labels that all of them share.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(
        self, config: MetricsConfig, collect: Callable[[], tuple[str, Iterator[Family]]]
    ) -> None:
        self._config = config
        self._collect = collect
        self._exporter = _make_exporter(config)
        self._converter = _Converter(is_delta=config.metrics_in_delta)
        self._is_failing = False
        self.sent_count = 0
        """Number of times that metrics were sent."""

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await asyncio.sleep(self._config.metrics_push_interval_ms / 1000)
            await self.send()

    async def send(self) -> None:
        """Collect and send once; a failure is logged, and the next time everything is sent."""
        common, families = self._collect()
        found = []
        for family in families:
            found.append(Collected(family, list(family.samples)))
            await asyncio.sleep(0)  # lets requests in between
        if not found:
            return  # the store is not open yet
        is_sent = await asyncio.to_thread(self._send_blocking, common, found)
        if is_sent:
            self.sent_count += 1
        elif not self._is_failing:
            logger.warning("metrics not sent: target=%s", self._config.metrics_push_target)
        self._is_failing = not is_sent

    async def stop(self) -> None:
        """Send once more, and close the connection."""
        await self.send()
        await asyncio.to_thread(self._exporter.shutdown)

    def _send_blocking(self, common: str, found: list[Collected]) -> bool:
        data = self._converter.convert(common, found, now_ns=time.time_ns())
        result = self._exporter.export(data, timeout_millis=self._config.metrics_push_timeout_ms)
        return bool(result.name == "SUCCESS")


def _make_exporter(config: MetricsConfig) -> Any:
    target = config.metrics_push_target
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise ConfigError(
            f"metricsExporterType=OTLP_GRPC needs OpenTelemetry ({error}): "
            "pip install 'rocketpost[otlp]'"
        ) from None
    return OTLPMetricExporter(
        endpoint=target.removeprefix(_HTTP),
        insecure=target.startswith(_HTTP),  # as in RocketMQ, everything else is TLS
        headers=config.push_headers,
        timeout=config.metrics_push_timeout_ms / 1000,
        max_export_batch_size=config.metrics_push_points_max,
    )


class _Converter:
    """Turns families into OpenTelemetry's values. Used by one thread at a time.

    Args:
        is_delta: Whether counters and histograms are sent as their growth since the last time.
    """

    def __init__(self, *, is_delta: bool) -> None:
        self._is_delta = is_delta
        self._began_ns = time.time_ns()
        self._before: dict[tuple[str, str], tuple[float, ...]] = {}
        self._now: dict[tuple[str, str], tuple[float, ...]] = {}

    def convert(self, common: str, found: list[Collected], *, now_ns: int) -> Any:
        """Return the values of all families, with the common labels as the resource."""
        from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        shared = read_label_text(common)
        shared.pop("otel_scope_name", None)
        metrics = [
            metric for each in found if (metric := self._metric(each, shared, now_ns)) is not None
        ]
        if self._is_delta:
            self._began_ns = now_ns
            self._before, self._now = self._now, {}  # without the series that are deleted
        scope = ScopeMetrics(InstrumentationScope(_SCOPE, VERSION), metrics, "")
        resource = Resource({"service.name": "rocketpost", "service.version": VERSION, **shared})
        return MetricsData([ResourceMetrics(resource, [scope], "")])

    def _metric(self, collected: Collected, shared: dict[str, str], now_ns: int) -> Any:
        from opentelemetry.sdk.metrics import export

        family, samples = collected
        if not samples:
            return None
        temporality = (
            export.AggregationTemporality.DELTA
            if self._is_delta
            else export.AggregationTemporality.CUMULATIVE
        )
        if family.kind is MetricKind.HISTOGRAM:
            data: Any = export.Histogram(
                [self._distribution(family, part, shared, now_ns) for part in _series(collected)],
                temporality,
            )
        else:
            is_counter = family.kind is MetricKind.COUNTER
            points = [
                export.NumberDataPoint(
                    shared | read_label_text(sample.labels),
                    self._began_ns if is_counter else 0,
                    now_ns,
                    self._growth(family, sample.labels, (sample.value,))[0]
                    if is_counter
                    else sample.value,
                )
                for sample in samples
            ]
            data = (
                export.Sum(points, temporality, is_monotonic=True)
                if is_counter
                else export.Gauge(points)
            )
        return export.Metric(family.name, family.help, "", data)

    def _distribution(
        self, family: Family, series: list[Sample], shared: dict[str, str], now_ns: int
    ) -> Any:
        from opentelemetry.sdk.metrics.export import HistogramDataPoint

        *buckets, total, _ = series
        labels = read_label_text(total.labels)
        bounds = [float(read_label_text(each.labels)["le"]) for each in buckets[:-1]]
        sums = [each.value for each in buckets]
        counts = [after - before for before, after in zip([0, *sums], sums, strict=False)]
        *counts, value = self._growth(family, total.labels, (*counts, total.value))
        return HistogramDataPoint(
            attributes=shared | labels,
            start_time_unix_nano=self._began_ns,
            time_unix_nano=now_ns,
            count=int(sum(counts)),
            sum=value,
            bucket_counts=[int(count) for count in counts],
            explicit_bounds=bounds,
            min=0.0,
            max=0.0,
        )

    def _growth(self, family: Family, labels: str, values: tuple[float, ...]) -> tuple[float, ...]:
        """Return the values to send: themselves, or their growth since the last time."""
        if not self._is_delta:
            return values
        key = family.name, labels
        before = self._before.get(key, (0,) * len(values))
        self._now[key] = values
        if values[0] < before[0]:  # the series was deleted and created again
            return values
        return tuple(after - past for past, after in zip(before, values, strict=True))


def _series(collected: Collected) -> Iterator[list[Sample]]:
    """Yield the samples of each histogram: buckets, sum, count."""
    family, samples = collected
    for at in range(0, len(samples), family.width):
        yield samples[at : at + family.width]
