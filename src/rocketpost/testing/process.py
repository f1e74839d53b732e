"""A real server process that tests start, kill, freeze and resume."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocketpost.errors import RocketpostError

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
_PORTS: Final = range(12_000, 32_000)
_PORT_ATTEMPTS_MAX: Final = 100
_PORT_BLOCK: Final = 4
"""Ports of one broker: the port for old clients, its neighbour, its own, that for slaves."""
_WORKERS_MAX: Final = 16
_WORKER_PORTS: Final = len(_PORTS) // _WORKERS_MAX
_FLEET_PORTS: Final = 100
"""Ports above a chosen one that further brokers of the same command may use."""
_ports_given: deque[int] = deque(maxlen=64)
_LINES_KEPT: Final = 2000
PROGRAM: Final = ("-m", "rocketpost.server")
"""Arguments of ``python`` that run servers."""


class ServerFailed(RocketpostError):  # noqa: N818 - named after what happened
    """A server ended or did not become ready; the text has its last output."""


class ServerProcess:
    """A server process. Use as a context manager; it is killed at the end.

    Args:
        arguments: The arguments after ``python -m rocketpost.server``.
        ready: A regular expression for the line that says it is ready.
        environment: Variables to set in addition to the inherited ones.
        program: The arguments of ``python`` instead of ``-m rocketpost.server``, to run a modified
            server.
    """

    def __init__(
        self,
        arguments: list[str],
        *,
        ready: str,
        environment: dict[str, str] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._arguments = arguments
        self._program = program
        self._ready = re.compile(ready)
        self._environment = environment or {}
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.output: deque[str] = deque(maxlen=_LINES_KEPT)
        """The newest lines that the process printed."""

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the process; None while it runs."""
        return self._process.poll() if self._process is not None else None

    def start(self, *, seconds: float = READY_SECONDS) -> re.Match[str]:
        """Start the process and return its ready line.

        Raises:
            ServerFailed: It ended, or was not ready in time.
        """
        self.launch()
        return self.wait_ready(seconds=seconds)

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        assert not self.is_running
        self._lines = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, *self._program, *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | self._environment,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def wait_ready(self, *, seconds: float = READY_SECONDS) -> re.Match[str]:
        """Return the ready line of a launched process.

        Raises:
            ServerFailed: It ended, or was not ready in time.
        """
        return self.wait_for(self._ready, seconds=seconds)

    def wait_for(self, pattern: re.Pattern[str] | str, *, seconds: float) -> re.Match[str]:
        """Return the next line that ``pattern`` matches.

        Raises:
            ServerFailed: The process ended, or no such line came in time.
        """
        compiled = re.compile(pattern)
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise ServerFailed(
                    f"no line like {compiled.pattern!r} in {seconds:g} s:\n{self._tail()}"
                ) from None
            if line is None:
                raise ServerFailed(f"the server ended:\n{self._tail()}")
            if match := compiled.search(line):
                return match

    def kill(self) -> None:
        """End the process as a crash would (SIGKILL) and wait for it."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """Ask the process to stop (SIGTERM) and return its exit code.

        Raises:
            ServerFailed: It did not stop in time.
        """
        self.terminate()
        assert self._process is not None
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"the server did not stop:\n{self._tail()}") from None
        self._reap()
        return code

    def terminate(self) -> None:
        """Ask the process to stop (SIGTERM) without waiting."""
        assert self._process is not None
        self._process.terminate()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Return the CPU time that the process has used, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self, name: str = "RssAnon") -> int:
        """Return a memory figure of the process, such as RssAnon or VmRSS."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise ServerFailed(f"/proc has no {name}")

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.output.append(line.rstrip("\n"))
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._reader is not None:
            self._reader.join()
            self._reader = None
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _tail(self) -> str:
        return "\n".join(list(self.output)[-30:])


def free_port() -> int:
    """Return a port that was free a moment ago, along with the other ports of a broker.

    It is below the range for outgoing connections, so that a restarted server finds its port free.
    Test processes that pytest-xdist runs side by side choose from different ranges, so that none
    takes the port of another's server while that is down. Within a process, no
    port is given again soon.
    """
    first = _PORTS.start + _worker() * _WORKER_PORTS
    blocks = range(first, first + _WORKER_PORTS - _FLEET_PORTS, _PORT_BLOCK)
    for _ in range(_PORT_ATTEMPTS_MAX):
        port = random.SystemRandom().choice(blocks) + 2
        if port not in _ports_given and all(map(_is_free, (port - 2, port, port + 1))):
            _ports_given.append(port)
            return port
    raise ServerFailed("no free port found")


def _worker() -> int:
    """Return the number of this test process, which no other process of the same run has."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return (int(number) + zlib.crc32(run.encode())) % _WORKERS_MAX


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
