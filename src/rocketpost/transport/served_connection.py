"""A server's connection whose requests may be taken before they are decoded.

All connections of a listener read into one buffer, the inbox, each in its turn: the event loop asks
for the buffer, reads, and says how much it has read, with nothing in between. So bytes are not
copied, nor memory allocated, before they are taken (``transport.express``); the remaining bytes
are copied and decoded as on any other connection.

**Invariant:** nothing refers to the inbox once :meth:`ServedConnection.buffer_updated` returns. The
beginning of a frame whose rest is still to come waits in the decoder. If it is short, it is put in
front of the next bytes, so that a frame in two reads needs no step of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rocketpost.codec.command import Command
from rocketpost.transport.connection import NEVER, PARTIAL_BYTES_FREE, Connection
from rocketpost.transport.express import Express, offer
from rocketpost.transport.room import Room
from rocketpost.transport.turns import BUDGET_SECONDS

INBOX_BYTES: Final = 512 * 1024
"""Largest number of bytes that are read at once."""
FRONT_BYTES_MAX: Final = 16 * 1024
"""Longest beginning of a frame that is put in front of the next bytes, at the price of a copy."""


class Inbox:
    """The buffer into which the connections of a listener read. Belongs to the event loop."""

    def __init__(self, size: int = INBOX_BYTES) -> None:
        self.data = bytearray(size)
        self.view = memoryview(self.data)


class ServedConnection(Connection, asyncio.BufferedProtocol):
    """One connection of a server. Belongs to the event loop.

    Args:
        inbox: The buffer to read into.
        express: Takes requests before they are decoded.
        on_request: Called with every other request of the peer.
        on_lost: Called once, when the connection is gone and none of its requests is left to serve.
        on_made: Called once, when the connection is open.
        room: The limits shared with other connections. Without them, everything that was read is
            served at once.
    """

    def __init__(
        self,
        *,
        inbox: Inbox,
        express: Express[Connection],
        on_request: Callable[[Connection, Command], None],
        on_lost: Callable[[Connection], None] | None = None,
        on_made: Callable[[Connection], None] | None = None,
        room: Room | None = None,
    ) -> None:
        super().__init__(on_request=on_request, on_lost=on_lost, on_made=on_made, room=room)
        self._inbox = inbox
        self._express = express
        self._budget = NEVER if room is None else BUDGET_SECONDS

    # Called by the event loop.

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the room for the next bytes; the beginning of their frame may precede it."""
        held = self._decoder.held
        if not held or held > FRONT_BYTES_MAX:
            return self._inbox.view
        view = self._inbox.view
        view[:held] = self._decoder.peek()
        return view[held:]

    def buffer_updated(self, nbytes: int) -> None:
        """Take or serve the requests in the inbox."""
        self.last_active = self.heard_at = self._loop.time()
        decoder, inbox = self._decoder, self._inbox
        at, end, held = 0, nbytes, decoder.held
        if held > FRONT_BYTES_MAX:
            frame, at = decoder.complete(inbox.view[:end])
            if frame:
                offer(self, self._express, frame, 0, len(frame), self._budget)
        elif held:
            decoder.forget()
            end += held
        if at < end:
            # Usually everything is taken at once.
            taken = None
            if self._postponed is None and not (self._out or self._is_given_up):
                taken = self._express(self, inbox.data, at, end)
            if taken != end:
                offer(self, self._express, inbox.data, at, end, self._budget, taken)
        if self._unanswered > self._pending_max:
            self._regulate()
        if decoder.held > PARTIAL_BYTES_FREE or self.partial_bytes:
            self._count_partial()
