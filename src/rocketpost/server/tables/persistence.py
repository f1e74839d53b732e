"""Saves the broker's tables: some soon after each change, others at intervals.

A table counts its changes in ``revision`` and can return its text. The text is taken on the loop
and written by a thread, one save at a time. A caller that must not answer before a change is on
disk awaits :meth:`Persistence.save`. ``server.tables.registry`` declares the tables, and when each
of them is saved.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import NamedTuple, Protocol

from rocketpost.errors import StoreError

logger = logging.getLogger(__name__)


class Owner(Enum):
    """Part of the broker that changes a table; its tables are saved together on request."""

    BROKER = "topics, groups, offsets and settings"
    DELAY = "delivery of delayed messages"
    REQUEST_MODES = "assignment of queues"
    ORDER = "popping in order"
    GROUP_FILTERS = "filters of groups"
    NAMED_FILTERS = "named filters"
    ACCESS = "users and rules"


Replicate = Callable[[Owner, bool], Awaitable[None]]
"""Returns when an owner's tables are committed as they are; the flag includes offsets."""


class Table(Protocol):
    """A table that can be saved."""

    @property
    def revision(self) -> int:
        """A number that grows with every change."""
        ...

    def to_json(self) -> bytes:
        """Return the text to save."""
        ...


class File(Protocol):
    """The file of a table."""

    def save_blocking(self, data: bytes) -> None:
        """Replace the file."""
        ...


class Saved(NamedTuple):
    """A table, its file, and the times at which it is saved."""

    table: Table
    file: File
    at_once: bool = True
    """Whether a change is saved at once, not in the next round."""
    interval_s: float = 10.0
    """Time between two rounds of this table."""
    owner: Owner = Owner.BROKER


class AfterFlush:
    """A file that is replaced only when all messages that its table covers are on disk.

    Offsets cover the broker's own messages too: a popped message that was stored again must not be
    lost in a power cut while the saved offset is already after it.

    Args:
        flush_blocking: Makes all written messages durable.
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
        tables: The tables, in the order in which they are saved.
    """

    def __init__(self, tables: Sequence[Saved]) -> None:
        self._tables = tables
        self._saved = [-1] * len(tables)
        self._wake = asyncio.Event()
        self._changed: set[Owner] = set()
        self._one_at_a_time = asyncio.Lock()
        self.replicate: Replicate | None = None
        """Has changes committed by the group of this broker, if it leads one."""
        # Its own thread: a save in progress at a cancellation finishes before the next one.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tables")

    def note_change(self, name: str = "", *, owner: Owner = Owner.BROKER) -> None:
        """Note a change of an owner's tables, to save them soon; a table's ``on_change``."""
        self._changed.add(owner)
        self._wake.set()

    async def run(self) -> None:
        """Save until cancelled; a save that fails is tried again in the next round."""
        loop = asyncio.get_running_loop()
        rounds = [loop.time() + saved.interval_s for saved in self._tables]
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(rounds, default=None)):
                    await self._wake.wait()
            # Compare times: while topics change constantly, the wait never times out.
            now = loop.time()
            due = []
            for at, saved in enumerate(self._tables):
                if rounds[at] <= now:
                    rounds[at] = now + saved.interval_s
                    due.append(at)
                elif saved.at_once and saved.owner in self._changed:
                    due.append(at)
            self._wake.clear()
            self._changed.clear()
            try:
                await self._save(due)
            except StoreError as error:
                logger.error("tables not saved, will be tried again: reason=%s", error)
            except Exception:
                logger.exception("tables not saved, will be tried again")

    async def save(self, owner: Owner = Owner.BROKER) -> None:
        """Wait until all changes so far in an owner's tables are on disk.

        The leader of a group waits until they are committed, too.

        Raises:
            StoreError: A table could not be written; its last saved version is still there.
        """
        if self.replicate is not None:
            await self.replicate(owner, True)
        await self._save([at for at, saved in enumerate(self._tables) if saved.owner is owner])

    async def save_urgent(self, *, here_only: bool = False) -> None:
        """Wait until the broker's tables that are saved at once are on disk, not offsets.

        Args:
            here_only: Whether the leader of a group need not wait until they are committed.

        Raises:
            StoreError: A table could not be written; its last saved version is still there.
        """
        if self.replicate is not None and not here_only:
            await self.replicate(Owner.BROKER, False)
        await self._save(
            [
                at
                for at, saved in enumerate(self._tables)
                if saved.owner is Owner.BROKER and saved.at_once
            ]
        )

    async def close(self) -> None:
        """Save everything and end the thread; :meth:`run` must have been cancelled.

        Raises:
            StoreError: The last save failed; the versions saved before are still there.
        """
        try:
            async with self._one_at_a_time:
                pass  # what changes during the last save of others is saved, too
            await self._save(range(len(self._tables)))
        finally:
            await asyncio.to_thread(self._thread.shutdown)

    async def _save(self, numbers: Sequence[int]) -> None:
        """Save the given tables with all changes so far, unless another save has done so.

        Later changes are left to those who made them: if each of many callers saved what came after
        its own change, none of them would share a save.

        After a failure the other tables of the same owner are left for the next round: they may
        refer to changes that were not saved.
        """
        loop = asyncio.get_running_loop()
        failures: dict[Owner, StoreError] = {}
        wanted = [(at, self._tables[at].table.revision) for at in numbers]
        async with self._one_at_a_time:
            for at, wanted_revision in wanted:
                table, file, *_, owner = self._tables[at]
                if self._saved[at] >= wanted_revision or owner in failures:
                    continue
                revision, data = table.revision, table.to_json()
                try:
                    await loop.run_in_executor(self._thread, file.save_blocking, data)
                except StoreError as error:
                    failures[owner] = error
                except OSError as error:
                    failures[owner] = StoreError(f"a table could not be saved: {error}")
                else:
                    self._saved[at] = revision
        for failure in list(failures.values())[1:]:
            logger.error("tables not saved: reason=%s", failure)
        for failure in failures.values():
            raise failure
