"""The monitoring of one broker: its metrics, its health, and the port that serves both."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from rocketpost.broker.request_times import RequestTimes
from rocketpost.model.histogram import Histogram
from rocketpost.server.context import BrokerContext
from rocketpost.server.metrics.collector import BrokerMetrics, DiskUse, Reception
from rocketpost.server.metrics.endpoint import MetricsEndpoint, Readiness
from rocketpost.server.metrics.exposition import Family, Writer, histogram, label_text
from rocketpost.server.metrics.readiness import DiskWatch, log_problems
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.settings.metrics import MetricsConfig, MetricsExporter, parse_labels
from rocketpost.server.term import Term
from rocketpost.transport.room import Room

if TYPE_CHECKING:
    from rocketpost.server.metrics.otlp import OtlpExport

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0
_DELAY_SECONDS: Final = 0.25
_DELAY_BOUNDS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class Monitor:
    """Serves the metrics and the health of a broker, from before its store is open.

    Does nothing unless the settings ask for it. Owned by the loop.

    Args:
        config: The settings.
        term: Returns the broker's current term.
        name_servers: Returns the addresses of the name servers.
        dispatcher: Serves requests, which are measured.
        room: Limits of all connections together.
    """

    def __init__(
        self,
        config: MetricsConfig,
        *,
        term: Callable[[], Term],
        name_servers: Callable[[], Sequence[str]],
        dispatcher: Dispatcher,
        room: Room,
    ) -> None:
        self._config = config
        self._delays = Histogram(_DELAY_BOUNDS_S)
        self._reception = Reception(RequestTimes(now=time.monotonic), dispatcher.pools, room)
        if self.is_on:
            dispatcher.times = self._reception.times
        self._term = term
        self._name_servers = name_servers
        self._endpoint = MetricsEndpoint(
            slices=self._slices, readiness=self.readiness, now=time.monotonic
        )
        self._context: BrokerContext | None = None
        self._metrics: BrokerMetrics | None = None
        self._watch = DiskWatch(flush_ms=0)
        self._disk = DiskUse(0, 0)
        self._export: OtlpExport | None = None
        self._reported: set[str] = set()

    @property
    def port(self) -> int:
        """The bound port."""
        return self._endpoint.port

    @property
    def is_on(self) -> bool:
        """Whether the settings ask for metrics."""
        return self._config.metrics_exporter is not MetricsExporter.DISABLE

    async def start(self) -> None:
        """Open the port, or prepare to send to a collector, if the settings ask for that.

        Raises:
            ConfigError: The address cannot be bound, or OpenTelemetry is not installed.
        """
        if self._config.metrics_exporter is MetricsExporter.OTLP_GRPC:
            from rocketpost.server.metrics.otlp import OtlpExport

            self._export = OtlpExport(self._config, self._collect)
        elif self.is_on:
            await self._endpoint.start(self._config.metrics_host, self._config.metrics_port)

    def use(self, context: BrokerContext) -> None:
        """Show the state of a broker whose store is open now."""
        self._context = context
        context.health.reasons = lambda: self.readiness().reasons
        if self.is_on:
            context.stats.times = self._reception.times
        self._metrics = BrokerMetrics(context, term=self._term, reception=self._reception)
        self._watch = DiskWatch(flush_ms=context.store_config.flush_interval_ms)

    async def run(self) -> None:
        """Look at the disk and the event loop, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_loop())
            if self._export is not None:
                group.create_task(self._export.run())
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                if self._context is not None:
                    await self._look(self._context)

    async def _watch_loop(self) -> None:
        """Measure by how much timers are late: all requests wait at least that long."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + _DELAY_SECONDS
            await asyncio.sleep(_DELAY_SECONDS)
            self._delays.add(max(0.0, loop.time() - due))

    async def stop(self) -> None:
        """Close the port, or send metrics for the last time."""
        await self._endpoint.stop()
        if self._export is not None:
            await self._export.stop()

    def readiness(self) -> Readiness:
        """Return whether clients can be served."""
        if self._context is None:
            return Readiness(["the store is being opened"])
        if type(self._term()) is Term:
            return Readiness(["the broker is changing its role"])
        stuck_ms = self._watch.stuck_ms(self._context.clock.now_ms())
        reasons = log_problems(self._context.store, stuck_ms=stuck_ms)
        name_servers = self._name_servers()
        if name_servers and not self._term().registered:
            reasons.append(f"no name server knows the broker: {', '.join(name_servers)}")
        return Readiness(reasons)

    async def _look(self, context: BrokerContext) -> None:
        self._watch.look(context.store, context.clock.now_ms())
        try:
            usage = await asyncio.to_thread(shutil.disk_usage, context.store.layout.commit_log)
        except OSError as error:
            logger.warning("disk usage unknown: reason=%s", error)
        else:
            self._disk = DiskUse(usage.used, usage.free)

    def _collect(self) -> tuple[str, Iterator[Family]]:
        """Return the labels that all families share, and the families."""
        if self._metrics is None:
            return "", iter(())
        more = label_text(parse_labels(self._config.metrics_labels))
        common = self._metrics.common_labels
        is_ready = self.readiness().is_ready
        own = histogram(
            "rocketpost_event_loop_delay_seconds",
            "Time by which timers of the event loop are late.",
            [("", self._delays)],
            bounds=_DELAY_BOUNDS_S,
        )
        found = self._metrics.families(disk=self._disk, is_ready=is_ready)
        return f"{common},{more}" if more else common, chain([own], found)

    def _slices(self, is_open: bool) -> Iterator[bytes]:
        common, families = self._collect()
        series_max = self._config.metrics_series_max
        writer = Writer(common=common, series_max=series_max, is_open=is_open)
        yield from writer.slices(families)
        for name in writer.overflows.keys() - self._reported:
            self._reported.add(name)
            logger.warning(
                "a metric has more series than metricsOtelCardinalityLimit: name=%s limit=%s",
                name,
                series_max,
            )
