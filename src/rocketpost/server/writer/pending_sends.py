"""Sends that are in the log but not answered yet, and the queues in which they wait.

Group commit: all sends written while one ``fdatasync`` runs wait for the next, which covers them
all; likewise one report of a slave covers all sends before its position. The sends of one commit
wait as one group, so a single send costs nothing here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, Protocol

import msgspec

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import OutcomeUnknown, StoreError
from rocketpost.model.ids import Position
from rocketpost.store.draft import Appended


class PendingSend(msgspec.Struct, gc=False):
    """Appended messages whose sender has not been answered yet.

    Each submitter has its own subclass, with the data for its answers.
    """

    times_out: ClassVar[bool] = True
    """Whether the sender is answered after a while even if the disk is too slow."""
    awaits_slaves: ClassVar[bool] = True
    """Whether the sender is answered only once enough slaves have the messages."""

    submitter: Submitter
    """The party that answers the sender."""
    stored: list[Appended]
    """Its messages, or the originals of a duplicate."""
    term: int
    """The term in which it was submitted, and the only one in which it is acknowledged."""
    acked_before_flush: bool
    """Whether the sender wants an answer once it is written, without the other rules."""

    @property
    def end(self) -> Position:
        """The position up to which every rule must be met before it is acknowledged."""
        stored = self.stored
        return stored[0].end if len(stored) == 1 else max([each.end for each in stored])

    @property
    def count(self) -> int:
        """Number of requests that it stands for."""
        return 1


class Submitter(Protocol):
    """A party that submits sends to the log writer and answers their senders.

    It gets exactly one call for each send. Lists are never empty; the oldest is first.
    """

    def acknowledge(self, sends: list[Any]) -> None:
        """Answer that they are stored."""

    def answer_late(self, sends: list[Any], status: ResponseCode) -> None:
        """Answer that they are written, but did not meet the rules in time.

        Args:
            sends: The sends.
            status: The rule that they do not meet: FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, or
                SLAVE_NOT_AVAILABLE if there was nothing to wait for.
        """

    def refuse(self, sends: list[Any], error: StoreError) -> None:
        """Answer that they may be lost: they are in the log, but the rules are not met."""

    def refuse_unwritten(self, sends: list[Any], error: StoreError) -> None:
        """Answer that they are not stored: the commit failed."""


_submitter_of = attrgetter("submitter")


def split_by_submitter(sends: list[PendingSend]) -> list[tuple[Submitter, list[PendingSend]]]:
    """Split sends into runs with the same submitter, in their order."""
    if len(sends) == 1 or len(set(map(_submitter_of, sends))) == 1:  # nearly always
        return [(sends[0].submitter, sends)]
    return [(submitter, list(run)) for submitter, run in groupby(sends, _submitter_of)]


def refusal_code(error: StoreError) -> ResponseCode:
    """Return the code of the answer to a send that is refused because of an error.

    Both are tried again by RocketMQ's clients. SYSTEM_ERROR says nothing about the message.
    """
    if isinstance(error, OutcomeUnknown):
        return ResponseCode.SYSTEM_ERROR
    return ResponseCode.SERVICE_NOT_AVAILABLE


class _Group(msgspec.Struct):
    """The waiting sends of one commit."""

    end: Position
    """The largest end among them."""
    deadline: float
    sends: list[PendingSend]


class WaitingSends:
    """The queue of written sends that do not meet some rule yet. Owned by the loop.

    Rule 1: sends leave in the order in which they were added, except those that time out.
    Rule 2: no send leaves by :meth:`release` before the rule is met up to its end.

    Args:
        on_timeout: Called with sends that have waited too long, and are removed.
        timeout_ms: The time that a send may wait.
        keeps_patient: Whether sends that never time out (``times_out``) stay.
    """

    def __init__(
        self,
        *,
        on_timeout: Callable[[list[PendingSend]], None],
        timeout_ms: int,
        keeps_patient: bool = True,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_timeout = on_timeout
        self._timeout = timeout_ms / 1000
        self._keeps_patient = keeps_patient
        self.groups: deque[_Group] = deque()
        """The waiting sends by commit, the oldest first; empty if none waits."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(len(group.sends) for group in self.groups)

    @property
    def client_count(self) -> int:
        """Number of waiting sends of clients."""
        waiting = (send for group in self.groups for send in group.sends)
        return sum(send.count for send in waiting if send.times_out)

    def set_timeout(self, timeout_ms: int) -> None:
        """Set the time that sends may wait from now on, the waiting ones included."""
        self._timeout = timeout_ms / 1000
        deadline = self._loop.time() + self._timeout
        for group in self.groups:
            group.deadline = min(group.deadline, deadline)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.groups:
            self._timer = self._loop.call_at(self.groups[0].deadline, self._expire)

    def add(self, sends: list[PendingSend], end: Position) -> None:
        """Add sends; ``end`` is the largest of their ends."""
        assert sends
        assert sends[-1].end <= end
        deadline = self._loop.time() + self._timeout
        self.groups.append(_Group(end, deadline, sends))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def release(self, met: Position) -> list[PendingSend]:
        """Remove and return the sends that end at or before the position where a rule is met."""
        groups = self.groups
        released: list[PendingSend] = []
        while groups and groups[0].end <= met:
            released += groups.popleft().sends
        if groups and groups[0].sends[0].end <= met:  # a part of one commit
            sends = groups[0].sends
            count = next(at for at, send in enumerate(sends) if send.end > met)
            released += sends[:count]
            del sends[:count]
        assert not released or released[-1].end <= met
        return released

    def drain(self) -> list[PendingSend]:
        """Remove and return all waiting sends."""
        sends = [send for group in self.groups for send in group.sends]
        self.groups.clear()
        return sends

    def close(self) -> None:
        """Cancel the timer."""
        assert not self.groups
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        late: list[PendingSend] = []
        for group in self.groups:
            if group.deadline > now:
                self._timer = self._loop.call_at(group.deadline, self._expire)
                break
            if self._keeps_patient:
                late += [send for send in group.sends if send.times_out]
                group.sends = [send for send in group.sends if not send.times_out]
                group.end = max([send.end for send in group.sends], default=group.end)
            else:
                late += group.sends
                group.sends = []
        self.groups = deque([group for group in self.groups if group.sends])
        if late:
            self._on_timeout(late)
