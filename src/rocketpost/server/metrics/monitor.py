"""The monitoring of one broker: its metrics, its health, and the port that serves both."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rocketpost.server.context import BrokerContext
from rocketpost.server.metrics.collector import BrokerMetrics, DiskUse
from rocketpost.server.metrics.endpoint import MetricsEndpoint, Readiness
from rocketpost.server.metrics.exposition import Writer, label_text
from rocketpost.server.metrics.readiness import DiskWatch, log_problems
from rocketpost.server.settings.metrics import MetricsConfig, MetricsExporter, parse_labels
from rocketpost.server.term import Term

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0


class Monitor:
    """Serves the metrics and the health of a broker, from before its store is open.

    Does nothing unless the settings ask for it. Owned by the loop.

    Args:
        config: The settings.
        term: Returns the broker's current term.
        name_servers: Returns the addresses of the name servers.
    """

    def __init__(
        self,
        config: MetricsConfig,
        *,
        term: Callable[[], Term],
        name_servers: Callable[[], Sequence[str]],
    ) -> None:
        self._config = config
        self._term = term
        self._name_servers = name_servers
        self._endpoint = MetricsEndpoint(slices=self._slices, readiness=self.readiness)
        self._context: BrokerContext | None = None
        self._metrics: BrokerMetrics | None = None
        self._watch = DiskWatch(flush_ms=0)
        self._disk = DiskUse(0, 0)
        self._reported: set[str] = set()

    @property
    def port(self) -> int:
        """The bound port."""
        return self._endpoint.port

    @property
    def is_on(self) -> bool:
        """Whether the settings ask for it."""
        return self._config.metrics_exporter is MetricsExporter.PROM

    async def start(self) -> None:
        """Open the port, if the settings ask for that.

        Raises:
            ConfigError: The address cannot be bound.
        """
        if self.is_on:
            await self._endpoint.start(self._config.metrics_host, self._config.metrics_port)

    def use(self, context: BrokerContext) -> None:
        """Show the state of a broker whose store is open now."""
        self._context = context
        self._metrics = BrokerMetrics(context, term=self._term)
        self._watch = DiskWatch(flush_ms=context.store_config.flush_interval_ms)

    async def run(self) -> None:
        """Look at the disk every second, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self._context is not None:
                await self._look(self._context)

    async def stop(self) -> None:
        """Close the port."""
        await self._endpoint.stop()

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

    def _slices(self, is_open: bool) -> Iterator[bytes]:
        if self._metrics is None:
            return
        more = label_text(parse_labels(self._config.metrics_labels))
        common = self._metrics.common_labels
        writer = Writer(
            common=f"{common},{more}" if more else common,
            series_max=self._config.metrics_series_max,
            is_open=is_open,
        )
        is_ready = self.readiness().is_ready
        yield from writer.slices(self._metrics.families(disk=self._disk, is_ready=is_ready))
        for name in writer.overflows.keys() - self._reported:
            self._reported.add(name)
            logger.warning(
                "a metric has more series than metricsOtelCardinalityLimit: name=%s limit=%s",
                name,
                self._config.metrics_series_max,
            )
