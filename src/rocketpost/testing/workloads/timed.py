"""A workload of delayed and timed messages, some of them recalled."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.record import Record
from rocketpost.errors import RocketpostError
from rocketpost.testing.link import BrokerLink, SendPart
from rocketpost.testing.workloads.base import RETRY_SECONDS, Workload, key_of, now_ms

DELAYS_MS: Final = (40, 150, 400, 900, 1500, 4000)
LEVELS_SECONDS: Final = (1, 1, 1, 1, 1, 2, 3)
"""Delays of the levels, for ``messageDelayLevel``; retries use the third level and up."""
_LEVEL_SHARE: Final = 0.3
_RECALL_COUNT: Final = 2
_BURST: Final = 15
_SMALL_BURST: Final = 4
"""Messages at a time where senders are to rest."""
_PAUSE_SECONDS: Final = 0.2


@dataclass(slots=True)
class TimedPromises:
    """Promises about timed messages, by key.

    Attributes:
        due_ms: The earliest delivery time of each, by the sender's clock.
        acknowledged: Messages whose send was acknowledged.
        recalled: Messages whose recall was acknowledged.
        maybe_recalled: Messages whose recall was requested and not refused.
    """

    due_ms: dict[str, int] = field(default_factory=dict)
    acknowledged: set[str] = field(default_factory=set)
    recalled: set[str] = field(default_factory=set)
    maybe_recalled: set[str] = field(default_factory=set)

    @property
    def owed(self) -> set[str]:
        """The messages that must be delivered."""
        return self.acknowledged - self.maybe_recalled

    async def send(
        self, link: BrokerLink, topic: str, keys: list[str], rng: random.Random, *, levels: bool
    ) -> None:
        """Send messages with random delays, then recall a few of them.

        Raises:
            RocketpostError: The broker is away.
        """
        calls = []
        for key in keys:
            delay_ms, properties = _choose_delay(rng, levels=levels)
            self.due_ms[key] = now_ms() + delay_ms
            calls.append(link.send(topic, 0, [SendPart(key.encode(), properties)]))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        handles = {}
        for key, answer in zip(keys, answers, strict=True):
            if not isinstance(answer, BaseException) and answer.code == ResponseCode.SUCCESS:
                self.acknowledged.add(key)
                if handle := answer.fields.get("recallHandle"):
                    handles[key] = handle
        for key in rng.sample(sorted(handles), min(_RECALL_COUNT, len(handles))):
            self.maybe_recalled.add(key)
            answer = await link.recall(topic, handles[key])
            if answer.code == ResponseCode.SUCCESS:
                self.recalled.add(key)
            elif answer.code == ResponseCode.ILLEGAL_OPERATION:  # too late
                self.maybe_recalled.discard(key)

    def find_broken(self, delivered: list[Record]) -> dict[str, set[str]]:
        """Return the keys of broken promises by kind, after all were due."""
        counts = Counter(map(key_of, delivered))
        early = {key_of(record) for record in delivered if record.store_ms < self._due(record)}
        broken = {
            "were lost": self.owed - counts.keys(),
            "came early": early,
            "came twice": {key for key, count in counts.items() if count > 1},
            "came although they were recalled": counts.keys() & self.recalled,
        }
        return {how: keys for how, keys in broken.items() if keys}

    def _due(self, record: Record) -> int:
        return self.due_ms[key_of(record)]


class TimedWorkload(Workload):
    """Sends and recalls delayed messages: each must come once and not early, unless recalled."""

    topic = "Timed"
    queue_count = 1
    needs_true_clocks = True

    async def run(self) -> None:
        """Send in bursts."""
        self._promises = TimedPromises(acknowledged=self.acknowledged)
        burst = _SMALL_BURST if self.place.rest_seconds else _BURST
        while True:
            with contextlib.suppress(RocketpostError):
                link = await BrokerLink.connect(self.place.address)
                try:
                    while link.is_open:
                        keys = [self.next_key() for _ in range(burst)]
                        await self._promises.send(link, self.topic, keys, self.rng, levels=True)
                        await self.rest(_PAUSE_SECONDS)
                finally:
                    link.close()
            await asyncio.sleep(RETRY_SECONDS)

    async def settle(self) -> None:
        """Wait until all are due, and compare."""
        found: list[Record] = []

        async def look() -> None:
            while True:
                found[:] = await self.place.read_topic(self.topic, self.queue_count)
                await asyncio.sleep(0.5)

        looking = asyncio.create_task(look())
        try:
            await self.wait_until(
                lambda: self._promises.owed - set(map(key_of, found)), what="are overdue"
            )
        finally:
            looking.cancel()
            await asyncio.wait([looking])
        await asyncio.sleep(max(*DELAYS_MS, 1000 * max(LEVELS_SECONDS)) / 1000)
        records = await self.place.read_topic(self.topic, self.queue_count)
        for how, keys in self._promises.find_broken(records).items():
            self.complain_of(how, keys)

    def __str__(self) -> str:
        return f"{super().__str__()}, {len(self._promises.recalled)} recalled"


def _choose_delay(rng: random.Random, *, levels: bool) -> tuple[int, dict[str, str]]:
    if levels and rng.random() < _LEVEL_SHARE:
        level = rng.randrange(len(LEVELS_SECONDS))
        return 1000 * LEVELS_SECONDS[level], {"DELAY": str(level + 1)}
    delay_ms = rng.choice(DELAYS_MS)
    return delay_ms, {"TIMER_DELAY_MS": str(delay_ms)}
