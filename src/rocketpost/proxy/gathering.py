"""Requests to a broker in this process that wait a moment for those of other calls.

The broker stores all messages of one loop iteration together, at little more than the cost of one
request. The gRPC library delivers calls one by one, each in an iteration of its own, and does not
say how many it has. So a request waits for some iterations, as long as others come meanwhile. If
none came in the last waits, most requests do not wait: those of a client that makes one call after
the other hardly ever do.
"""

from __future__ import annotations

import asyncio
from typing import Final

TURNS_MAX: Final = 64
"""Most loop iterations for which a request waits."""
QUIET_TURNS: Final = 16
"""Iterations in a row without another request after which it waits no more."""
VAIN_MAX: Final = 3
"""Waits in vain after which only one request in ``TEST_EVERY`` waits, as a test."""
TEST_EVERY: Final = 16


class Gathering:
    """The requests that wait for each other. Belongs to the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[None]] = []
        self._ready = self._seen = 0
        self._turns = self._quiet_turns = 0
        self._vain = 0

    async def wait(self) -> None:
        """Return when no more requests of other calls come, or after a while; in order of calls."""
        if not self._waiting:
            if self._vain >= VAIN_MAX:
                self._vain += 1
                if self._vain % TEST_EVERY:
                    return
            self._ready = self._seen = self._turns = self._quiet_turns = 0
            self._loop.call_soon(self._advance)
        self._ready += 1
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        await turn

    def note_ready(self) -> None:
        """Count a request that joins one that waits."""
        self._ready += 1

    def _advance(self) -> None:
        """Count a loop iteration; end the wait if there were too many."""
        self._turns += 1
        self._quiet_turns = self._quiet_turns + 1 if self._ready == self._seen else 0
        self._seen = self._ready
        if self._turns < TURNS_MAX and self._quiet_turns < QUIET_TURNS:
            self._loop.call_soon(self._advance)
            return
        self._vain = 0 if self._ready > 1 else self._vain + 1
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():  # its caller may be gone
                turn.set_result(None)
