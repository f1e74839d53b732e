"""Runs printed commands with bash, on servers at other ports and in other directories."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from rocketpost.testing.cluster import BROKER_READY, NAMESRV_READY

from .pages import ROOT, Command

BIN = Path(sys.executable).parent
PORTS = Path(__file__).with_name("ports")
ENDLESS = {
    re.compile(r"(\.venv/bin/)?mqnamesrv\b"): NAMESRV_READY,
    re.compile(r"(\.venv/bin/)?mqbroker\b"): BROKER_READY,
    re.compile(r"(\.venv/bin/)?rocketpost up\b"): r"Clients connect to \S+:\d+\. .*Data is in .*",
    re.compile(
        r"(\.venv/bin/)?rocketpost pipeline .* --every\b"
    ): r"archiving: (\d+) of \1 messages",
}
"""Commands that run until they are stopped, and what they print once they are at work."""
SECONDS_MAX = 900  # so that what hangs fails
READY_SECONDS_MAX = 90  # so that a server which never says that it is ready fails with its output


def is_endless(command: Command) -> bool:
    """Return whether a command runs until it is stopped."""
    return any(pattern.match(command.text) for pattern in ENDLESS)


class Shell:
    """A place where a page's commands run one after the other, as in a checkout with a ``.venv``.

    Args:
        directory: The current directory and ``HOME`` of the commands.
        ports: The real ports by the printed ones.
        words: Texts of the page by what takes their place in its commands.
        environment: Variables to set besides the inherited ones.
    """

    def __init__(
        self,
        directory: Path,
        ports: Mapping[int, int],
        *,
        words: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._words = words or {}
        self._exports = ""
        self._servers: dict[str, Endless] = {}
        self._environment = {
            **os.environ,
            "HOME": str(directory),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(PORTS),
            "PRINTED_PORTS": json.dumps(ports),
            **(environment or {}),
        }
        (directory / ".venv").symlink_to(BIN.parent)
        (directory / "conf").symlink_to(ROOT / "conf")

    def run(self, command: Command) -> str:
        """Run a command and return its standard output; one that never ends goes on running.

        Raises:
            AssertionError: It failed, or an endless one ended.
        """
        text = command.text
        for word, real in self._words.items():
            text = text.replace(word, real)
        for pattern, ready in ENDLESS.items():
            if pattern.match(text):
                self._start(pattern.pattern, command, text, ready)
                return ""
        done = self.call(text)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, f"{command}\n{done.stderr}"
        if text.startswith("export "):
            self._exports += text + "\n"
        return done.stdout

    def call(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            ["bash", "-c", self._exports + text],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )

    def stop(self) -> str:
        """Stop the endless commands, the newest first, and return what they printed.

        Raises:
            AssertionError: One failed.
        """
        output = ""
        while self._servers:
            output += self._servers.popitem()[1].stop()
        return output

    def kill(self) -> None:
        """End the endless commands by force, with everything that they started."""
        while self._servers:
            self._servers.popitem()[1].kill()

    def _start(self, kind: str, command: Command, text: str, ready: str) -> None:
        if kind in self._servers:  # it would want the same port
            self._servers.pop(kind).stop()
        started = Endless(
            command, self._exports + "exec " + text, self.directory, self._environment
        )
        self._servers[kind] = started
        started.wait_for(ready)


class Endless:
    """A command that runs until it is stopped."""

    def __init__(
        self, command: Command, text: str, directory: Path, environment: Mapping[str, str]
    ) -> None:
        self._command = command
        self._lines: list[str] = []
        self._process = subprocess.Popen(
            ["bash", "-c", text],
            cwd=directory,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._timer = threading.Timer(SECONDS_MAX, self._process.kill)
        self._timer.start()

    def wait_for(self, ready: str) -> None:
        """Wait for a line that the command prints.

        Raises:
            AssertionError: It ended without that, or did not print it in time.
        """
        assert self._process.stdout is not None
        too_late = threading.Timer(READY_SECONDS_MAX, self._process.kill)
        too_late.start()
        try:
            for line in self._process.stdout:
                self._lines.append(line)
                if re.search(ready, line):
                    return
        finally:
            too_late.cancel()
        self._process.wait()
        raise AssertionError(f"{self._command}\n{self._output()}")

    def stop(self) -> str:
        """Stop the command as Ctrl-C does, and return what it printed.

        Raises:
            AssertionError: It failed.
        """
        self._process.send_signal(signal.SIGINT)
        self._end()
        output = self._output()
        assert self._process.returncode == 0, f"{self._command}\n{output}"
        return output

    def kill(self) -> None:
        """End the command and everything that it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._end()

    def _end(self) -> None:
        assert self._process.stdout is not None
        self._lines += self._process.stdout
        self._process.wait()
        self._process.stdout.close()
        self._timer.cancel()

    def _output(self) -> str:
        return "".join(self._lines)
