"""The console as a process beside servers that ``rocketpost up`` runs; it ends when they do."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from rocketpost.errors import ConfigError

_NEEDED: Final = ("jinja2", "starlette", "uvicorn")
_STOP_SECONDS: Final = 15.0
_PROGRAM: Final = "from rocketpost.cli import rocketpost; rocketpost()"


class ConsoleChild:
    """A console that stops when this process ends, however it ends: it holds the end of a pipe.

    Args:
        state: The directory of its users and of its audit log.
        host: The address that it listens on.
        port: Its port.
    """

    def __init__(self, state: Path, *, host: str, port: int) -> None:
        self._state = state
        self._host = host
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None

    @staticmethod
    def check_installed() -> None:
        """Check that the packages of the console are installed.

        Raises:
            ConfigError: One is missing.
        """
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"--console needs {', '.join(missing)}: pip install 'rocketpost[console]'"
            )

    def start(self, name_servers: str) -> None:
        """Start it; it prints how to open it when it is ready."""
        reading, writing = os.pipe()
        words = ["console", "-n", name_servers, "--state", str(self._state)]
        words += ["--host", self._host, "--port", str(self._port), "--parent-fd", str(reading)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *words], pass_fds=[reading]
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._pipe = writing

    def stop_blocking(self) -> None:
        """Return when it has ended."""
        if self._process is None or self._pipe is None:
            return
        os.close(self._pipe)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._pipe = None
