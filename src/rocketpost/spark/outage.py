"""Asking again: servers restart, and a query that runs must outlive that."""

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


class NotYet(ClientError):  # noqa: N818 - named after what is found
    """Something that was there is not there now, and may come back."""


UNKNOWN: Final = (RouteNotFound, TopicNotExist, NoNameServer)
"""What a wrong name looks like. A broker that restarts looks the same: its routes are gone."""
PASSING: Final = (
    *UNKNOWN,
    NotYet,
    ConnectionLost,
    RequestTimeout,
    ServiceNotAvailable,
    SystemBusy,
    FlowControl,
    GoAway,
)
"""What may be over in a moment."""


async def nothing() -> None:
    """Do nothing between two attempts."""


async def ask_again(
    ask: Callable[[], Awaitable[T]],
    *,
    seconds: float,
    pause: float,
    unknown_max: int | None = None,
    between: Callable[[], Awaitable[None]] = nothing,
) -> T:
    """Ask until there is an answer, and return it. Pauses double, up to two seconds.

    Args:
        ask: Asks once.
        seconds: For how long; an attempt that is under way then is waited for.
        pause: Seconds before the second attempt.
        unknown_max: How often a name that nobody knows is asked for again; None for no such bound.
        between: Done after each failure.

    Raises:
        RocketpostError: What the last attempt raised.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    pause = max(pause, _PAUSE_SECONDS_MIN)
    unknown = 0
    while True:
        try:
            return await ask()
        except PASSING as error:
            unknown += isinstance(error, UNKNOWN)
            if unknown_max is not None and unknown > unknown_max:
                raise
            if loop.time() + pause > until:
                error.add_note(f"asked again for {seconds:g} s")
                raise
        await between()
        await asyncio.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)
