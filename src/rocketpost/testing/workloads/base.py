"""The base of workloads: the broker, sending, and reports of broken promises."""

from __future__ import annotations

import abc
import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from rocketpost.client import Message, Producer, ProducerConfig, SendResult
from rocketpost.codec.record import Record
from rocketpost.errors import RocketpostError
from rocketpost.testing.link import BrokerLink

RETRY_SECONDS: Final = 0.05
"""Pause after a call that failed because the broker is down."""
SETTLE_SECONDS = 90.0
"""Time after which overdue promises count as broken."""
POLL_SECONDS: Final = 0.2
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Workplace:
    """A broker that dies, and its name servers.

    Attributes:
        name_servers: ``host:port;host:port``.
        locate: Returns the address of the broker; in a group, that of its leader now.
        rng: The source of a workload's choices.
        complain: Called with a description of each broken promise.
        rest_seconds: Longest rest of a sender after a message, besides its usual pause.
    """

    name_servers: str
    locate: Callable[[], str]
    rng: random.Random
    complain: Callable[[str], None]
    rest_seconds: float = 0.0

    @property
    def address(self) -> str:
        """The address of the broker."""
        return self.locate()

    def producer_config(self) -> ProducerConfig:
        """Return a configuration without retries by the SDK."""
        return ProducerConfig(
            name_servers=self.name_servers, send_timeout=3.0, retries=0, route_seconds=1.0
        )

    async def read_topic(self, topic: str, queue_count: int) -> list[Record]:
        """Return all messages of ``topic``."""
        link = await BrokerLink.connect(self.address)
        try:
            if not await link.has_topic(topic):
                return []
            records: list[Record] = []
            for queue_id in range(queue_count):
                first = await link.min_offset(topic, queue_id)
                end = await link.max_offset(topic, queue_id)
                found = await link.read(topic, queue_id, first, end)
                found = found[: end - first]  # more may have arrived since
                if len(found) != end - first:
                    self.complain(
                        f"{topic}/{queue_id}: {len(found)} of {end - first} messages can be read"
                    )
                records += found
            return records
        finally:
            link.close()


class Workload(abc.ABC):
    """A workload of one message kind. Belongs to the event loop.

    Subclasses set their ``topic`` and keep promises in :attr:`acknowledged`.
    """

    topic: str
    queue_count: int = 2
    needs_true_clocks: bool = False
    """Whether its promises are about times of day, so that no clock may jump."""

    def __init__(self, place: Workplace) -> None:
        self.place = place
        self.rng = place.rng
        self.attempted = 0
        self.acknowledged: set[str] = set()
        """Keys of the messages whose send was acknowledged."""

    async def prepare(self) -> None:
        """Create the topic."""
        link = await BrokerLink.connect(self.place.address)
        try:
            await link.create_topic(self.topic, self.queue_count)
        finally:
            link.close()

    @abc.abstractmethod
    async def run(self) -> None:
        """Work until cancelled, whether or not the broker is running."""

    @abc.abstractmethod
    async def settle(self) -> None:
        """Wait until every promise is due, and report the broken ones.

        The broker runs meanwhile.
        """

    def __str__(self) -> str:
        return f"{self.topic}: {len(self.acknowledged)} of {self.attempted} acknowledged"

    # -- for subclasses

    def next_key(self) -> str:
        """Return the key of the next message."""
        self.attempted += 1
        return f"{self.topic}-{self.attempted}"

    async def try_send(self, producer: Producer, message: Message, key: str) -> SendResult | None:
        """Send a message once; record it if it was acknowledged, otherwise pause."""
        try:
            result = await producer.send(message)
        except RocketpostError:
            await asyncio.sleep(RETRY_SECONDS)
            return None
        self.acknowledged.add(key)
        return result

    async def rest(self, seconds: float) -> None:
        """Pause after a message for these seconds, and as long as the campaign wants."""
        await asyncio.sleep(seconds + self.rng.uniform(0, self.place.rest_seconds))

    async def wait_until(self, missing: Callable[[], Collection[str]], *, what: str) -> bool:
        """Wait until nothing is missing; report ``what`` if that takes too long."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while left := missing():
            if time.monotonic() > deadline:
                self.complain_of(what, left)
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def complain_of(self, what: str, keys: Collection[str]) -> None:
        """Report a broken promise about some messages, if any."""
        if keys:
            named = ", ".join(sorted(keys)[:_NAMED_MAX])
            self.place.complain(f"{self.topic}: {len(keys)} messages {what}: {named}")

    def complain_of_repeats(self, records: Collection[Record]) -> None:
        """Report messages that are stored more than once."""
        counts = Counter(key_of(record) for record in records)
        self.complain_of("are stored twice", {key for key, count in counts.items() if count > 1})


def key_of(record: Record) -> str:
    """Return the key of a workload's message, which is its body."""
    return bytes(record.body).decode()


def now_ms() -> int:
    """Return the wall-clock time, which is also the broker's on the same machine."""
    return time.time_ns() // 1_000_000
