"""Sends that are in the log and not answered yet, and the queue in which they wait.

Group commit: everything that was written while one ``fdatasync`` ran waits for the next, which
covers all of it. What one commit wrote waits as one group, so a send costs nothing here by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import msgspec

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.store.draft import Appended

logger = logging.getLogger(__name__)


class PendingSend(msgspec.Struct, gc=False):
    """Messages that are appended and whose sender has not been answered yet.

    Whoever submits sends has a subclass of it, with what the answer needs.
    """

    times_out: ClassVar[bool] = True
    """Whether the sender is answered after a while even if the rules are not met."""

    submitter: Submitter
    """Who is told what becomes of it."""
    stored: list[Appended]
    """Its messages; of a duplicate, where the originals are."""
    term: int
    """The term in which it was taken; in no other is it acknowledged."""
    acked_before_flush: bool
    """Whether the sender wants to be answered once it is written, whatever other rules say."""

    @property
    def end(self) -> Position:
        """The position up to which every rule must be met before it is acknowledged."""
        return max([each.end for each in self.stored])


class Submitter(Protocol):
    """A party that submits sends to the log writer and answers whoever sent them.

    It is told exactly one thing about each send. Lists are never empty, oldest first.
    """

    def acknowledge(self, sends: list[Any]) -> None:
        """Answer that they are stored."""

    def answer_late(self, sends: list[Any]) -> None:
        """Answer that they are written, but do not meet the rules in time."""

    def refuse(self, sends: list[Any], error: StoreError) -> None:
        """Answer that they may be lost: they are in the log, but do not meet the rules."""

    def refuse_unwritten(self, sends: list[Any], error: StoreError) -> None:
        """Answer that they are not stored: the commit failed."""


class _Group(msgspec.Struct):
    """Sends of one commit that wait."""

    end: Position
    """The largest end among them."""
    deadline: float
    sends: list[PendingSend]


class WaitingSends:
    """The queue of written sends that do not meet the rules yet. Owned by the loop.

    Rule 1: sends leave in the order in which they came, except those that time out.
    Rule 2: no send leaves by :meth:`release` before its end is confirmed.

    Args:
        on_timeout: Called with sends that have waited too long; they wait no more.
        timeout_ms: How long a send may wait.
    """

    def __init__(self, *, on_timeout: Callable[[list[PendingSend]], None], timeout_ms: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_timeout = on_timeout
        self._timeout = timeout_ms / 1000
        self._groups: deque[_Group] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(len(group.sends) for group in self._groups)

    @property
    def client_count(self) -> int:
        """Number of waiting sends that somebody outside the broker made."""
        return sum(send.times_out for group in self._groups for send in group.sends)

    def add(self, sends: list[PendingSend], end: Position) -> None:
        """Let sends wait; ``end`` is the largest of their ends."""
        assert sends
        assert sends[-1].end <= end
        deadline = self._loop.time() + self._timeout
        self._groups.append(_Group(end, deadline, sends))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def release(self, confirmed: Position) -> list[PendingSend]:
        """Return the sends that wait no more, now that everything before a position counts."""
        groups = self._groups
        released: list[PendingSend] = []
        while groups and groups[0].end <= confirmed:
            released += groups.popleft().sends
        if groups and groups[0].sends[0].end <= confirmed:  # a part of what one commit wrote
            sends = groups[0].sends
            count = next(at for at, send in enumerate(sends) if send.end > confirmed)
            released += sends[:count]
            del sends[:count]
        assert not released or released[-1].end <= confirmed
        return released

    def drain(self) -> list[PendingSend]:
        """Give up on everything that waits, and return it."""
        sends = [send for group in self._groups for send in group.sends]
        self._groups.clear()
        return sends

    def close(self) -> None:
        """Stop watching the time."""
        assert not self._groups
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        late: list[PendingSend] = []
        for group in self._groups:
            if group.deadline > now:
                self._timer = self._loop.call_at(group.deadline, self._expire)
                break
            late += [send for send in group.sends if send.times_out]
            group.sends = [send for send in group.sends if not send.times_out]
            group.end = max([send.end for send in group.sends], default=group.end)
        self._groups = deque([group for group in self._groups if group.sends])
        if late:
            logger.warning("disk flush is slow: answered_with_timeout=%s", len(late))
            self._on_timeout(late)
