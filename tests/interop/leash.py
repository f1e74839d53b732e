"""A foreign client on a leash: a process that takes commands on stdin and prints results as JSON.

A command is one line, ``word key=value ...`` with quoted values. Each result is an object with the
key ``event``: ``ready`` at the start, then any, then ``done`` or ``failed`` for each command.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

COMMAND_SECONDS_MAX: Final = 120.0

Event = dict[str, Any]


class PeerError(Exception):
    """A command ended with an exception on the other side."""

    def __init__(self, event: Event) -> None:
        super().__init__(event.get("trace") or str(event))
        self.event = event


class Leash(AbstractContextManager["Leash"]):
    """A running foreign client. Not thread-safe: one command at a time."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        home: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        home.mkdir(parents=True, exist_ok=True)
        self._errors = (home / f"{name}.log").open("a")
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=home,  # some admin commands write files where they stand
            env={**os.environ, **(environment or {})},
            text=True,
            encoding="utf-8",
        )
        self._events: Queue[Event | None] = Queue()
        threading.Thread(target=self._read, daemon=True).start()
        assert self.next(30.0)["event"] == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process and wait for it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._child.stdout.close()
        self._errors.close()

    def kill(self) -> None:
        """Kill the process, whatever it does."""
        self._child.kill()
        self._child.wait()

    def run(self, command: str, /, **args: object) -> list[Event]:
        """Run one command to its end and return its results, oldest first.

        Raises:
            PeerError: The other side threw.
        """
        return self.run_watched(command, lambda event: None, **args)

    def run_watched(
        self, command: str, on_event: Callable[[Event], None], /, **args: object
    ) -> list[Event]:
        """Run one command like ``run``, and show each result to ``on_event`` as it comes."""
        self.start(command, **args)
        return self.finish(on_event)

    def start(self, command: str, /, **args: object) -> None:
        """Start a command, whose results are then asked for by ``next`` or ``finish``."""
        words = [f"{key}={quote(str(value), safe='')}" for key, value in args.items()]
        assert self._child.stdin is not None
        self._child.stdin.write(" ".join([command, *words]) + "\n")
        self._child.stdin.flush()

    def finish(self, on_event: Callable[[Event], None] = lambda event: None) -> list[Event]:
        """Return the results of the running command, once it has ended.

        Raises:
            PeerError: The other side threw.
        """
        results: list[Event] = []
        while True:
            event = self.next(COMMAND_SECONDS_MAX)
            if event["event"] == "failed":
                raise PeerError(event)
            if event["event"] == "done":
                return results
            results.append(event)
            on_event(event)

    def next(self, seconds_max: float) -> Event:
        """Return the next result."""
        try:
            event = self._events.get(timeout=seconds_max)
        except Empty:
            raise AssertionError(f"client {self.name} went silent") from None
        if event is None:
            raise AssertionError(f"client {self.name} ended early, see its log")
        return event

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._events.put(json.loads(line))
        self._events.put(None)


def named(events: list[Event], name: str) -> list[Event]:
    """Return the events of one kind."""
    return [event for event in events if event["event"] == name]
