"""A workload of committed offsets, for groups of brokers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final, NamedTuple

from rocketpost.errors import RocketpostError
from rocketpost.testing.link import BrokerLink, SendPart
from rocketpost.testing.workloads.base import RETRY_SECONDS, Workload

GROUP: Final = "progress"
BEHIND_SECONDS: Final = 1.0
"""Time within which a group of brokers writes offsets to its log."""
CONTACT_SECONDS: Final = 2.0
"""Time for which a leader that is cut off may still answer."""
_PAUSE_SECONDS: Final = 0.1


class Commit(NamedTuple):
    """An offset whose commit was answered: on which connection, and when."""

    offset: int
    connection: int
    at: float


class OffsetHistory:
    """The offsets that a consumer has committed, and those that must survive.

    A leader that still answers some time after a commit has written it to the log by then. Each
    connection is to one leader in one term.
    """

    def __init__(self) -> None:
        self._waiting: list[Commit] = []
        self.kept = 0
        """The offset below which nothing may be consumed again."""

    def commit(self, offset: int, connection: int, now: float) -> None:
        """Record that a leader has confirmed an offset."""
        self._waiting.append(Commit(offset, connection, now))

    def answer(self, offset: int, connection: int, now: float) -> int:
        """Record the offset that a leader tells; return how many messages come again in breach."""
        limit = now - BEHIND_SECONDS - CONTACT_SECONDS
        due = [each for each in self._waiting if each.connection == connection and each.at < limit]
        self.kept = max([self.kept, *(each.offset for each in due)])
        self._waiting = [each for each in self._waiting if self.kept < each.offset <= offset]
        return max(0, self.kept - offset)


class ProgressWorkload(Workload):
    """Commits offsets, as a consumer of a topic does, and asks for them.

    After a change of leader at most the last second may be forgotten, and consumed again.
    """

    topic = "Progress"
    queue_count = 1

    async def run(self) -> None:
        """Commit growing offsets at whatever broker leads."""
        self._history = OffsetHistory()
        self._connections = 0
        while True:
            with contextlib.suppress(RocketpostError):
                await self._follow_leader(self.place.address)
            await asyncio.sleep(RETRY_SECONDS)

    async def settle(self) -> None:
        """Ask for the offset once more."""
        link = await BrokerLink.connect(self.place.address)
        try:
            self._connections += 1
            await self._ask(link)
        finally:
            link.close()

    async def _follow_leader(self, address: str) -> None:
        """Commit at one leader for as long as it is that."""
        link = await BrokerLink.connect(address)
        self._connections += 1
        try:
            while link.is_open:
                await self._ask(link)
                self.attempted += 1
                answer = await link.send(self.topic, 0, [SendPart(b"progress", {})])
                answer.raise_for_code()
                offset = int(answer.fields["queueOffset"]) + 1
                await link.commit_offset(GROUP, self.topic, 0, offset)
                if address != self.place.address:
                    return  # the new leader may have got it, or it was lost
                self.acknowledged.add(str(offset))
                self._history.commit(offset, self._connections, time.monotonic())
                await self.rest(_PAUSE_SECONDS)
        finally:
            link.close()

    async def _ask(self, link: BrokerLink) -> None:
        offset = await link.committed_offset(GROUP, self.topic, 0) or 0
        if again := self._history.answer(offset, self._connections, time.monotonic()):
            self.place.complain(
                f"{self.topic}: {again} messages come again below {self._history.kept}, "
                f"which was committed long ago"
            )
