"""A workload of an idempotent producer that sends many messages more than once."""

from __future__ import annotations

import asyncio

from rocketpost.client import Message, Producer, ProducerConfig
from rocketpost.errors import RocketpostError
from rocketpost.testing.workloads.base import RETRY_SECONDS, Workload, key_of

_PAUSE_SECONDS = 0.01
_STREAMS = 4
_REPEAT_SHARE = 0.1


class NumberedWorkload(Workload):
    """Sends and repeats numbered messages: each must be stored once, at its acknowledged offset.

    A number is repeated when its send failed, and at random long after it was acknowledged, as a
    second run of the same program would do.
    """

    topic = "Numbered"

    async def run(self) -> None:
        """Send several messages at a time."""
        config = ProducerConfig(
            name_servers=self.place.name_servers,
            send_timeout=30.0,
            attempt_timeout=1.0,
            route_seconds=1.0,
        )
        self._places: dict[str, tuple[int, int]] = {}
        self.repeated = 0
        async with Producer(
            "numbered", config=config, idempotent=True, producer_id="numbered/1"
        ) as producer:
            await asyncio.gather(*(self._run_stream(producer) for _ in range(_STREAMS)))

    async def settle(self) -> None:
        """Compare the queues with the acknowledged messages."""
        records = await self.place.read_topic(self.topic, self.queue_count)
        places = {key_of(record): (record.queue_id, record.queue_offset) for record in records}
        self.complain_of("were acknowledged and lost", self.acknowledged - places.keys())
        self.complain_of_repeats(records)
        moved = {key for key, told in self._places.items() if key in places and places[key] != told}
        self.complain_of("lie elsewhere than acknowledged", moved)

    def __str__(self) -> str:
        return f"{super().__str__()}, {self.repeated} repeated"

    async def _run_stream(self, producer: Producer) -> None:
        while True:
            if self.attempted and self.rng.random() < _REPEAT_SHARE:
                sequence = self.rng.randrange(self.attempted)
                self.repeated += 1
            else:
                sequence = self.attempted
                self.attempted += 1
            key = f"{self.topic}-{sequence}"
            message = Message(self.topic, key.encode())
            try:
                result = await producer.send(message, sequence=sequence)
            except RocketpostError:
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.acknowledged.add(key)
            if result.queue_offset >= 0:  # the offset of a duplicate may no longer be known
                self._places.setdefault(key, (result.queue.queue_id, result.queue_offset))
            await self.rest(_PAUSE_SECONDS)
