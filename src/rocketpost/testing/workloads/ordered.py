"""A workload of ordered messages: a producer that numbers each key, and an orderly consumer."""

from __future__ import annotations

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.testing.workloads.base import Workload

_SHARDS = 6
_PAUSE_SECONDS = 0.01


class OrderedWorkload(Workload):
    """Sends numbers per sharding key, each after the previous one is acknowledged.

    The consumer may see a number again after a send or a commit whose answer was lost. It must
    never see a number before all lower ones, and in the end it must have seen them all.
    """

    topic = "Ordered"

    async def prepare(self) -> None:
        """Create the topic and start the consumer."""
        await super().prepare()
        self._sent = dict.fromkeys(range(_SHARDS), 0)
        self._seen = dict.fromkeys(range(_SHARDS), 0)
        self._consumer = PushConsumer(
            "ordered",
            config=PushConsumerConfig(
                name_servers=self.place.name_servers,
                start_from=StartFrom.FIRST,
                route_seconds=1.0,
                rebalance_seconds=1.0,
                error_seconds=0.2,
                hold_seconds=2.0,
                pull_timeout=5.0,
                persist_seconds=0.5,
                lock_renew_seconds=1.0,
            ),
        )
        self._consumer.subscribe(self.topic, self._handle, orderly=True)
        await self._consumer.start()

    async def run(self) -> None:
        """Send to random keys."""
        async with Producer("ordered-sender", config=self.place.producer_config()) as producer:
            while True:
                shard = self.rng.randrange(_SHARDS)
                number = self._sent[shard] + 1
                key = f"{shard}:{number}"
                self.attempted += 1
                message = Message(self.topic, key.encode(), sharding_key=f"shard{shard}")
                if await self.try_send(producer, message, key) is not None:
                    self._sent[shard] = number
                    await self.rest(_PAUSE_SECONDS)

    async def settle(self) -> None:
        """Wait until the consumer has seen the last number of each key."""
        try:
            await self.wait_until(
                lambda: {
                    f"{shard}:{sent}"
                    for shard, sent in self._sent.items()
                    if self._seen[shard] < sent
                },
                what="were not consumed in order to the end",
            )
        finally:
            await self._consumer.stop()

    async def _handle(self, message: ReceivedMessage) -> None:
        shard, number = map(int, message.body.split(b":"))
        expected = self._seen[shard] + 1
        if number > expected:
            self.place.complain(f"{self.topic}: key {shard} saw {number} before {expected}")
        self._seen[shard] = max(number, self._seen[shard])
