"""Sending of encoded messages: first attempts without a task, retries with one.

The usual send is one request and one callback. Only a failure gets a coroutine, which chooses a
queue of another broker. When all brokers have failed, the send pauses, longer each time, and starts
again. Only sent requests count as attempts: a broker that cannot be reached costs none, so a
restart shorter than the time budget fails no send.

    no connection, broker going away           again, until the time budget is used up
    connection lost, time-out of an attempt    next attempt
    refusal with one of the retry codes        next attempt
    any other refusal                          raised at once
    time budget used up                        RequestTimeout, or why nothing could be sent

Sends wait in line while their broker is being connected (``client.producer.waiting_lines``). A send
to a queue of the user's choice has one attempt; while its broker cannot be reached it stays in
line. A sticky send (``client.producer.idempotence``) is repeated at the same queue until the budget
is used up; it moves to another queue only while certainly nothing of it was stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial
from typing import Final

from rocketpost.client.config import ProducerConfig
from rocketpost.client.message import SendResult, SendStatus
from rocketpost.client.patience import pause_seconds
from rocketpost.client.producer.fault_table import FaultTable
from rocketpost.client.producer.flight import (
    HEALING_CODES,
    NOT_STORED_CODES,
    InFlightSend,
    OutgoingSend,
    Watcher,
    plain_result,
    result_of,
)
from rocketpost.client.producer.in_flight import InFlight
from rocketpost.client.producer.waiting_lines import WaitingLines
from rocketpost.client.route_cache import PublishRoute
from rocketpost.client.session import Session
from rocketpost.codec.command import Command
from rocketpost.codec.faults import GoAway
from rocketpost.errors import (
    ClientError,
    ConnectionLost,
    Fault,
    LocalProtocolError,
    NotConnected,
    RequestTimeout,
    RocketpostError,
    RouteNotFound,
)
from rocketpost.model.route import MessageQueue
from rocketpost.transport.connection import Connection
from rocketpost.transport.requesting import PlainAnswer

logger = logging.getLogger(__name__)

_STICKY_SHARE: Final = 3

STATUS: Final = {int(status.value): status for status in SendStatus}
_NO_ATTEMPT_LEFT: Final = 0
_NOT_SENT: Final = (NotConnected, RouteNotFound, GoAway)
"""Failures after which no broker has the message."""
_ONEWAY_BYTES_MAX: Final = 4 * 1024 * 1024


class Sender:
    """Sends for one group. Belongs to the event loop."""

    def __init__(self, session: Session, config: ProducerConfig) -> None:
        self._session = session
        self._config = config
        self._loop = loop = asyncio.get_running_loop()
        self._time, self._create_future = loop.time, loop.create_future
        self._routes = session.routes
        self._connections = session.connector.connections
        self._attempts = 1 + config.retries
        self._attempt_seconds = config.attempt_timeout
        self.avoids_slow = config.avoid_slow_brokers
        """Whether queues are chosen by the latencies of their brokers."""
        self._faults = FaultTable()
        self._flights: dict[InFlightSend, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._unread: dict[str, int] = {}
        self._on_outcome = self._receive  # bound once
        self._lines = WaitingLines(
            session, depart=self._take_off, fail=self._give_up, refuse=self._handle_refusal
        )
        self._waited_for = self._lines.brokers
        self.in_flight = InFlight(
            count_max=config.in_flight_max, bytes_max=config.in_flight_bytes_max
        )

    def choose(self, route: PublishRoute, *, avoid: str | None = None) -> MessageQueue:
        """Return the queue for the next message of a topic."""
        if not self.avoids_slow:
            return route.next(avoid)
        now_ms = self._loop.time() * 1000
        found = route.next_of(
            lambda broker: self._faults.is_available(broker, now_ms=now_ms), avoid=avoid
        )
        return found or route.next(avoid)

    def start(
        self, out: OutgoingSend, queue: MessageQueue, fixed: bool, timeout: float
    ) -> asyncio.Future[SendResult] | None:
        """Start a send at once; return None, and do nothing, if it has to wait: see :meth:`send`.

        Raises:
            LocalProtocolError: The request does not fit a frame.
        """
        broker = queue.broker_name
        address = self._routes.peek_master(broker)
        connection = self._connections.get(address) if address is not None else None
        if (
            address is None
            or connection is None
            or broker in self._waited_for
            or not self.in_flight.try_enter(len(out.body), out.count)
        ):
            return None
        attempts, now = 1 if fixed else self._attempts, self._time()
        future = self._create_future()
        flight = InFlightSend(out, queue, future, attempts, now + timeout, fixed)
        try:
            self._take_off(flight, connection, address, now)
        except NotConnected:
            self._leave(out)
            return None
        except LocalProtocolError:
            self._leave(out)
            raise
        return future

    async def send(
        self,
        out: OutgoingSend,
        queue: MessageQueue,
        *,
        fixed: bool,
        timeout: float,
        watcher: Watcher | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start a send; wait first if too much is in flight.

        Args:
            out: The request.
            queue: The queue of the first attempt.
            fixed: Whether the queue is the user's choice; then there is only one attempt, which
                waits in line while its broker cannot be reached.
            timeout: The time budget of all attempts.
            watcher: Makes the send sticky, and follows it.

        Returns:
            The future of the result.
        """
        if not self.in_flight.try_enter(len(out.body), out.count):
            await self.in_flight.enter(len(out.body), out.count)
        attempts, deadline = 1 if fixed else self._attempts, self._loop.time() + timeout
        future = self._loop.create_future()
        flight = InFlightSend(out, queue, future, attempts, deadline, fixed)
        sticky = watcher is not None
        if sticky:
            flight.sticky, flight.watcher = True, watcher
            flight.attempt_seconds = self._config.attempt_timeout or timeout / _STICKY_SHARE
        try:
            address = self._session.routes.master(queue.broker_name)
            connection = self._session.connector.peek(address)
            if connection is None or queue.broker_name in self._waited_for:
                is_broken = self._lines.is_broken(queue.broker_name)
                if not (sticky or is_broken):
                    self._lines.connect(flight)
                    return flight.future
                if is_broken and fixed and not sticky:
                    raise NotConnected(f"earlier messages wait for the broker {queue.broker_name}")
                if connection is None:
                    address, connection = await self._connect(flight, timeout)
            self._take_off(flight, connection, address)
        except LocalProtocolError:
            self._leave(out)
            raise
        except ClientError as error:
            self._handle_refusal(flight, error)
        except asyncio.CancelledError:
            self._leave(out)
            raise
        return flight.future

    async def send_oneway(self, out: OutgoingSend, queue: MessageQueue) -> None:
        """Send without an answer.

        These get no acknowledgement, so from time to time we wait for a heartbeat: a broker that
        answers it has read everything before it. That bounds the bytes in the socket.

        Raises:
            ClientError: The broker is unknown, or cannot be reached.
        """
        address = self._session.routes.master(queue.broker_name)
        connection = await self._session.connector.connect(address)
        connection.send_oneway(out.code, fields=out.fields_for(queue), body=out.body)
        unread = self._unread.get(address, 0) + len(out.body)
        self._unread[address] = 0 if unread > _ONEWAY_BYTES_MAX else unread
        if unread > _ONEWAY_BYTES_MAX:
            await self._session.heartbeat_at(address)

    def close(self) -> None:
        """Fail all sends in flight."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for flight in list(self._flights):
            self._abandon(flight)
            self._land(flight, ConnectionLost("the client was closed before the broker answered"))
        for flight in self._lines.close():
            self._land(flight, NotConnected("the client was closed before its broker was back"))

    # First attempts.

    def _take_off(
        self,
        flight: InFlightSend,
        connection: Connection,
        address: str,
        now: float | None = None,
    ) -> None:
        out, queue = flight.out, flight.queue
        flight.address = address
        flight.sent_at = self._time() if now is None else now
        opaque = connection.next_opaque()
        if opaque >= 0:
            body = out.body
            head = out.heads.encode(
                queue, opaque, out.born_ms, out.flag, out.properties, out.sequence, len(body)
            )
            connection.send_encoded(opaque, (self._on_outcome, flight), head, body)
        else:
            receive = partial(self._receive, flight)
            opaque = connection.send_request(
                out.code, receive, fields=out.fields_for(queue), body=out.body
            )
        flight.connection = connection
        flight.opaque = opaque
        flight.attempts_left -= 1
        flight.brokers += (queue.broker_name,)
        flight.unresolved += 1
        self._flights[flight] = None
        is_bounded = flight.sticky or self._attempt_seconds
        due = flight.due = self._attempt_deadline(flight) if is_bounded else flight.deadline
        if self._timer is None or due < self._timer_at:
            self._sweep_at(due)

    def _sweep_at(self, time: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(time, self._sweep), time

    def _receive(
        self, flight: InFlightSend, outcome: Command | PlainAnswer | ConnectionLost
    ) -> None:
        """Handle the end of a send's current attempt."""
        flight.connection = None
        del self._flights[flight]
        if isinstance(outcome, tuple):
            if self.avoids_slow:
                self._report_latency(flight, failed=False)
            out, future = flight.out, flight.future
            self.in_flight.leave(len(out.body), out.count)
            if flight.watcher is not None:
                flight.watcher.end(flight.queue, is_stored=True, is_known=True)
            if not future.done():
                future.set_result(plain_result(flight, outcome))
        elif isinstance(outcome, Command):
            self._handle_answer(flight, outcome)
        else:
            self._handle_failure(flight, outcome)

    def _handle_answer(self, flight: InFlightSend, response: Command) -> None:
        status = STATUS.get(response.code)
        if status is None:
            self._handle_failure(flight, self._session.refusal(response))
            return
        if self.avoids_slow:
            self._report_latency(flight, failed=False)
        try:
            result = result_of(status, flight, response)
        except Fault as error:
            self._land(flight, error)
            return
        if (
            status is not SendStatus.SEND_OK
            and self._config.retry_not_stored_ok
            and (flight.attempts_left > _NO_ATTEMPT_LEFT or flight.sticky)
        ):
            flight.outcome = result
            self._retry(flight)
            return
        self._complete(flight, result)

    def _complete(self, flight: InFlightSend, result: SendResult) -> None:
        out, future = flight.out, flight.future
        self.in_flight.leave(len(out.body), out.count)
        if flight.watcher is not None:
            flight.watcher.end(flight.queue, is_stored=True, is_known=True)
        if not future.done():
            future.set_result(result)

    def _sweep(self) -> None:
        # Sends are in order of their start; those with their own timeout may come after longer
        # ones, so all are examined. This runs once per timeout, not per message.
        self._timer = None
        now = self._loop.time()
        for flight in [flight for flight in self._flights if flight.due <= now]:
            self._abandon(flight)
            self._session.no_answer(flight.address, flight.sent_at)
            self._handle_failure(flight, self._timeout_of(flight))
        if self._flights:
            self._sweep_at(min(flight.due for flight in self._flights))

    def _abandon(self, flight: InFlightSend) -> None:
        del self._flights[flight]
        connection, flight.connection = flight.connection, None
        if connection is not None:
            connection.forget(flight.opaque)

    def _attempt_deadline(self, flight: InFlightSend) -> float:
        if flight.sticky:
            return min(flight.deadline, flight.sent_at + flight.attempt_seconds)
        bound = self._attempt_seconds
        if not bound or flight.attempts_left <= _NO_ATTEMPT_LEFT:
            return flight.deadline
        return min(flight.deadline, flight.sent_at + bound)

    # Retries.

    def _handle_refusal(self, flight: InFlightSend, error: RocketpostError) -> None:
        """Handle an attempt whose request could not be started."""
        self._count_attempt(flight)
        self._handle_failure(flight, error)

    def _handle_failure(self, flight: InFlightSend, error: RocketpostError) -> None:
        """Handle a failed attempt."""
        flight.error = error
        self._report_latency(flight, failed=True)
        if isinstance(error, GoAway):
            self._session.connector.drop(flight.address)
        code = int(error.code) if isinstance(error, Fault) else None
        if code in NOT_STORED_CODES and flight.unresolved:
            flight.unresolved -= 1
        if flight.sticky:
            self._handle_sticky_failure(flight, error, code)
            return
        if code is not None and code not in self._config.retry_codes:
            self._give_up(flight, error)
            return
        self._refresh_route(flight.out.topic)
        if isinstance(error, _NOT_SENT):
            flight.attempts_left += 1
        if self._loop.time() >= flight.deadline:
            self._give_up(flight, self._timeout_of(flight) if flight.unresolved else error)
        elif flight.attempts_left <= _NO_ATTEMPT_LEFT:
            self._give_up(flight, error)
        elif flight.fixed:
            self._lines.join(flight)
        else:
            self._retry(flight)

    def _handle_sticky_failure(
        self, flight: InFlightSend, error: RocketpostError, code: int | None
    ) -> None:
        heals = code is None or code in self._config.retry_codes or code in HEALING_CODES
        if not heals:
            self._give_up(flight, error)
            return
        self._refresh_route(flight.out.topic)
        if self._loop.time() >= flight.deadline:
            self._give_up(flight, self._timeout_of(flight) if flight.unresolved else error)
            return
        self._retry(flight)

    def _give_up(self, flight: InFlightSend, error: RocketpostError) -> None:
        if flight.outcome is not None:
            self._leave(flight.out)
            self._end(flight, is_stored=True, is_known=True)
            if not flight.future.done():
                flight.future.set_result(flight.outcome)
            return
        tried = ", ".join(f"{name} x {count}" for name, count in Counter(flight.brokers).items())
        error.add_note(f"topic {flight.out.topic}, brokers tried: {tried}")
        self._land(flight, error)

    def _retry(self, flight: InFlightSend) -> None:
        self._session.tasks.start(self._attempt(flight), name=f"resend to {flight.out.topic}")

    async def _attempt(self, flight: InFlightSend) -> None:
        """Try again, at a broker that has not failed since the last pause, or after a pause."""
        try:
            if flight.sticky:
                await self._rest(flight)
                if not (flight.unresolved or flight.fixed):
                    route = await self._session.routes.publish(flight.out.topic)
                    flight.queue = self.choose(route, avoid=flight.queue.broker_name)
                    if flight.watcher is not None:
                        flight.watcher.move(flight.queue)
            elif not await self._find_queue(flight):
                error = flight.error
                assert error is not None
                self._give_up(flight, self._timeout_of(flight) if flight.unresolved else error)
                return
            flight.address = self._session.routes.master(flight.queue.broker_name)
            flight.sent_at = self._loop.time()
            address, connection = await self._connect(flight, flight.deadline - flight.sent_at)
            self._take_off(flight, connection, address)
        except RocketpostError as error:
            self._handle_refusal(flight, error)
        except asyncio.CancelledError:
            self._land(flight, ConnectionLost("the client was closed while it tried again"))
            raise

    async def _find_queue(self, flight: InFlightSend) -> bool:
        """Choose the queue of the next attempt; return False if there is no time for one."""
        try:
            route = await self._session.routes.publish(flight.out.topic)
        except RouteNotFound:
            await self._rest(flight)  # an immediate retry would ask the name server in vain
            raise
        tried = frozenset(flight.brokers[flight.round_start :])
        queue = self.choose(route, avoid=flight.queue.broker_name)
        if queue.broker_name in tried:
            other = route.next_of(lambda broker: broker not in tried)
            if other is None:
                await self._rest(flight)
                if self._loop.time() >= flight.deadline or flight.future.done():
                    return False
                flight.round_start = len(flight.brokers)
                other = self.choose(await self._session.routes.publish(flight.out.topic))
            queue = other
        flight.queue = queue
        return True

    async def _rest(self, flight: InFlightSend) -> None:
        pause = pause_seconds(flight.pauses)
        flight.pauses += 1
        await asyncio.sleep(min(pause, max(0.0, flight.deadline - self._loop.time())))

    async def _connect(self, flight: InFlightSend, seconds: float) -> tuple[str, Connection]:
        name = flight.queue.broker_name
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                return await self._session.connect_master(name, flight.out.topic)
        except TimeoutError:
            where = self._session.routes.peek_master(name) or name
            raise NotConnected(f"cannot connect to {where} in {seconds:.3g} s") from None

    # Helpers.

    def _leave(self, out: OutgoingSend) -> None:
        self.in_flight.leave(len(out.body), out.count)

    def _count_attempt(self, flight: InFlightSend) -> None:
        flight.attempts_left -= 1
        flight.brokers += (flight.queue.broker_name,)

    def _timeout_of(self, flight: InFlightSend) -> RequestTimeout:
        first, _, more = flight.out.message_id.partition(",")
        what = f"the message {first}" + (" and the rest of its batch" if more else "")
        return RequestTimeout(
            f"no answer from {flight.address or flight.queue.broker_name} in time; "
            f"{what} may have been stored or not"
        )

    def _end(self, flight: InFlightSend, *, is_stored: bool, is_known: bool) -> None:
        if flight.watcher is not None:
            flight.watcher.end(flight.queue, is_stored=is_stored, is_known=is_known)

    def _land(self, flight: InFlightSend, error: BaseException) -> None:
        self._leave(flight.out)
        self._end(flight, is_stored=False, is_known=not flight.unresolved)
        if not flight.future.done():
            flight.future.set_exception(error)

    def _report_latency(self, flight: InFlightSend, *, failed: bool) -> None:
        if not self.avoids_slow:
            return
        broker, now_ms = flight.queue.broker_name, self._loop.time() * 1000
        if failed:
            self._faults.report_failure(broker, now_ms=now_ms)
        else:
            self._faults.report(broker, now_ms - flight.sent_at * 1000, now_ms=now_ms)

    def _refresh_route(self, topic: str) -> None:
        if self._session.is_running:
            self._session.tasks.start(self._session.routes.refresh(topic), name=f"route of {topic}")
