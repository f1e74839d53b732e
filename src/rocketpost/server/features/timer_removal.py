"""Moves timed messages out of segments that are about to be deleted.

``broker.timer.moving`` decides which messages move. This module stores the copies and waits until
they are stored. It moves one slot after another. The timer pauses while a slot is moved, and
continues between two slots.
"""

from __future__ import annotations

import asyncio

from rocketpost.broker.timer.moving import Departure, MessageMover
from rocketpost.errors import StoreError
from rocketpost.server.features.delay_delivery import Put
from rocketpost.store.draft import Appended


class TimerRemoval:
    """Moves messages that wait before a position. Owned by the loop.

    Args:
        put: Stores messages as safely as sends are stored.
    """

    def __init__(self, *, moving: MessageMover, put: Put) -> None:
        self._mover = moving
        self._put = put
        self._departure: Departure | None = None
        self._under_way: asyncio.Future[list[Appended]] | None = None

    async def run(self, position: int, *, freed_bytes: int) -> int:
        """Move all messages that wait before a position; return their number.

        Raises:
            StoreError: Some messages could not be moved.
            OSError: The timer log could not be written.
        """
        before, found = self._mover.moved, dict[int, int]()
        for found in self._mover.survey(position):  # noqa: B007 - the last has all
            await asyncio.sleep(0)
        self._mover.check(found, freed_bytes=freed_bytes)
        for slot_ms in sorted(found, reverse=True):  # the first slots may be due by then
            departure = self._departure = self._mover.begin(slot_ms, position)
            if departure is not None:
                await self._move(departure)
        return self._mover.moved - before

    async def _move(self, departure: Departure) -> None:
        try:
            while drafts := self._mover.drafts(departure):
                self._under_way = self._put(drafts)
                stored = await asyncio.shield(self._under_way)
                self._under_way = None
                self._mover.note_stored(departure, len(stored))
                if len(stored) < len(drafts):
                    raise StoreError("there is no room to move waiting messages")
        except asyncio.CancelledError:
            raise  # the last put may still succeed: see `end`
        except BaseException:
            self.end()
            raise
        self.end()

    def end(self) -> bool:
        """Settle the move in progress; return False if its outcome is unknown."""
        departure, self._departure = self._departure, None
        future, self._under_way = self._under_way, None
        if departure is None:
            return True
        is_known = True
        if future is not None:
            is_known = future.done() and not future.cancelled() and future.exception() is None
            if is_known:
                self._mover.note_stored(departure, len(future.result()))
        self._mover.end(departure)
        return is_known
