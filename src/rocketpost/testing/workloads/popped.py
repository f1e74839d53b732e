"""A workload of popped messages: acknowledged, given more time, or forgotten."""

from __future__ import annotations

import asyncio

from rocketpost.client import Message, PoppedMessage, Producer, SimpleConsumer, StartFrom
from rocketpost.client.config import ClientConfig
from rocketpost.errors import RocketpostError
from rocketpost.testing.workloads.base import RETRY_SECONDS, Workload, now_ms

_PAUSE_SECONDS = 0.01
_RECEIVERS = 2
_INVISIBLE_SECONDS = (1.0, 3.0)
_ACK_SHARE = 0.75
_MORE_TIME_SHARE = 0.1


class PoppedWorkload(Workload):
    """Pops messages and acknowledges most of them.

    A message whose acknowledgement was confirmed within its invisible time must never be delivered
    again. One that was confirmed later or not at all may be. Every other message must be delivered
    again until it is acknowledged.
    """

    topic = "Popped"
    needs_true_clocks = True

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._received: set[str] = set()
        self._done: dict[str, int] = {}
        """Keys of messages whose acknowledgement was confirmed in time, and when it was."""
        self._maybe_done: set[str] = set()

    async def run(self) -> None:
        """Send and receive concurrently."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send())
            for _ in range(_RECEIVERS):
                group.create_task(self._receive(ack_share=_ACK_SHARE))

    async def settle(self) -> None:
        """Acknowledge everything that arrives, until nothing is left."""
        receiver = asyncio.create_task(self._receive(ack_share=1.0))
        try:
            await self.wait_until(
                lambda: (self.acknowledged | self._received) - self._done.keys() - self._maybe_done,
                what="never came again for an acknowledgement",
            )
            # An acknowledgement that a crash undid shows after the invisible time.
            await asyncio.sleep(2 * max(_INVISIBLE_SECONDS))
        finally:
            receiver.cancel()
            await asyncio.wait([receiver])

    async def _send(self) -> None:
        async with Producer("popped-sender", config=self.place.producer_config()) as producer:
            while True:
                key = self.next_key()
                await self.try_send(producer, Message(self.topic, key.encode()), key)
                await self.rest(_PAUSE_SECONDS)

    async def _receive(self, *, ack_share: float) -> None:
        config = ClientConfig(name_servers=self.place.name_servers, route_seconds=1.0)
        consumer = SimpleConsumer("popped", start_from=StartFrom.FIRST, config=config)
        async with consumer:
            while True:
                try:
                    await consumer.subscribe(self.topic)
                    messages = await consumer.receive(
                        16,
                        invisible_seconds=self.rng.choice(_INVISIBLE_SECONDS),
                        await_seconds=1.0,
                    )
                except RocketpostError:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._check(messages)
                for message in messages:
                    await self._handle(consumer, message, ack_share)

    def _check(self, messages: list[PoppedMessage]) -> None:
        """Complain of messages that were popped after their acknowledgement was confirmed.

        One that was popped before may be handled after it: by then it was handed out again, and
        another receiver has acknowledged it.
        """
        for message in messages:
            key = message.body.decode()
            popped_ms = message.receipt.pop_ms
            if popped_ms > self._done.get(key, popped_ms):
                self.complain_of("came again after their acknowledgement", {key})

    async def _handle(
        self, consumer: SimpleConsumer, message: PoppedMessage, ack_share: float
    ) -> None:
        key = message.body.decode()
        self._received.add(key)
        choice = self.rng.random()
        try:
            if choice < ack_share:
                visible_at_ms = message.visible_at_ms
                self._maybe_done.add(key)
                await consumer.ack(message)
                if (done_ms := now_ms()) < visible_at_ms:
                    self._done[key] = done_ms
            elif choice < ack_share + _MORE_TIME_SHARE:
                await consumer.change_invisible_duration(
                    message, self.rng.choice(_INVISIBLE_SECONDS)
                )
        except RocketpostError:
            await asyncio.sleep(RETRY_SECONDS)
