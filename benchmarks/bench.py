"""What the benchmarks share: figures with targets, CPU counters, an echo server, topics."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import Run, pipeline
from rich.console import Console

from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import Cluster

HERE = Path(__file__).parent
BODY = b"x" * 1024
TOPIC = "Bench"

LARGE_FILES = {
    "mappedFileSizeCommitLog": str(1024**3),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
}


@dataclass(slots=True)
class Figure:
    """One measured figure and its target."""

    name: str
    value: float
    unit: str
    target: str
    met: bool | None
    note: str = ""


class Bench:
    """Collects figures; ``scale`` shrinks or grows every run."""

    def __init__(self, scale: float, rounds: int) -> None:
        self.scale = scale
        self.rounds = rounds
        self.figures: list[Figure] = []
        self.console = Console() if sys.stdout.isatty() else Console(width=160)

    def count(self, messages: int) -> int:
        """Return a number of messages to scale."""
        return max(2000, int(messages * self.scale))

    def add(
        self, name: str, value: float, unit: str, *, most: float | None = None,
        least: float | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """Note a figure and whether it meets its target."""
        met = None
        target = ""
        if most is not None:
            target, met = f"<= {most:g}", value <= most
        if least is not None:
            target, met = f">= {least:g}", value >= least
        self.figures.append(Figure(name, round(value, 3), unit, target, met, note))
        self.console.print(f"  {name}: {value:.2f} {unit} {note}")


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process with all its threads, in nanosecond steps."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


@contextlib.contextmanager
def echo_server() -> Iterator[tuple[int, int]]:
    """Run the echo server; yields its pid and port."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "echo_server.py")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline().split()[1])
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


async def cost(
    pid: int, port: int, frames: Callable[[int], bytes], *, count: int, **more: Any
) -> tuple[float, Run]:
    """Return the server's CPU microseconds per request, and the run."""
    before = cpu_of(pid)
    run = await pipeline(port, frames, count=count, **more)
    if run.failures:
        raise SystemExit(f"{run.failures} of {run.messages} requests failed")
    return (cpu_of(pid) - before) / run.messages * 1e6, run


def port_of(cluster: Cluster) -> int:
    """Return the broker's port."""
    return int(cluster.broker_addresses[0].rpartition(":")[2])


async def create_topic(cluster: Cluster, topic: str, queues: int) -> None:
    """Create a topic on the broker."""
    async with AdminClient(name_servers=cluster.addresses) as admin:
        config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
        await admin.topics.create(cluster.broker_addresses[0], config)
