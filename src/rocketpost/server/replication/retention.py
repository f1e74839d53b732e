"""Messages that a slave keeps because its master still has them (ADR 0084).

Before a master deletes a segment, it moves the messages out of it that it has yet to deliver:
delayed and timed ones, and halves of transactions. The copies reach a slave as part of the log. So
a slave that keeps a segment until its master has deleted it, and until it has the log up to that
moment, can deliver everything if it becomes the master.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from rocketpost.broker.group.retention_holds import RetentionHolds
from rocketpost.errors import RocketpostError
from rocketpost.model.ids import Position

logger = logging.getLogger(__name__)


class Log(Protocol):
    """The part of the store that this module uses."""

    @property
    def durable_position(self) -> Position:
        """End of the bytes that are on disk."""


class MasterHold:
    """Keeps messages of a slave from expiring; a full disk may force them out. Owned by the loop.

    Args:
        log: The slave's log.
        holds: The groups that keep messages from being deleted.
        ask_bounds: Returns start and end of the master's log; None if it is not known.
    """

    def __init__(
        self,
        *,
        log: Log,
        holds: RetentionHolds,
        ask_bounds: Callable[[], Awaitable[tuple[int, int] | None]],
    ) -> None:
        self._log = log
        self._holds = holds
        self._ask_bounds = ask_bounds
        self._bounds: tuple[int, int] | None = None
        self._first = 0

    async def refresh(self) -> None:
        """Ask the master where its log begins; without an answer, the last known position stays."""
        if self._bounds is not None:
            return  # the own log may not have reached the end that the master had when it answered
        try:
            self._bounds = await self._ask_bounds()
        except RocketpostError as error:
            logger.info("start of the master's log not known: reason=%s", error)

    def oldest_needed_position(self) -> Position:
        """Return the position from which on messages do not expire."""
        if self._bounds is not None and self._log.durable_position >= self._bounds[1]:
            self._first = max(self._first, self._bounds[0])
            self._bounds = None
        held = self._holds.oldest_needed_position()
        return Position(self._first if held is None else min(self._first, held))
