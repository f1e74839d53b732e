"""Settings of metrics that are sent to a collector, and what the collector gets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.settings.broker import broker_settings
from rocketpost.testing.waiting import until

from .harness import broker

grpc = pytest.importorskip("grpc")
from opentelemetry.proto.collector.metrics.v1 import (  # noqa: E402
    metrics_service_pb2 as messages,
)
from opentelemetry.proto.collector.metrics.v1 import (  # noqa: E402
    metrics_service_pb2_grpc as service,
)


class Collector(service.MetricsServiceServicer):  # type: ignore[misc,name-defined]
    """A collector that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.status = grpc.StatusCode.OK
        self.address = ""

    def Export(self, request: Any, context: Any) -> Any:
        if self.status is not grpc.StatusCode.OK:
            context.abort(self.status, "no")
        self.requests.append(request)
        self.headers.append(dict(context.invocation_metadata()))
        return messages.ExportMetricsServiceResponse()

    @property
    def metrics(self) -> list[Any]:
        """All metrics that have arrived, in their order."""
        return [
            metric
            for request in self.requests
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def values(self, name: str, **labels: str) -> list[float]:
        """Return the values of a metric with these labels, in the order of their arrival."""
        return [
            point.as_int or point.as_double
            for metric in self.metrics
            if metric.name == name
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points
            if labels.items() <= _labels(point).items()
        ]


def _labels(point: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in point.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    service.add_MetricsServiceServicer_to_server(found, server)
    found.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield found
    server.stop(0).wait()


def settings(collector: Collector, **more: object) -> dict[str, object]:
    return {
        "metricsExporterType": "OTLP_GRPC",
        "metricsGrpcExporterTarget": collector.address,
        "metricGrpcExporterIntervalInMills": 50,
        **more,
    }


@pytest.mark.slow
async def test_metricsGrpcExporterTarget(tmp_path: Path, collector: Collector) -> None:
    async with broker(tmp_path, **settings(collector, metricsLabel="zone:a")) as peer:
        await peer.topic("T")
        for _ in range(3):
            await peer.send("T")
        await until(lambda: 3 in collector.values("rocketmq_messages_in_total", topic="T"))
    (size,) = [
        point
        for metric in collector.metrics[::-1]
        if metric.name == "rocketmq_message_size"
        for point in metric.histogram.data_points
        if _labels(point)["topic"] == "T"
    ][:1]
    assert (size.count, list(size.bucket_counts)) == (3, [3, 0, 0, 0, 0, 0, 0])
    assert size.explicit_bounds[0] == 1024
    assert _labels(size)["zone"] == "a"
    assert _labels(size)["node_type"] == "broker"
    resource = collector.requests[-1].resource_metrics[0].resource
    assert _labels(resource)["service.name"] == "rocketpost"
    with pytest.raises(ConfigError, match="needs metricsGrpcExporterTarget"):
        broker_settings({"metricsExporterType": "OTLP_GRPC"})


@pytest.mark.slow
async def test_metricsGrpcExporterHeader(tmp_path: Path, collector: Collector) -> None:
    header = "Authorization:Bearer x,x-tenant:t"
    async with broker(tmp_path, **settings(collector, metricsGrpcExporterHeader=header)):
        await until(lambda: collector.headers)
    assert collector.headers[0]["authorization"] == "Bearer x"
    assert collector.headers[0]["x-tenant"] == "t"
    with pytest.raises(ConfigError, match="metricsGrpcExporterHeader"):
        broker_settings({"metricsGrpcExporterHeader": "no colon"})


@pytest.mark.slow
async def test_metricsInDelta(tmp_path: Path, collector: Collector) -> None:
    async with broker(tmp_path, **settings(collector, metricsInDelta="true")) as peer:
        await peer.topic("T")
        for _ in range(5):
            await peer.send("T")
            await asyncio.sleep(0)
    assert sum(collector.values("rocketmq_messages_in_total", topic="T")) == 5
    (metric,) = [each for each in collector.metrics if each.name == "rocketmq_messages_in_total"][
        :1
    ]
    assert metric.sum.aggregation_temporality == 1  # delta


@pytest.mark.slow
async def test_metricsExportBatchMaxDataPoints(tmp_path: Path, collector: Collector) -> None:
    async with broker(tmp_path, **settings(collector, metricsExportBatchMaxDataPoints=7)):
        await until(lambda: len(collector.requests) > 2)
    for request in collector.requests:
        points = 0
        for metric in request.resource_metrics[0].scope_metrics[0].metrics:
            points += len(getattr(metric, metric.WhichOneof("data")).data_points)
        assert points <= 7


@pytest.mark.slow
async def test_metricGrpcExporterIntervalInMills(tmp_path: Path, collector: Collector) -> None:
    # An hour: only the broker's stop sends.
    slow = settings(collector, metricGrpcExporterIntervalInMills=3_600_000)
    async with broker(tmp_path, **slow) as peer:
        await peer.topic("T")
        assert not collector.requests
    assert collector.requests


@pytest.mark.slow
async def test_metricGrpcExporterTimeOutInMills(
    tmp_path: Path, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """A collector that refuses delays nothing for longer than this, and is tried again."""
    collector.status = grpc.StatusCode.UNAVAILABLE
    short = settings(collector, metricGrpcExporterTimeOutInMills=100)
    async with broker(tmp_path, **short) as peer:
        await until(lambda: "metrics not sent" in caplog.text)
        await peer.topic("T")
        collector.status = grpc.StatusCode.OK
        await until(lambda: collector.requests)
    for key in (
        "metricGrpcExporterTimeOutInMills",
        "metricGrpcExporterIntervalInMills",
        "metricsExportBatchMaxDataPoints",
    ):
        with pytest.raises(ConfigError, match=key):
            broker_settings({key: "0"})
