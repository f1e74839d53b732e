"""Saves of a member's promises, in a thread, so that the loop never waits for the disk.

Only the newest term and vote count, so one save covers every request before it: those that come
while a save runs share the next one. Commit bound and watermark are saved in between, about once a
second, since no answer waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from rocketpost.errors import StoreError
from rocketpost.raft.messages import NodeId

logger = logging.getLogger(__name__)

PROGRESS_SECONDS: Final = 1.0
"""Time between two saves of commit bound and watermark."""


class Promises(Protocol):
    """The part of a member's store that is saved here (``store.member``)."""

    def save_vote_blocking(self, term: int, vote: str | None) -> None:
        """Make a term and its vote durable."""

    def save_progress_blocking(self, commit: int, acknowledged: int) -> None:
        """Raise commit bound and watermark."""


class StateSaver:
    """Saves term, vote and progress of a member. Owned by the loop.

    Args:
        promises: The files.
        progress: Returns the commit position, and the position up to which this member has
            acknowledged its log.
        on_saved: Called with the number of the newest request that is durable.
        on_failed: Called once, with the reason, if a promise cannot be saved.
    """

    def __init__(
        self,
        promises: Promises,
        *,
        progress: Callable[[], tuple[int, int]],
        on_saved: Callable[[int], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._promises = promises
        self._progress = progress
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._wanted: tuple[int, int, NodeId | None] | None = None
        self._wake = asyncio.Event()
        self._saved_progress = (0, 0)
        self._has_failed = False
        self.save_count = 0
        """Number of saves of term and vote."""

    def save(self, number: int, term: int, vote: NodeId | None) -> None:
        """Request that a term and a vote are saved soon."""
        self._wanted = (number, term, vote)
        self._wake.set()

    async def run(self) -> None:
        """Save the newest term, vote and progress as requested, until cancelled."""
        while not self._has_failed:
            try:
                async with asyncio.timeout(PROGRESS_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                await self._save_progress()
                continue
            self._wake.clear()
            await self._save_vote()

    async def close(self) -> None:
        """Save the last progress; :meth:`run` has ended."""
        if not self._has_failed:
            await self._save_progress()

    async def _save_vote(self) -> None:
        assert self._wanted is not None
        number, term, vote = self._wanted
        try:
            await asyncio.to_thread(self._promises.save_vote_blocking, term, vote)
        except StoreError as error:
            self._fail(error)
            return
        self.save_count += 1
        self._on_saved(number)

    async def _save_progress(self) -> None:
        progress = self._progress()
        if progress == self._saved_progress:
            return
        try:
            await asyncio.to_thread(self._promises.save_progress_blocking, *progress)
        except StoreError as error:
            self._fail(error)
            return
        self._saved_progress = progress

    def _fail(self, error: StoreError) -> None:
        self._has_failed = True
        logger.error("this member takes no more part in its group: reason=%s", error)
        self._on_failed(str(error))
