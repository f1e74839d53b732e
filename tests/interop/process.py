"""Child processes that announce readiness with a printed line, and the free ports they get."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

READY_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 40.0
_LOG_TAIL_BYTES: Final = 4000


class NotReadyError(AssertionError):
    """A server ended, or stayed silent, before it printed its ready line."""


class Server:
    """One server process; its output goes to a log file and is watched for the ready line."""

    def __init__(self, name: str, child: subprocess.Popen[str], log: Path) -> None:
        self.name = name
        self._child = child
        self._log = log
        self._ready = threading.Event()
        self._ended = threading.Event()

    @classmethod
    def start(
        cls,
        name: str,
        command: Sequence[str],
        *,
        ready: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        ready_seconds_max: float = READY_SECONDS_MAX,
    ) -> Server:
        """Return the running server once a line matching ``ready`` was printed.

        Raises:
            NotReadyError: No such line came; the process is gone then.
        """
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=None if environment is None else dict(environment),
        )
        server = cls(name, child, log)
        threading.Thread(target=server._watch, args=(re.compile(ready),), daemon=True).start()
        try:
            server._wait_ready(ready_seconds_max)
        except BaseException:  # an interrupted wait must not leave the server behind
            server.kill()
            raise
        return server

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def stop(self) -> int:
        """Ask for a clean end, wait for it, and return the exit status."""
        if self.running:
            self._child.send_signal(signal.SIGTERM)
        try:
            status = self._child.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} ignored SIGTERM; {self._tail()}") from None
        self._close()
        return status

    def kill(self) -> None:
        """End the process at once, as ``kill -9`` does."""
        self._child.kill()
        self._child.wait()
        self._close()

    def _watch(self, ready: re.Pattern[str]) -> None:
        assert self._child.stdout is not None
        with self._log.open("a") as log:
            for line in self._child.stdout:
                log.write(line)
                log.flush()
                if ready.search(line):
                    self._ready.set()
        self._ended.set()

    def _wait_ready(self, seconds_max: float) -> None:
        waited = 0.0
        while not self._ready.wait(0.1):
            waited += 0.1
            if self._ended.is_set() or waited > seconds_max:
                raise NotReadyError(f"{self.name} printed no ready line; {self._tail()}")

    def _tail(self) -> str:
        return f"end of its log:\n{self.log_text()[-_LOG_TAIL_BYTES:]}"

    def _close(self) -> None:
        self._ended.wait(5)
        if self._child.stdout is not None:
            self._child.stdout.close()
