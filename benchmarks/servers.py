"""Servers under measurement: brokers of several builds, the echo server, and their CPU."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from builds import Build
from workloads import BROKER_NAME

from rocketpost.settings import format_properties
from rocketpost.testing.cluster import BROKER_READY
from rocketpost.testing.process import PROGRAM, ServerProcess, free_port

HERE: Final = Path(__file__).parent

STORE_FILES: Final = {
    "mappedFileSizeCommitLog": str(256 * 1024**2),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "5000000",
}
"""The file sizes of every broker, smaller than the defaults: files are allocated in advance."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running server."""

    name: str
    pid: int
    port: int
    is_echo: bool = False

    def memory_mb(self) -> float:
        """Return the anonymous memory of the process."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        assert found
        return int(found[1]) / 1024


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process, of all its threads, ended ones included.

    This is the process's CPU-time clock of ``clock_getcpuclockid(3)``, in nanosecond steps.
    """
    return time.clock_gettime(~pid << 3 | 2)


def end_in_order() -> None:
    """Make SIGTERM end this process as an error does: servers end, scratch files are deleted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped by SIGTERM"))


@contextlib.contextmanager
def our_broker(
    build: Build,
    directory: Path,
    *,
    flush: str,
    settings: Mapping[str, str] | None = None,
    program: Sequence[str] = (*PROGRAM, "mqbroker"),
) -> Iterator[Target]:
    """Run a broker of a build without a name server.

    Args:
        build: The code to run.
        directory: The place of its settings and its store.
        flush: Its flushDiskType.
        settings: More settings.
        program: The arguments of ``python`` before those of the broker.
    """
    port = free_port()
    directory.mkdir(parents=True)
    values = {
        "listenPort": str(port),
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "brokerName": BROKER_NAME,
        "storePathRootDir": str(directory / "store"),
        "flushDiskType": flush,
        **STORE_FILES,
        **(settings or {}),
    }
    config = directory / "broker.conf"
    config.write_text(format_properties(values))
    arguments = ["-c", str(config)]
    environment = build.environment
    with ServerProcess(
        arguments, ready=BROKER_READY, environment=environment, program=program
    ) as server:
        yield Target(build.name, server.pid, port)


@contextlib.contextmanager
def echo_server() -> Iterator[Target]:
    """Run the echo server."""
    command = [sys.executable, str(HERE / "echo_server.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Target("echo", process.pid, int(process.stdout.readline().split()[1]), True)
        finally:
            process.kill()
