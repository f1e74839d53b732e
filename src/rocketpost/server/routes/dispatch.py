"""The dispatcher: finds a request's route, decodes its header, calls the handler, answers.

Every request of every connection passes through :meth:`Dispatcher.handle`. Code that concerns all
requests belongs there, access control above all (``server.access.gate``). The exceptions are the
plain sends and repeated pulls that :meth:`Dispatcher.take` offers to the lanes, which take them
only if the gate would admit them (``server.access.logins``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from rocketpost.broker.request_times import RequestTimes
from rocketpost.codec.codes import ANSWER_ONLY, ResponseCode
from rocketpost.codec.command import ONEWAY, Command, encode_response
from rocketpost.errors import Fault, LocalProtocolError, RocketpostError
from rocketpost.server.access.gate import Gate, LoginFailed
from rocketpost.server.routes.pools import BOUNDS, Pool, PoolKind
from rocketpost.server.routes.route import (
    NO_HEADER,
    How,
    Reply,
    Route,
    SlicedHandler,
    WaitingHandler,
)
from rocketpost.transport.connection import Buffer, Connection
from rocketpost.transport.express import Data, Express

logger = logging.getLogger(__name__)

REMARK_LENGTH_MAX: Final = 4096
"""Longest remark of a refusal: it may quote a request of megabytes."""

_DONE: Final = object()
_NO_FIELDS: Final = msgspec.Raw(b"")
_GRACE_SECONDS: Final = 0.5
_CANCELLED: Final = (
    "the broker stops or changes its role; whether this request took effect is not known"
)

Start = Callable[[Connection, Command, Any], Reply | None]
"""Begins to serve a request; returns the reply if there is one already."""


class Dispatcher:
    """Serves the requests that a table of routes lists. Belongs to the event loop.

    Attributes:
        gate: Authenticates and authorises requests; None if access control is off.
        times: Measures requests; None if metrics are off.
    """

    def __init__(self, routes: Iterable[Route] = ()) -> None:
        self.gate: Gate | None = None
        self.fence: Callable[[Command], None] | None = None
        """Raises a fault for requests that come too late; None if none can."""
        self.times: RequestTimes | None = None
        self.pools = {kind: Pool(kind, bounds) for kind, bounds in BOUNDS.items()}
        self.use(routes)

    def use(self, routes: Iterable[Route], lanes: Sequence[Express[Connection]] = ()) -> None:
        """Serve these routes from now on, and no others.

        A request that an earlier route began to serve is finished by that route's handler.

        Args:
            routes: The routes.
            lanes: Take requests before they are decoded. They must do themselves what
                :meth:`handle` does for all requests, access checks included.
        """
        self._lanes = lanes
        table: dict[int, Route] = {}
        for route in routes:
            assert route.code not in table, f"two routes for {route.code!r}"
            assert route.access.rules, f"no access rule for {route.code!r}"
            table[route.code] = route
        self._routes = table
        self._entries = {
            code: (
                None if route.header is NO_HEADER else route.header,
                self._start_of(route),
                route.access,
            )
            for code, route in table.items()
        }

    @property
    def routes(self) -> Mapping[int, Route]:
        """The routes in use, by request code."""
        return MappingProxyType(self._routes)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served in a task."""
        return not any(pool.tasks for pool in self.pools.values())

    def take(self, connection: Connection, data: Data, at: int, end: int) -> int:
        """Offer bytes to the lanes by turns, until the last one takes nothing.

        See ``transport.express``.
        """
        begin = -1
        while at != begin:
            begin = at
            for lane in self._lanes:
                begin = at
                at = lane(connection, data, at, end)
                if at == end:
                    return at
        return at

    def handle(self, connection: Connection, command: Command) -> None:
        """Serve one request; every request that wants a response gets exactly one.

        A request is authenticated before anything else, so that a stranger learns nothing. It is
        authorised by its decoded header, the one that the handler gets.
        """
        if self.times is not None:
            command.timing = self.times.begin()
        gate = self.gate
        if gate is not None and connection.is_trusted:
            gate = None
        if gate is not None and not admit(gate, connection, command):
            return
        entry = self._entries.get(command.code)
        if entry is None:
            remark = f" request type {command.code} not supported"
            reply = Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            answer(connection, command, reply)
            return
        if command.flag & ONEWAY and command.code in ANSWER_ONLY:
            return  # a oneway request gets no answer
        header_type, start, access = entry
        try:
            if self.fence is not None:
                self.fence(command)
            header = None if header_type is None else command.read(header_type)
            if gate is not None:
                gate.check(connection, command, header, access)
            result = start(connection, command, header)
        except Exception as error:
            result = refusal(connection, command, error)
        if result is not None:
            answer(connection, command, result)

    async def stop(self, *, but: Collection[PoolKind] = ()) -> None:
        """End the requests that are served in tasks: wait a little, cancel the rest, answer all.

        Args:
            but: Pools whose tasks continue.
        """
        pools = [pool for kind, pool in self.pools.items() if kind not in but]
        tasks = [task for pool in pools for task in pool.tasks]
        if tasks:
            await asyncio.wait(tasks, timeout=_GRACE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_of(self, route: Route) -> Start:
        """Return the function that begins to serve requests of a route."""
        handler, pool = route.handler, self.pools[route.pool]

        def start_sliced(connection: Connection, command: Command, header: Any) -> None:
            steps = _steps(handler, connection, command, header)
            if next(steps, _DONE) is not _DONE:
                connection.work(steps)

        def start_waiting(connection: Connection, command: Command, header: Any) -> None:
            self._start_task(pool, handler, connection, command, header)

        def start_either(connection: Connection, command: Command, header: Any) -> Reply | None:
            reply: Reply | None = handler(connection, command, header)
            if reply is None:
                assert route.later is not None
                self._start_task(pool, route.later, connection, command, header)
            return reply

        return {
            How.PLAIN: handler,
            How.SLICED: start_sliced,
            How.WAITING: start_waiting,
            How.EITHER: start_either,
        }[route.how]

    def _start_task(
        self,
        pool: Pool,
        handler: WaitingHandler[Any],
        connection: Connection,
        command: Command,
        header: Any,
    ) -> None:
        size = len(command.body) + len(command.raw_fields)
        pool.check(connection, size)
        work = handler(connection, command, header)
        pool.start(connection, size, _run(work, connection, command))
        if pool.is_dear:
            # Its first steps run outside the budget of the connection, so they must not pile up.
            connection.end_turn()


def admit(gate: Gate, connection: Connection, command: Command) -> bool:
    """Authenticate a request; return whether to continue. A stranger's request is answered here."""
    try:
        gate.admit(connection, command)
    except LoginFailed as failure:
        _turn_away(gate, connection, command, failure)
        return False
    connection.is_known |= command.caller is not None
    return True


def _turn_away(gate: Gate, connection: Connection, command: Command, failure: LoginFailed) -> None:
    """Answer a request of a stranger, late if there were many of them."""
    reply = Reply(int(failure.code), remark=failure.remark)
    if failure.delay is None:
        logger.warning("connection dropped: peer=%s reason=failed logins", connection.peer_text)
        connection.abort()
    elif not failure.delay:
        answer(connection, command, reply)
    else:
        _forget_contents(command)  # a stranger must not fill the memory with what waits

        def answer_late() -> None:
            gate.failures.note_answer(failure.address)
            answer(connection, command, reply)

        asyncio.get_running_loop().call_later(failure.delay, answer_late)


async def _run(work: Awaitable[Reply | None], connection: Connection, command: Command) -> None:
    try:
        reply = await work
    except asyncio.CancelledError:
        # The peer must not wait for its time-out: its connection may live on in the next term.
        answer(connection, command, Reply(ResponseCode.SYSTEM_ERROR, remark=_CANCELLED))
        raise
    except Exception as error:
        reply = refusal(connection, command, error)
    if reply is not None:
        answer(connection, command, reply)


def _steps(
    handler: SlicedHandler[Any], connection: Connection, command: Command, header: Any
) -> Generator[None, None, None]:
    try:
        reply = yield from handler(connection, command, header)
    except Exception as error:
        reply = refusal(connection, command, error)
    if reply is not None:
        answer(connection, command, reply)


def answer(connection: Connection, command: Command, reply: Reply) -> None:
    """Send ``reply`` to ``command``, unless it wants no response.

    Back-pressure counts the requests of a peer that are not answered yet. This removes ``command``
    from that count. For a parked request, which is no longer counted, see :func:`answer_parked`.
    """
    is_oneway = bool(command.flag & ONEWAY)
    if command.timing is not None:
        command.timing.end(command.code, reply.code, is_oneway=is_oneway)
    if not is_oneway:
        connection.answer(*_encode(connection, command, reply))


def park(connection: Connection, command: Command) -> None:
    """Stop counting a request as unanswered, and keep only its opaque number.

    A held pull may wait for a minute, and its peer may send more requests meanwhile.
    ``server.long_polling`` and ``server.popping.holds`` limit the number that wait.
    """
    connection.no_answer()
    if command.timing is not None:
        command.timing.is_held = True
    _forget_contents(command)


def _forget_contents(command: Command) -> None:
    """Keep only what an answer needs: code, opaque number and version."""
    command.body = b""
    command.raw_fields = _NO_FIELDS
    command.text_fields = {}
    command.remark = None
    command.sender_language = ""


def answer_parked(connection: Connection, command: Command, reply: Reply) -> None:
    """Send ``reply`` to a command that :func:`park` removed from the unanswered requests."""
    if command.timing is not None:
        command.timing.end(command.code, reply.code)
    connection.send(*_encode(connection, command, reply))


def _encode(connection: Connection, command: Command, reply: Reply) -> list[Buffer]:
    body = reply.body
    buffers: list[Buffer] = body if isinstance(body, list) else [body] if body else []
    try:
        head = encode_response(
            command,
            reply.code,
            remark=reply.remark,
            fields=reply.fields,
            body_bytes=sum(map(len, buffers)),
        )
    except LocalProtocolError as error:
        # Answer anyway: the peer waits for it, and back-pressure counts it.
        logger.warning(
            "answer does not fit: peer=%s code=%s reason=%s",
            connection.peer_text,
            command.code,
            error,
        )
        return [encode_response(command, ResponseCode.SYSTEM_ERROR, remark=str(error))]
    return [head, *buffers]


def refusal(connection: Connection, command: Command, error: Exception) -> Reply:
    """Turn a handler's exception into a response; an unexpected one is logged in full."""
    if isinstance(error, Fault):
        return Reply(int(error.code), remark=_cut(error.remark))
    if isinstance(error, RocketpostError):
        logger.warning(
            "request failed: peer=%s code=%s reason=%s", connection.peer_text, command.code, error
        )
        return Reply(ResponseCode.SYSTEM_ERROR, remark=_cut(str(error)))
    logger.error(
        "request failed: peer=%s code=%s", connection.peer_text, command.code, exc_info=error
    )
    return Reply(ResponseCode.SYSTEM_ERROR, remark=_cut(f"{type(error).__name__}: {error}"))


def _cut(remark: str) -> str:
    if len(remark) <= REMARK_LENGTH_MAX:
        return remark
    return f"{remark[:REMARK_LENGTH_MAX]}... ({len(remark)} characters)"
