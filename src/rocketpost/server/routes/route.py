"""Routes: for each request code its header type, its access rule and its handler.

A handler takes the connection, the command and the decoded header, or None if the route has no
header. There are four kinds of routes:

- ``plain``: a function that returns a :class:`Reply`, or None if it answers later itself: a
  held pull, a send that waits for the disk.
- ``in_slices``: a generator function for work that may take long. It yields about every
  millisecond, so that other requests are served in between, and returns like a plain one.
- ``waiting``: a coroutine function that waits for something else. Each request runs as a task;
  ``server.routes.pools`` limits the number of tasks and the bytes of their requests.
- ``either``: a plain function; if it returns None, a coroutine serves the request.

A handler raises a ``Fault`` to refuse. ``server.routes.dispatch`` serves a table of routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.server.routes.access import Access
from rocketpost.server.routes.pools import PoolKind
from rocketpost.transport.connection import Buffer, Connection

H = TypeVar("H")


class Reply(NamedTuple):
    """A response before it is encoded; by default an empty success."""

    code: int = ResponseCode.SUCCESS
    fields: Mapping[str, str] | None = None
    body: bytes | list[Buffer] = b""
    remark: str | None = None


Handler = Callable[[Connection, Command, H], Reply | None]
SlicedHandler = Callable[[Connection, Command, H], Generator[None, None, Reply | None]]
WaitingHandler = Callable[[Connection, Command, H], Awaitable[Reply | None]]


class How(Enum):
    """Way in which a handler is run."""

    PLAIN = "plain"
    SLICED = "sliced"
    WAITING = "waiting"
    EITHER = "either"


NO_HEADER: Final = type(None)
"""Header type of requests whose header fields are not read."""


class Route(NamedTuple):
    """An entry of the request table; made by the functions below, which check its types."""

    code: RequestCode
    header: type[Any]
    access: Access
    handler: Callable[..., Any]
    how: How = How.PLAIN
    pool: PoolKind = PoolKind.ADMIN
    """Pool of the tasks that wait for the same thing, if the request waits."""
    later: WaitingHandler[Any] | None = None
    """Serves the requests for which the handler returns None."""


def plain(code: RequestCode, header: type[H], access: Access, handler: Handler[H]) -> Route:
    """Return a route to a function."""
    return Route(code, header, access, handler)


def in_slices(
    code: RequestCode, header: type[H], access: Access, handler: SlicedHandler[H]
) -> Route:
    """Return a route to a generator function."""
    return Route(code, header, access, handler, How.SLICED)


def waiting(
    code: RequestCode,
    header: type[H],
    access: Access,
    handler: WaitingHandler[H],
    pool: PoolKind = PoolKind.ADMIN,
) -> Route:
    """Return a route to a coroutine function.

    A function that returns an awaitable may do its first part in the loop iteration in which the
    request arrives: before the next request of the connection, and before the routes change.
    """
    return Route(code, header, access, handler, How.WAITING, pool)


def either(
    code: RequestCode,
    header: type[H],
    access: Access,
    handler: Handler[H],
    later: WaitingHandler[H],
) -> Route:
    """Return a route to a function that may leave a request to a coroutine function."""
    return Route(code, header, access, handler, How.EITHER, PoolKind.ADMIN, later)


async def finish_in_turns(steps: Generator[None, None, Reply]) -> Reply:
    """Do work in steps, let other requests be served in between, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            reply: Reply = done.value
            return reply
        await asyncio.sleep(0)
