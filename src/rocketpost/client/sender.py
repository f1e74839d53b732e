"""Sends encoded messages: first attempts without a task, retries with one.

The usual send is one request and one callback. Only what goes wrong gets a coroutine: another queue
is chosen, away from the broker that failed, until the attempts or the time budget are used up.

    network failure, time-out of an attempt    next attempt
    refusal with one of the retry codes        next attempt
    any other refusal                          raised at once
    time budget used up                        RequestTimeout

A sticky send (``client.idempotence``) is repeated at the same queue until the budget is used up; it
moves to another only while surely nothing of it was stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rocketpost.client.config import ProducerConfig
from rocketpost.client.fault_table import FaultTable
from rocketpost.client.in_flight import InFlight
from rocketpost.client.message import SendResult, SendStatus
from rocketpost.client.route_cache import PublishRoute
from rocketpost.client.session import Session
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import GoAway
from rocketpost.codec.headers.message import SendResponse
from rocketpost.errors import (
    ClientError,
    ConnectionLost,
    Fault,
    LocalProtocolError,
    RequestTimeout,
    RocketpostError,
)
from rocketpost.model.route import MessageQueue
from rocketpost.transport.connection import Connection

logger = logging.getLogger(__name__)

OnEnd = Callable[[MessageQueue, bool, bool], None]
"""Told the queue, whether the message is stored there, and whether that is known."""

NOT_STORED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SEQUENCE_OUT_OF_ORDER,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals of brokers that have stored nothing; after others a message may yet be found there."""
_HEALING_CODES: Final = frozenset(
    {
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SEQUENCE_OUT_OF_ORDER,
        ResponseCode.GO_AWAY,
    }
)
_PAUSE_MIN: Final = 0.02
_PAUSE_MAX: Final = 1.0
_STICKY_SHARE: Final = 3

STATUS: Final = {int(status.value): status for status in SendStatus}
_NO_ATTEMPT_LEFT: Final = 0
_ONEWAY_BYTES_MAX: Final = 4 * 1024 * 1024


class Outgoing:
    """A message, or a batch of them, as it will be written, whatever the queue."""

    __slots__ = ("body", "code", "count", "duplicates", "fields", "message_id", "queue_offsets",
                 "topic")  # fmt: skip

    def __init__(
        self,
        code: int,
        topic: str,
        message_id: str,
        fields: dict[str, str],
        body: bytes,
        count: int = 1,
    ) -> None:
        self.code = code
        self.topic = topic
        self.message_id = message_id
        self.fields = fields
        """All header fields but ``e`` (queue id) and ``n`` (broker name)."""
        self.body = body
        self.count = count
        """How many messages these are."""
        self.duplicates: str | None = None
        self.queue_offsets: str | None = None
        """What the broker said of each message, if it said so."""

    def fields_for(self, queue: MessageQueue) -> dict[str, str]:
        """Return the header fields of a send to ``queue``; the same dictionary each time."""
        fields = self.fields
        fields["e"] = str(queue.queue_id)
        fields["n"] = queue.broker_name
        return fields


class _Flight:
    """One send under way."""

    __slots__ = (
        "address",
        "attempt_seconds",
        "attempts_left",
        "brokers",
        "deadline",
        "fixed",
        "future",
        "on_end",
        "out",
        "outcome",
        "queue",
        "request",
        "sent_at",
        "sticky",
        "unresolved",
    )  # fmt: skip

    def __init__(
        self,
        out: Outgoing,
        queue: MessageQueue,
        future: asyncio.Future[SendResult],
        *,
        attempts: int,
        deadline: float,
    ) -> None:
        self.out = out
        self.queue = queue
        self.future = future
        self.attempts_left = attempts
        self.deadline = deadline
        self.brokers: list[str] = []
        self.outcome: SendResult | None = None
        self.address = ""
        self.sent_at = 0.0
        self.request: asyncio.Future[Command] | None = None
        """The attempt that is under way; what older ones come to counts for nothing."""
        self.sticky = False
        self.fixed = False
        self.attempt_seconds = 0.0
        """Bound of one attempt, if not the configured one."""
        self.unresolved = 0
        """Attempts that may have stored it, for all that is known."""
        self.on_end: OnEnd | None = None


