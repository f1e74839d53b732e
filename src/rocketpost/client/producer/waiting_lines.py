"""Waiting lines of sends whose broker is not connected, one per broker.

Sends to one queue must keep the order of the calls. So they wait in line while a single task
connects, and then all of them are sent together. A call meanwhile joins the line instead of passing
it.

connecting    the first attempt: every send to that broker waits, even if it could go elsewhere
broken        that attempt failed: sends to a queue of the user's choice cannot go elsewhere and
              wait until the broker is back; the others have left
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from rocketpost.client.patience import pause_seconds
from rocketpost.client.producer.flight import InFlightSend
from rocketpost.client.session import Session
from rocketpost.errors import ClientError, LocalProtocolError, NotConnected, RocketpostError
from rocketpost.transport.connection import Connection


class WaitingLines:
    """The lines of one sender, by broker name. Belongs to the event loop.

    Args:
        session: The connections to brokers.
        depart: Starts the request of a send.
        fail: Ends a send that could not be sent in time, with the reason.
        refuse: Handles a send after the first attempt to connect failed; the send may join again.
    """

    def __init__(
        self,
        session: Session,
        *,
        depart: Callable[[InFlightSend, Connection, str], None],
        fail: Callable[[InFlightSend, RocketpostError], None],
        refuse: Callable[[InFlightSend, RocketpostError], None],
    ) -> None:
        self._session = session
        self._depart = depart
        self._fail = fail
        self._refuse = refuse
        self._lines: dict[str, deque[InFlightSend]] = {}
        self.brokers = self._lines.keys()
        """The names of brokers for which sends wait."""
        self._connecting: set[str] = set()

    def is_broken(self, broker_name: str) -> bool:
        """Tell whether sends wait for a broker that could not be reached."""
        return broker_name in self._lines and broker_name not in self._connecting

    def connect(self, flight: InFlightSend) -> None:
        """Connect to a send's broker; the send waits for that."""
        if flight.queue.broker_name not in self._lines:
            self._connecting.add(flight.queue.broker_name)
        self.join(flight)

    def join(self, flight: InFlightSend) -> None:
        """Add a send to the line; if its broker cannot be reached, ``flight.error`` says why."""
        name = flight.queue.broker_name
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = deque()
            self._session.tasks.start(self._serve(name, line), name=f"reconnect to {name}")
        line.append(flight)

    def close(self) -> list[InFlightSend]:
        """Stop waiting and return the waiting sends."""
        waiting = [flight for line in self._lines.values() for flight in line]
        for line in self._lines.values():
            line.clear()
        self._lines.clear()
        self._connecting.clear()
        return waiting

    async def _serve(self, name: str, line: deque[InFlightSend]) -> None:
        loop, pauses = asyncio.get_running_loop(), 0
        try:
            if name in self._connecting and (error := await self._connect(name, line)):
                self._connecting.discard(name)
                refused = list(line)
                line.clear()
                for flight in refused:
                    self._refuse(flight, error)
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
                        topic = line[0].out.topic
                        await self._session.routes.refresh(topic)
                        address, connection = await self._session.connect_master(name, topic)
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
                self._connecting.discard(name)

    async def _connect(self, name: str, line: deque[InFlightSend]) -> RocketpostError | None:
        """Connect and start the sends in line; return the error if that was not possible."""
        loop = asyncio.get_running_loop()
        while line:
            try:
                async with asyncio.timeout_at(min(flight.deadline for flight in line)):
                    topic = line[0].out.topic
                    address, connection = await self._session.connect_master(name, topic)
            except TimeoutError:
                where = self._session.routes.peek_master(name) or name
                for flight in [flight for flight in line if flight.deadline <= loop.time()]:
                    line.remove(flight)
                    self._refuse(flight, NotConnected(f"cannot connect to {where} in time"))
                continue
            except ClientError as error:
                return error
            return self._release(line, connection, address)
        return None

    def _drop_late(self, line: deque[InFlightSend], now: float) -> None:
        for flight in [flight for flight in line if flight.deadline <= now]:
            line.remove(flight)
            assert flight.error is not None
            self._fail(flight, flight.error)

    def _release(
        self, line: deque[InFlightSend], connection: Connection, address: str
    ) -> NotConnected | None:
        while line:
            flight = line[0]
            try:
                if flight.future.done():  # its caller has given up
                    self._fail(flight, NotConnected("cancelled before it was sent"))
                else:
                    self._depart(flight, connection, address)
            except NotConnected as error:
                flight.error = error
                return error
            except LocalProtocolError as error:
                self._fail(flight, error)
            line.popleft()
        return None
