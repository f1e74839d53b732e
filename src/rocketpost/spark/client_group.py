"""Clients for the synchronous code that Spark calls.

They run on the event-loop thread that all blocking clients of a process share.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self

from rocketpost.client.blocking.loop_thread import shared


class Client(Protocol):
    """A client that can be started and stopped."""

    async def start(self) -> None:
        """Start the client."""

    async def stop(self) -> None:
        """Stop the client and release its resources."""


class ClientGroup:
    """Clients that are started and stopped together. Use as a context manager."""

    def __init__(self, *clients: Client) -> None:
        self._clients = clients

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._thread = shared.enter()
            opened.callback(shared.leave)
            for client in self._clients:
                self._thread.call(client.start())
                opened.callback(self._stop, client)
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    def _stop(self, client: Client) -> None:
        self._thread.call(client.stop())
