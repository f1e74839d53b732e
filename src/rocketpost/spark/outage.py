"""Retries during outages: a running query must survive the restart of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from rocketpost.codec.faults import (
    FlowControl,
    GoAway,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
)
from rocketpost.errors import (
    ClientError,
    ConnectionLost,
    NoNameServer,
    RequestTimeout,
    RouteNotFound,
)

T = TypeVar("T")

_PAUSE_SECONDS_MIN: Final = 0.01
_PAUSE_SECONDS_MAX: Final = 2.0


class TemporarilyMissing(ClientError):  # noqa: N818 - named after the condition
    """Something that existed is missing now, and may return."""


UNKNOWN_NAME: Final = (RouteNotFound, TopicNotExist, NoNameServer)
"""Errors of a wrong name. A broker that restarts causes the same, because its routes are gone."""
TRANSIENT: Final = (
    *UNKNOWN_NAME,
    TemporarilyMissing,
    ConnectionLost,
    RequestTimeout,
    ServiceNotAvailable,
    SystemBusy,
    FlowControl,
    GoAway,
)
"""Errors that may be over in a moment."""


async def do_nothing() -> None:
    """Do nothing between two attempts."""


async def retry_during_outage(
    ask: Callable[[], Awaitable[T]],
    *,
    seconds: float,
    pause: float,
    unknown_max: int | None = None,
    between: Callable[[], Awaitable[None]] = do_nothing,
) -> T:
    """Ask until there is an answer, and return it. Pauses double, up to two seconds.

    Args:
        ask: Asks once.
        seconds: The time limit. An attempt that is under way at its end is completed.
        pause: Seconds before the second attempt.
        unknown_max: Retries for an unknown name; None for no limit but the time.
        between: Called after each failure.

    Raises:
        RocketpostError: The error of the last attempt.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    pause = max(pause, _PAUSE_SECONDS_MIN)
    unknown = 0
    while True:
        try:
            return await ask()
        except TRANSIENT as error:
            unknown += isinstance(error, UNKNOWN_NAME)
            if unknown_max is not None and unknown > unknown_max:
                raise
            if loop.time() + pause > until:
                error.add_note(f"retried for {seconds:g} s")
                raise
        await between()
        await asyncio.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)