class Sender:
    """Sends for one group. Belongs to the event loop."""

    def __init__(self, session: Session, config: ProducerConfig) -> None:
        self._session = session
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._faults = FaultTable()
        self._flights: dict[_Flight, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._unread: dict[str, int] = {}
        self.in_flight = InFlight(
            count_max=config.in_flight_max, bytes_max=config.in_flight_bytes_max
        )

    def choose(self, route: PublishRoute, *, avoid: str | None = None) -> MessageQueue:
        """Return the queue for the next message of a topic."""
        if not self._config.avoid_slow_brokers:
            return route.next(avoid=avoid)
        now_ms = self._loop.time() * 1000
        found = route.next_of(
            lambda broker: self._faults.is_available(broker, now_ms=now_ms), avoid=avoid
        )
        return found or route.next(avoid=avoid)

    async def send(
        self,
        out: Outgoing,
        queue: MessageQueue,
        *,
        fixed: bool,
        timeout: float,
        sticky: bool = False,
        on_end: OnEnd | None = None,
    ) -> asyncio.Future[SendResult]:
        """Start a send, waiting for room if too much is under way.

        Args:
            out: What to send.
            queue: Where the first attempt goes.
            fixed: Whether the queue is the user's choice; then there is one attempt only.
            timeout: The budget for all attempts.
            sticky: Whether it is repeated at the same queue until the budget is used up.
            on_end: Told how it ended.

        Returns:
            The result to be.
        """
        if not self.in_flight.try_enter(len(out.body), out.count):
            await self.in_flight.enter(len(out.body), out.count)
        flight = _Flight(
            out,
            queue,
            self._loop.create_future(),
            attempts=1 if fixed else 1 + self._config.retries,
            deadline=self._loop.time() + timeout,
        )
        if sticky:
            flight.sticky, flight.fixed, flight.on_end = True, fixed, on_end
            flight.attempt_seconds = self._config.attempt_timeout or timeout / _STICKY_SHARE
        try:
            address = self._session.routes.master(queue.broker_name)
            connection = self._session.connector.peek(address)
            if connection is None:
                connection = await self._connect(address, timeout)
            self._take_off(flight, connection, address)
        except LocalProtocolError:
            self._leave(out)
            raise
        except ClientError as error:
            self._count_attempt(flight)
            self._failed(flight, error)
        except asyncio.CancelledError:
            self._leave(out)
            raise
        return flight.future

    async def send_oneway(self, out: Outgoing, queue: MessageQueue) -> None:
        """Send without an answer.

        Nobody acknowledges these, so now and then a heartbeat is waited for: a broker that answers
        it has read everything before it. That bounds what piles up in the socket.

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
        """Fail what is still under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for flight in list(self._flights):
            self._abandon(flight)
            self._land(flight, ConnectionLost("the client was closed before the broker answered"))

    # First attempts.

    def _take_off(self, flight: _Flight, connection: Connection, address: str) -> None:
        self._count_attempt(flight)
        out = flight.out
        flight.address = address
        flight.sent_at = self._loop.time()
        request = connection.start_request(
            out.code, fields=out.fields_for(flight.queue), body=out.body
        )
        flight.request = request
        flight.unresolved += 1
        self._flights[flight] = None
        request.add_done_callback(self._answer_to(flight))
        if self._timer is None:
            self._timer = self._loop.call_at(self._attempt_deadline(flight), self._sweep)
        elif self._timer.when() > self._attempt_deadline(flight):
            self._timer.cancel()
            self._timer = self._loop.call_at(self._attempt_deadline(flight), self._sweep)

    def _answer_to(self, flight: _Flight) -> Callable[[asyncio.Future[Command]], None]:
        def answered(request: asyncio.Future[Command]) -> None:
            if request.cancelled():
                return
            error = request.exception()
            if flight.request is not request:
                return
            flight.request = None
            del self._flights[flight]
            if error is None:
                self._answered(flight, request.result())
            elif isinstance(error, RocketpostError):
                self._failed(flight, error)
            else:
                self._land(flight, error)

        return answered

    def _answered(self, flight: _Flight, response: Command) -> None:
        self._session.heard(flight.address)
        status = STATUS.get(response.code)
        if status is None:
            self._failed(flight, self._session.refusal(response))
            return
        self._report_latency(flight, failed=False)
        try:
            result = _result(status, flight, response)
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
        self._leave(flight.out)
        self._end(flight, is_stored=True, is_known=True)
        if not flight.future.done():
            flight.future.set_result(result)

    def _sweep(self) -> None:
        # Flights are in order of take-off; those with a time-out of their own may lie behind
        # a longer one, hence all are looked at. This runs once per time-out, not per message.
        self._timer = None
        now = self._loop.time()
        due = [flight for flight in self._flights if self._attempt_deadline(flight) <= now]
        for flight in due:
            self._abandon(flight)
            self._session.no_answer(flight.address, flight.sent_at)
            self._failed(flight, self._timeout_of(flight))
        if self._flights:
            first = min(map(self._attempt_deadline, self._flights))
            self._timer = self._loop.call_at(first, self._sweep)

    def _abandon(self, flight: _Flight) -> None:
        del self._flights[flight]
        request, flight.request = flight.request, None
        if request is not None:
            request.cancel()

    def _attempt_deadline(self, flight: _Flight) -> float:
        if flight.sticky:
            return min(flight.deadline, flight.sent_at + flight.attempt_seconds)
        bound = self._config.attempt_timeout
        if not bound or flight.attempts_left <= _NO_ATTEMPT_LEFT:
            return flight.deadline
        return min(flight.deadline, flight.sent_at + bound)

    # Retries.

    def _failed(self, flight: _Flight, error: RocketpostError) -> None:
        """Decide what follows a failed attempt."""
        self._report_latency(flight, failed=True)
        if isinstance(error, GoAway):
            self._session.connector.drop(flight.address)
        if flight.sticky:
            self._failed_sticky(flight, error)
            return
        final = isinstance(error, Fault) and int(error.code) not in self._config.retry_codes
        if not final:
            self._refresh_route(flight.out.topic)
        late = self._loop.time() >= flight.deadline
        if final or late or flight.attempts_left <= _NO_ATTEMPT_LEFT:
            self._give_up(flight, self._timeout_of(flight) if late and not final else error)
        else:
            self._retry(flight)

    def _failed_sticky(self, flight: _Flight, error: RocketpostError) -> None:
        code = int(error.code) if isinstance(error, Fault) else None
        if code in NOT_STORED_CODES and flight.unresolved:
            flight.unresolved -= 1
        heals = code is None or code in self._config.retry_codes or code in _HEALING_CODES
        if not heals:
            self._give_up(flight, error)
            return
        self._refresh_route(flight.out.topic)
        if self._loop.time() >= flight.deadline:
            self._give_up(flight, self._timeout_of(flight) if flight.unresolved else error)
            return
        self._retry(flight)

    def _give_up(self, flight: _Flight, error: RocketpostError) -> None:
        if flight.outcome is not None:
            self._leave(flight.out)
            self._end(flight, is_stored=True, is_known=True)
            if not flight.future.done():
                flight.future.set_result(flight.outcome)
            return
        error.add_note(f"topic {flight.out.topic}, brokers tried: {', '.join(flight.brokers)}")
        self._land(flight, error)

    def _retry(self, flight: _Flight) -> None:
        self._session.tasks.start(self._attempt(flight), name=f"resend to {flight.out.topic}")

    async def _attempt(self, flight: _Flight) -> None:
        """Try once more; a sticky send after a pause, and elsewhere only if nothing was stored."""
        try:
            if flight.sticky:
                await self._rest(flight)
            if not flight.sticky or not (flight.unresolved or flight.fixed):
                route = await self._session.routes.publish(flight.out.topic)
                flight.queue = self.choose(route, avoid=flight.queue.broker_name)
            address = self._session.routes.master(flight.queue.broker_name)
            flight.address, flight.sent_at = address, self._loop.time()
            connection = await self._connect(address, flight.deadline - self._loop.time())
            self._take_off(flight, connection, address)
        except RocketpostError as error:
            self._count_attempt(flight)
            self._failed(flight, error)
        except asyncio.CancelledError:
            self._land(flight, ConnectionLost("the client was closed while it tried again"))
            raise

    async def _rest(self, flight: _Flight) -> None:
        pause = min(_PAUSE_MAX, _PAUSE_MIN * 2 ** min(len(flight.brokers), 6))
        await asyncio.sleep(min(pause, max(0.0, flight.deadline - self._loop.time())))

    async def _connect(self, address: str, seconds: float) -> Connection:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                return await self._session.connector.connect(address)
        except TimeoutError:
            raise ConnectionLost(f"cannot connect to {address} in {seconds:.3g} s") from None

    # Small things.

    def _leave(self, out: Outgoing) -> None:
        self.in_flight.leave(len(out.body), out.count)

    def _count_attempt(self, flight: _Flight) -> None:
        flight.attempts_left -= 1
        flight.brokers.append(flight.queue.broker_name)

    def _timeout_of(self, flight: _Flight) -> RequestTimeout:
        first, _, more = flight.out.message_id.partition(",")
        what = f"the message {first}" + (" and the rest of its batch" if more else "")
        return RequestTimeout(
            f"no answer from {flight.address or flight.queue.broker_name} in time; "
            f"{what} may have been stored or not"
        )

    def _end(self, flight: _Flight, *, is_stored: bool, is_known: bool) -> None:
        if flight.on_end is not None:
            flight.on_end(flight.queue, is_stored, is_known)

    def _land(self, flight: _Flight, error: BaseException) -> None:
        self._leave(flight.out)
        self._end(flight, is_stored=False, is_known=not flight.unresolved)
        if not flight.future.done():
            flight.future.set_exception(error)

    def _report_latency(self, flight: _Flight, *, failed: bool) -> None:
        if not self._config.avoid_slow_brokers:
            return
        broker, now_ms = flight.queue.broker_name, self._loop.time() * 1000
        if failed:
            self._faults.report_failure(broker, now_ms=now_ms)
        else:
            self._faults.report(broker, now_ms - flight.sent_at * 1000, now_ms=now_ms)

    def _refresh_route(self, topic: str) -> None:
        if self._session.is_running:
            self._session.tasks.start(self._session.routes.refresh(topic), name=f"route of {topic}")


def _result(status: SendStatus, flight: _Flight, response: Command) -> SendResult:
    head = response.read(SendResponse)
    flight.out.duplicates = head.duplicate
    flight.out.queue_offsets = head.queue_offsets
    queue = flight.queue
    if head.queue_id != queue.queue_id:
        queue = MessageQueue(queue.broker_name, head.queue_id, queue.topic)
    return SendResult(
        status,
        flight.out.message_id,
        head.msg_id,
        queue,
        head.queue_offset,
        head.transaction_id,
        head.region or "DefaultRegion",
        head.trace_on != "false",
        head.recall_handle,
        head.duplicate == "true",
    )
