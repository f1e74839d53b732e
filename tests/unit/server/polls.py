"""Held pulls by name, for tests of the table that they wait in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from rocketpost.broker.filter.matching import Matcher
from rocketpost.broker.pull.reader import PullResult
from rocketpost.broker.pull.service import PullAnswer, PullHold
from rocketpost.codec.headers.message import PullMessage
from rocketpost.model.group import GroupConfig
from rocketpost.model.ids import Position
from rocketpost.model.topic import TopicConfig
from rocketpost.server.long_polling import Held, HeldLimits, LongPolls
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.queue.files import ENTRY
from rocketpost.transport.turns import Turns

TOPIC, GROUP = TopicConfig(topic_name="T"), GroupConfig(group_name="g")


class NamedWaiter:
    """Notes its name when it is resumed."""

    def __init__(self, owner: str, name: str, on_resume: Callable[[str], None]) -> None:
        self.owner = owner
        self.name = name
        self.refused: Exception | None = None
        self._on_resume = on_resume

    def resume(self, answer: PullAnswer) -> None:
        self._on_resume(self.name)

    def refuse(self, error: Exception) -> None:
        self.refused = error


class NamedPolls:
    """A table of pulls that have names."""

    def __init__(self, on_resume: Callable[[str], None], turns: Turns | None = None) -> None:
        self._on_resume = on_resume
        self._records: list[bytes] = []
        self.turns = Turns() if turns is None else turns
        self.table = LongPolls(
            resume=self.resume,
            view=self.view,
            limits=lambda: HeldLimits(count_max=1_000_000, of_one_max=1_000_000),
            turns=self.turns,
        )

    def resume(self, hold: PullHold) -> PullAnswer:
        return PullAnswer(PullResult(0, "FOUND", 0, 0, 0, []), hold.topic, hold.group)

    def view(self, position: Position, size: int) -> memoryview | None:
        return memoryview(self._records[position])

    def park(
        self,
        owner: str,
        queue: tuple[str, int],
        *,
        name: str,
        tags: AbstractSet[int] = frozenset(),
        matcher: Matcher | None = None,
        seconds: float = 60,
    ) -> Held:
        request = PullMessage(consumer_group="g", topic=queue[0], queue_id=queue[1], queue_offset=0)
        hold = PullHold(request, tags, matcher, TOPIC, GROUP, seconds)
        return self.table.park(NamedWaiter(owner, name, self._on_resume), hold)

    async def settle(self) -> None:
        """Return when everybody who was woken has been resumed."""
        await asyncio.sleep(0)
        while len(self.turns):
            await asyncio.sleep(0)

    def arrive(
        self, queue: tuple[str, int], *codes: int, records: list[bytes] | None = None
    ) -> None:
        """Tell of messages; those who want them are resumed in the next iteration of the loop."""
        self._records = records or []
        entries = b"".join(ENTRY.pack(at, 1, code) for at, code in enumerate(codes))
        self.table.note_arrivals([Arrival(*queue, 0, len(codes), entries, 0, len(codes))])
