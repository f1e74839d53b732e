"""A broker that serves metrics, and that stops or resumes to measure requests at each SIGUSR2.

    python benchmarks/switched_broker.py -c FILE

Two processes of one build differ by some percent, all their lives: it depends on where they have
their code and data in memory. One process that is switched compares the same code with itself.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import click

from rocketpost.server import broker
from rocketpost.server.context import BrokerContext
from rocketpost.server.main import broker_ready
from rocketpost.server.metrics import monitor
from rocketpost.server.process import run
from rocketpost.server.settings.broker import read_properties


class SwitchedMonitor(monitor.Monitor):
    """The monitoring of a broker, whose measurements of requests can be switched off."""

    def use(self, context: BrokerContext) -> None:
        """Show the state of a broker, and be switched from now on."""
        super().use(context)
        stats, times = context.stats, context.stats.times
        assert times is not None, "the settings do not ask for metrics"

        def switch() -> None:
            stats.times = times if stats.times is None else None

        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, switch)


@click.command()
@click.option("-c", "file", type=click.Path(path_type=Path), required=True)
def main(file: Path) -> None:
    """Run a broker that can be switched."""
    broker.Monitor = SwitchedMonitor  # type: ignore[misc]
    values = read_properties(file)
    raise SystemExit(run(lambda: broker.BrokerServer(values), ready=broker_ready))


if __name__ == "__main__":
    main()
