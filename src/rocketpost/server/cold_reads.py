"""Cold reads: pulls whose records must come from the disk wait for it in threads.

The event loop serves other requests meanwhile. A pull that waits here is run again when its records
are in memory. If too many wait already, it is run at once and waits for the disk on the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from rocketpost.broker.pull.service import PullAnswer, PullHold
from rocketpost.server.long_polling import Waiter

logger = logging.getLogger(__name__)

COUNT_MAX: Final = 1024
"""Largest number of waiting pulls."""
THREADS: Final = 4
READ_AHEAD_BYTES: Final = 256 * 1024
"""Bytes read at least: the next pulls of a consumer that catches up find theirs in memory."""


class ColdReads:
    """The pulls that wait for the disk. Owned by the loop.

    Args:
        warm: Reads a part of the log, given by position and size, into memory; called in threads.
        resume: Runs a pull again.
    """

    def __init__(
        self, *, warm: Callable[[int, int], None], resume: Callable[[PullHold], PullAnswer]
    ) -> None:
        self._warm = warm
        self._resume = resume
        self._waiting: dict[asyncio.Future[None], tuple[Waiter, PullHold]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self.read_count = 0
        """Number of pulls that have waited for the disk here."""

    def __len__(self) -> int:
        return len(self._waiting)

    def park(self, waiter: Waiter, hold: PullHold) -> None:
        """Answer a pull once its records are in memory."""
        assert hold.cold
        if len(self._waiting) >= COUNT_MAX:
            self._run_again(waiter, hold)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-read")
        reading = asyncio.get_running_loop().run_in_executor(
            self._threads, self._read_blocking, hold
        )
        self._waiting[reading] = waiter, hold
        reading.add_done_callback(self._finish)

    def drop(self, owner: object) -> None:
        """Drop the pulls of a lost owner."""
        for reading, (waiter, _) in list(self._waiting.items()):
            if waiter.owner is owner:
                del self._waiting[reading]
                reading.cancel()

    def close(self) -> None:
        """Run every waiting pull again now, and end the threads."""
        waiting, self._waiting = self._waiting, {}
        for reading, (waiter, hold) in waiting.items():
            reading.cancel()
            self._run_again(waiter, hold)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def _read_blocking(self, hold: PullHold) -> None:
        try:
            for position, size in hold.cold:
                self._warm(position, max(size, READ_AHEAD_BYTES))
        except OSError as error:
            # The pull itself checks each record, and reports those that cannot be read.
            logger.warning("cold read failed: queue=%s reason=%s", hold.queue, error)

    def _finish(self, reading: asyncio.Future[None]) -> None:
        found = self._waiting.pop(reading, None)
        if found is not None:
            self.read_count += 1
            self._run_again(*found)

    def _run_again(self, waiter: Waiter, hold: PullHold) -> None:
        try:
            waiter.resume(self._resume(hold))
        except Exception as error:
            # One failed pull must not stop the answers to the others.
            waiter.refuse(error)
