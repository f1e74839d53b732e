"""The sends of one connection that are passed on, in the order in which they came.

A connection may have many sends under way. While leaders change, some of them are refused and tried
again, and others wait for a leader. None may reach a queue before an earlier one that is stored:

- A send goes out only when every earlier one is out.
- A refused send is tried again only when all that went out after it were refused as well. If a
  later one may have been stored, the refusal is its answer.

If this broker becomes the leader, it serves what waits here itself, in this order.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import Enum, auto

from rocketpost.codec.command import Command


class Stage(Enum):
    """Progress of a send."""

    WAITING = auto()
    """Not sent to a leader, or sent and refused along with everything after it."""
    SENT = auto()
    """Sent to a leader that has not answered."""
    REFUSED = auto()
    """Refused; others that were sent after it are not answered yet."""
    DONE = auto()
    """Answered for good."""
    SERVED = auto()
    """Served by this broker."""


class Passage:
    """One send on its way. Belongs to its line."""

    __slots__ = ("_news", "command", "is_overtaken", "stage")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.stage = Stage.WAITING
        self.is_overtaken = False
        """Whether a later send may have been stored, so that a refusal is final."""
        self._news: asyncio.Future[None] | None = None

    def is_at(self, stage: Stage) -> bool:
        """Tell whether it is at a stage."""
        return self.stage is stage

    def wake(self) -> None:
        """Let the task that waits for this send look again."""
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def wait(self, until: float | None = None) -> None:
        """Wait until there may be news, or until a time of the loop."""
        self._news = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news


class SendLine:
    """The sends of one connection, oldest first. Owned by the loop."""

    def __init__(self) -> None:
        self._passages: dict[Passage, None] = {}
        self._sent = 0
        self._refused = 0

    @property
    def is_empty(self) -> bool:
        """Whether no send is under way."""
        return not self._passages

    def join(self, command: Command) -> Passage:
        """Add the newest send."""
        passage = Passage(command)
        self._passages[passage] = None
        return passage

    def is_next(self, passage: Passage) -> bool:
        """Tell whether a send may go out: it waits, and all earlier ones are out."""
        if passage.stage is not Stage.WAITING:
            return False
        return len(self._passages) == self._sent + 1 or self._first_inside() is passage

    def note_sent(self, passage: Passage) -> None:
        """Note that a send went out."""
        passage.stage = Stage.SENT
        self._sent += 1
        self._wake_next()

    def note_answer(self, passage: Passage, *, is_refused: bool) -> None:
        """Note that a send was refused, or that it got another answer or none."""
        self._sent -= 1
        if is_refused and not passage.is_overtaken:
            passage.stage = Stage.REFUSED
            self._refused += 1
        else:
            self._give_up_before(passage)
            passage.stage = Stage.DONE
            del self._passages[passage]
        self._settle()

    def leave(self, passage: Passage) -> None:
        """Remove a send, whatever its outcome."""
        if passage not in self._passages:
            return
        del self._passages[passage]
        self._sent -= passage.stage is Stage.SENT
        self._refused -= passage.stage is Stage.REFUSED
        self._settle()

    def take_waiting(self) -> list[Command]:
        """Remove the sends that wait, because this broker serves them now; oldest first."""
        taken = []
        for passage in list(self._passages):
            if passage.stage is Stage.SENT:
                passage.is_overtaken = True
                continue
            del self._passages[passage]
            if passage.stage is Stage.REFUSED:
                # One that was sent after it may have been stored.
                self._refused -= 1
                passage.stage = Stage.DONE
            else:
                passage.stage = Stage.SERVED
                taken.append(passage.command)
            passage.wake()
        return taken

    def _give_up_before(self, passage: Passage) -> None:
        """Let the refusals of all earlier sends stand, also those that are still to come."""
        refused = []
        for earlier in self._passages:
            if earlier is passage:
                break
            earlier.is_overtaken = True
            if earlier.stage is Stage.REFUSED:
                refused.append(earlier)
        for earlier in refused:
            self._refused -= 1
            earlier.stage = Stage.DONE
            del self._passages[earlier]
            earlier.wake()

    def _settle(self) -> None:
        """Let refused sends go out again once nothing is out, and wake the next one."""
        if not self._sent and self._refused:
            self._refused = 0
            for passage in self._passages:
                if passage.stage is Stage.REFUSED:
                    passage.stage = Stage.WAITING
                    passage.wake()
        self._wake_next()

    def _wake_next(self) -> None:
        if len(self._passages) > self._sent:
            first = self._first_inside()
            if first is not None and first.stage is Stage.WAITING:
                first.wake()

    def _first_inside(self) -> Passage | None:
        """Return the oldest send that is not out."""
        for passage in self._passages:
            if passage.stage is not Stage.SENT:
                return passage
        return None
