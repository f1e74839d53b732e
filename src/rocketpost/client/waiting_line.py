"""Sends to a queue of the user's choice that wait until their broker can be reached again.

Such a send cannot go elsewhere, and those of one queue must leave in the order of the calls. So
they stand in one line per broker while a single task tries to connect, and all of them leave
together. Who calls meanwhile joins the line instead of passing it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rocketpost.client.flight import Flight
from rocketpost.client.patience import pause_seconds
from rocketpost.client.session import Session
from rocketpost.errors import ClientError, LocalProtocolError, NotConnected, RocketpostError
from rocketpost.transport.connection import Connection


class WaitingLines:
    """The lines of one sender, by broker name. Belongs to the event loop.

    Args:
        session: Knows addresses and connects.
        depart: Starts the request of a send.
        fail: Ends a send that could not depart in time, with the reason.
    """

    def __init__(
        self,
        session: Session,
        *,
        depart: Callable[[Flight, Connection, str], None],
        fail: Callable[[Flight, RocketpostError], None],
    ) -> None:
        self._session = session
        self._depart = depart
        self._fail = fail
        self._lines: dict[str, deque[Flight]] = {}

    def __contains__(self, broker_name: str) -> bool:
        return broker_name in self._lines

    def join(self, flight: Flight) -> None:
        """Have a send wait for its turn; what it waits for is the flight's ``error``."""
        name = flight.queue.broker_name
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = deque()
            self._session.tasks.start(self._serve(name, line), name=f"reconnect to {name}")
        line.append(flight)

    def close(self) -> list[Flight]:
        """Give up waiting and return who waited."""
        waiting = [flight for line in self._lines.values() for flight in line]
        for line in self._lines.values():
            line.clear()
        self._lines.clear()
        return waiting

    async def _serve(self, name: str, line: deque[Flight]) -> None:
        loop, pauses = asyncio.get_running_loop(), 0
        try:
            while line:
                soonest = min(flight.deadline for flight in line)
                await asyncio.sleep(min(pause_seconds(pauses), max(0.0, soonest - loop.time())))
                pauses += 1
                self._drop_late(line, loop.time())
                if not line:
                    return
                soonest = min(flight.deadline for flight in line)
                try:
                    async with asyncio.timeout_at(soonest):
                        await self._session.routes.refresh(line[0].out.topic)
                        address = self._session.routes.master(name)
                        connection = await self._session.connector.connect(address)
                except TimeoutError:
                    continue
                except ClientError as error:
                    for flight in line:
                        flight.error = error
                    continue
                self._release(line, connection, address)
        finally:
            if self._lines.get(name) is line:
                del self._lines[name]

    def _drop_late(self, line: deque[Flight], now: float) -> None:
        for flight in [flight for flight in line if flight.deadline <= now]:
            line.remove(flight)
            assert flight.error is not None
            self._fail(flight, flight.error)

    def _release(self, line: deque[Flight], connection: Connection, address: str) -> None:
        while line:
            try:
                self._depart(line[0], connection, address)
            except NotConnected as error:
                line[0].error = error
                return
            except LocalProtocolError as error:
                self._fail(line[0], error)
            line.popleft()
