"""Saves the broker's tables: topics and groups soon after they change, offsets every few seconds.

A table counts its changes in ``revision`` and knows its text; the text is taken on the loop and
written by a thread, one save at a time. Whoever must not answer before a change is on disk awaits
:meth:`Persistence.save`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from rocketpost.errors import StoreError

logger = logging.getLogger(__name__)


class Table(Protocol):
    """A table that can be saved."""

    @property
    def revision(self) -> int:
        """A number that grows with every change."""
        ...  # pragma: no cover

    def to_json(self) -> bytes:
        """Return the text to save."""
        ...  # pragma: no cover


class File(Protocol):
    """Where a table is saved."""

    def save_blocking(self, data: bytes) -> None:
        """Replace the file."""
        ...  # pragma: no cover


class Saved(NamedTuple):
    """A table, its file, and whether a change is saved at once or with the next round."""

    table: Table
    file: File
    at_once: bool = True


class AfterFlush:
    """A file that is replaced only when all that its table speaks of is on disk.

    Offsets say what is done with, also of the broker's own messages: what a popped message was
    stored as again must not be taken back by a power cut that leaves the offset behind it.

    Args:
        flush_blocking: Makes everything that is written durable.
    """

    def __init__(self, file: File, flush_blocking: Callable[[], None]) -> None:
        self._file = file
        self._flush_blocking = flush_blocking

    def save_blocking(self, data: bytes) -> None:
        """Replace the file.

        Raises:
            StoreError: The messages cannot be made durable; the file is left as it was.
        """
        self._flush_blocking()
        self._file.save_blocking(data)


class Persistence:
    """Keeps tables on disk. Owned by the event loop.

    Args:
        tables: What to save.
        interval_s: How often tables that are not saved at once are.
    """

    def __init__(self, tables: list[Saved], *, interval_s: float) -> None:
        self._tables = tables
        self._interval_s = interval_s
        self._saved = [-1] * len(tables)
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        # A thread of its own: a save that was under way when we were cancelled stays the first.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tables")

    def changed(self, name: str = "") -> None:
        """Have the tables that are saved at once looked at soon; a table's ``on_change``."""
        self._wake.set()

    async def run(self) -> None:
        """Save until cancelled; a save that fails is tried again in the next round."""
        loop = asyncio.get_running_loop()
        next_round = loop.time() + self._interval_s
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_round):
                    await self._wake.wait()
            # By the clock: while topics change all the time, the wait never times out.
            whole = loop.time() >= next_round
            if whole:
                next_round = loop.time() + self._interval_s
            self._wake.clear()
            try:
                await self._save(whole=whole)
            except StoreError as error:
                logger.error("tables not saved, will be tried again: reason=%s", error)
            except Exception:
                logger.exception("tables not saved, will be tried again")

    async def save(self) -> None:
        """Return once everything that changed so far is on disk.

        Raises:
            StoreError: It could not be written; what was saved before still is.
        """
        await self._save(whole=True)

    async def save_urgent(self) -> None:
        """Return once the tables that are saved at once are on disk; offsets may wait.

        Raises:
            StoreError: It could not be written; what was saved before still is.
        """
        await self._save(whole=False)

    async def close(self) -> None:
        """Save everything and end the thread; :meth:`run` must have been cancelled.

        Raises:
            StoreError: The last save failed; what was saved before still is.
        """
        try:
            await self.save()
        finally:
            await asyncio.to_thread(self._thread.shutdown)

    async def _save(self, *, whole: bool) -> None:
        loop = asyncio.get_running_loop()
        async with self._one_at_a_time:
            for at, (table, file, at_once) in enumerate(self._tables):
                if table.revision == self._saved[at] or not (whole or at_once):
                    continue
                revision, data = table.revision, table.to_json()
                try:
                    await loop.run_in_executor(self._thread, file.save_blocking, data)
                except OSError as error:
                    raise StoreError(f"a table could not be saved: {error}") from error
                self._saved[at] = revision
