"""Pulls that arrive while a member changes its role: the next term serves them.

A term that ends answers the pulls that it holds as if their time were over, and clients pull again
at once. The next term opens some moments later. A refusal in between would make a Java client pause
for three seconds, so the pulls wait here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ServiceNotAvailable
from rocketpost.server.routes.access import NOTHING
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain
from rocketpost.transport.connection import Connection

COUNT_MAX: Final = 10_000
"""Most pulls that wait; more are refused."""
_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class WaitingPulls:
    """The pulls that wait for the next term. Owned by the loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Connection, Command]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def replace(self, routes: Iterable[Route]) -> list[Route]:
        """Return routes in which pulls wait instead of being refused."""
        pulls = [plain(code, NO_HEADER, NOTHING, self._wait) for code in sorted(_CODES)]
        return [*(route for route in routes if route.code not in _CODES), *pulls]

    def serve(self, handle: Callable[[Connection, Command], None]) -> None:
        """Let the next term, which has begun, serve the pulls in the order of their arrival."""
        waiting, self._waiting = self._waiting, deque()
        for connection, command in waiting:
            if connection.is_open:
                handle(connection, command)

    def _wait(self, connection: Connection, command: Command, _header: None) -> Reply | None:
        if len(self._waiting) >= COUNT_MAX:
            raise ServiceNotAvailable("the broker is changing its role; try again")
        self._waiting.append((connection, command))
        return None
