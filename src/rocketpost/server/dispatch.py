"""Requests to handlers, results to responses.

A handler is a plain function ``(connection, command) -> Reply | None``. It raises a ``Fault`` to
refuse; it returns None when it answers later by itself: a held pull, a send that awaits the disk.
What may take long is registered with :meth:`Dispatcher.on_sliced`: a generator that yields about
every millisecond, so that others are served in between. What must wait for somebody else is
registered with :meth:`Dispatcher.on_async` and runs as a task; ``server.pools`` bounds how many of
those run, and how many bytes of requests they hold.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Final, NamedTuple

from rocketpost.codec.codes import ANSWER_ONLY, ResponseCode
from rocketpost.codec.command import ONEWAY, Command, encode_response
from rocketpost.errors import Fault, LocalProtocolError, RocketpostError
from rocketpost.server.pools import BOUNDS, Kind, Pool
from rocketpost.transport.connection import Buffer, Connection

logger = logging.getLogger(__name__)

REMARK_LENGTH_MAX: Final = 4096
"""A refusal may quote what it refuses, which may be megabytes."""


_DONE: Final = object()


class Reply(NamedTuple):
    """A response in the making; success with nothing in it unless said otherwise."""

    code: int = ResponseCode.SUCCESS
    fields: Mapping[str, str] | None = None
    body: bytes | list[Buffer] = b""
    remark: str | None = None


Handler = Callable[[Connection, Command], Reply | None]
AsyncHandler = Callable[[Connection, Command], Awaitable[Reply]]
SlicedHandler = Callable[[Connection, Command], Generator[None, None, Reply | None]]


class Dispatcher:
    """The table of handlers. Belongs to the event loop."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self.pools = {kind: Pool(kind, bounds) for kind, bounds in BOUNDS.items()}

    def on(self, code: int, handler: Handler) -> None:
        """Let ``handler`` serve requests of ``code``."""
        assert code not in self._handlers
        self._handlers[code] = handler

    def on_sliced(self, code: int, handler: SlicedHandler) -> None:
        """Let a generator function serve requests of ``code``; it yields where it may pause."""

        def start(connection: Connection, command: Command) -> None:
            steps = _steps(handler, connection, command)
            if next(steps, _DONE) is not _DONE:
                connection.work(steps)

        self.on(code, start)

    def on_async(self, code: int, handler: AsyncHandler, kind: Kind = Kind.ADMIN) -> None:
        """Let a coroutine function serve requests of ``code``, each in a task.

        Args:
            code: The requests.
            handler: Serves one.
            kind: What it waits for.
        """
        pool = self.pools[kind]

        def start(connection: Connection, command: Command) -> None:
            self._start(pool, handler, connection, command)

        self.on(code, start)

    def on_either(
        self, code: int, handler: Handler, later: AsyncHandler, kind: Kind = Kind.ADMIN
    ) -> None:
        """Let ``handler`` serve requests of ``code``; those that it leaves go on in ``later``."""
        pool = self.pools[kind]

        def start(connection: Connection, command: Command) -> Reply | None:
            reply = handler(connection, command)
            if reply is None:
                self._start(pool, later, connection, command)
            return reply

        self.on(code, start)

    @property
    def codes(self) -> frozenset[int]:
        """The request codes that somebody serves."""
        return frozenset(self._handlers)

    @property
    def is_idle(self) -> bool:
        """Whether no request is being served in a task."""
        return not any(pool.tasks for pool in self.pools.values())

    def handle(self, connection: Connection, command: Command) -> None:
        """Serve one request; every request that wants a response gets exactly one."""
        handler = self._handlers.get(command.code)
        if handler is None:
            remark = f" request type {command.code} not supported"
            reply = Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            answer(connection, command, reply)
            return
        if command.flag & ONEWAY and command.code in ANSWER_ONLY:
            return  # it would be computed for nobody
        try:
            result = handler(connection, command)
        except Exception as error:
            result = refusal(connection, command, error)
        if result is not None:
            answer(connection, command, result)

    async def stop(self) -> None:
        """Cancel what still runs and wait for it."""
        tasks = [task for pool in self.pools.values() for task in pool.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(
        self, pool: Pool, handler: AsyncHandler, connection: Connection, command: Command
    ) -> None:
        size = len(command.body) + len(command.raw_fields)
        pool.check(connection, size)
        pool.start(connection, size, self._run(handler, connection, command))
        if pool.is_dear:
            # Its first steps run outside the budget of the connection, so they are not let pile up.
            connection.end_turn()

    async def _run(self, handler: AsyncHandler, connection: Connection, command: Command) -> None:
        try:
            reply = await handler(connection, command)
        except Exception as error:
            reply = refusal(connection, command, error)
        answer(connection, command, reply)


def _steps(
    handler: SlicedHandler, connection: Connection, command: Command
) -> Generator[None, None, None]:
    try:
        reply = yield from handler(connection, command)
    except Exception as error:
        reply = refusal(connection, command, error)
    if reply is not None:
        answer(connection, command, reply)


def answer(connection: Connection, command: Command, reply: Reply) -> None:
    """Send ``reply`` to ``command``, unless that wants none."""
    if command.flag & ONEWAY:
        return
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
        # It had to be answered all the same: the peer counts on it, and so does back-pressure.
        logger.warning(
            "answer does not fit: peer=%s code=%s reason=%s",
            connection.peer_text,
            command.code,
            error,
        )
        head = encode_response(command, ResponseCode.SYSTEM_ERROR, remark=str(error))
        buffers = []
    connection.answer(head, *buffers)


def refusal(connection: Connection, command: Command, error: Exception) -> Reply:
    """Turn what a handler raised into a response; our own mistakes are logged in full."""
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
