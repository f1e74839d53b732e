"""The Java client on a leash: one JVM per client version, commands in, results out.

The other end is ``java/src/rocketpost/interop/Peer.java``.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Final
from urllib.parse import quote

from interop.jvm import client_classpath, java_command

COMMAND_SECONDS_MAX: Final = 120.0
# Members share queues every 20 s otherwise, and queues that are new to them wait for so long.
_QUICK_SHARING: Final = "-Drocketmq.client.rebalance.waitInterval=1000"

Event = dict[str, Any]


class PeerError(Exception):
    """A command ended with an exception on the Java side."""

    def __init__(self, event: Event) -> None:
        super().__init__(event.get("trace") or str(event))
        self.event = event


class Peer(AbstractContextManager["Peer"]):
    """A running Java client. Not thread-safe: one command at a time."""

    def __init__(self, version: str, home: Path, *properties: str) -> None:
        self.version = version
        home.mkdir(parents=True, exist_ok=True)
        command = java_command(
            client_classpath(version),
            "rocketpost.interop.Peer",
            heap="256m",
            home=home,
            properties=(_QUICK_SHARING, *properties),
        )
        self._errors = (home / f"peer-{version}.log").open("a")
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=home,  # some admin commands write files where they stand
            text=True,
            encoding="utf-8",
        )
        self._events: Queue[Event | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._next(30.0)["event"] == "ready"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the JVM and wait for it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._errors.close()

    def run(self, command: str, /, **args: object) -> list[Event]:
        """Run one command to its end and return its results, oldest first.

        Raises:
            PeerError: The Java side threw.
        """
        return self.run_watched(command, lambda event: None, **args)

    def run_watched(
        self, command: str, on_event: Callable[[Event], None], /, **args: object
    ) -> list[Event]:
        """Run one command like ``run``, and show each result to ``on_event`` as it comes."""
        words = [f"{key}={quote(str(value), safe='')}" for key, value in args.items()]
        assert self._child.stdin is not None
        self._child.stdin.write(" ".join([command, *words]) + "\n")
        self._child.stdin.flush()
        results: list[Event] = []
        while True:
            event = self._next(COMMAND_SECONDS_MAX)
            if event["event"] == "failed":
                raise PeerError(event)
            if event["event"] == "done":
                return results
            results.append(event)
            on_event(event)

    def mqadmin(self, namesrv: str, line: str) -> str:
        """Run Apache's ``mqadmin`` with the words of ``line`` and return what it printed."""
        [printed] = self.run("mqadmin", namesrv=namesrv, line=line)
        text: str = printed["text"]
        return text

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)

    def _next(self, seconds_max: float) -> Event:
        try:
            event = self._events.get(timeout=seconds_max)
        except Empty:
            raise AssertionError(f"Java client {self.version} went silent") from None
        if event is None:
            raise AssertionError(f"Java client {self.version} ended early, see its log")
        return event


def named(events: list[Event], name: str) -> list[Event]:
    """Return the events of one kind."""
    return [event for event in events if event["event"] == name]
