"""A workload of messages whose handler fails: retried, or dead letters in the end."""

from __future__ import annotations

import asyncio

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.model.names import dlq_topic
from rocketpost.testing.workloads.base import Workload, key_of

GROUP = "retried"
_PAUSE_SECONDS = 0.02
_RETRY_MAX = 2
_FAIL_ONCE = "once"
_FAIL_ALWAYS = "always"
_FAIL_SHARES = ((_FAIL_ALWAYS, 0.05), (_FAIL_ONCE, 0.35))


class HandlerFailedOnPurpose(Exception):  # noqa: N818 - named after what happened
    """Raised by the handler of this workload."""


class RetriedWorkload(Workload):
    """Handles some messages only on the second delivery, and some never.

    In the end every acknowledged message must be handled, or be a dead letter of its group.
    """

    topic = "Retried"

    async def prepare(self) -> None:
        """Create the topic and start the consumer."""
        await super().prepare()
        self._failed: set[str] = set()
        self._handled: set[str] = set()
        self._consumer = PushConsumer(
            GROUP,
            config=PushConsumerConfig(
                name_servers=self.place.name_servers,
                start_from=StartFrom.FIRST,
                retry_max=_RETRY_MAX,
                route_seconds=1.0,
                rebalance_seconds=1.0,
                error_seconds=0.2,
                hold_seconds=2.0,
                pull_timeout=5.0,
                persist_seconds=0.5,
                local_retry_seconds=1.0,
            ),
        )
        self._consumer.subscribe(self.topic, self._handle)
        await self._consumer.start()

    async def run(self) -> None:
        """Send messages that tell their handler how to behave."""
        async with Producer("retried-sender", config=self.place.producer_config()) as producer:
            while True:
                key = f"{self.next_key()}-{self._choose_behaviour()}"
                await self.try_send(producer, Message(self.topic, key.encode()), key)
                await self.rest(_PAUSE_SECONDS)

    async def settle(self) -> None:
        """Wait for the handler, then check the dead letters."""
        doomed = {key for key in self.acknowledged if key.endswith(_FAIL_ALWAYS)}
        try:
            await self.wait_until(
                lambda: self.acknowledged - doomed - self._handled, what="were never handled"
            )
            dead: set[str] = set()

            async def look() -> None:
                while doomed - dead:
                    records = await self.place.read_topic(dlq_topic(GROUP), 1)
                    dead.update(map(key_of, records))
                    await asyncio.sleep(0.5)

            looking = asyncio.create_task(look())
            try:
                await self.wait_until(lambda: doomed - dead, what="are no dead letters")
            finally:
                looking.cancel()
                await asyncio.wait([looking])
        finally:
            await self._consumer.stop()

    def _choose_behaviour(self) -> str:
        choice = self.rng.random()
        for behaviour, share in _FAIL_SHARES:
            if choice < share:
                return behaviour
            choice -= share
        return "never"

    async def _handle(self, message: ReceivedMessage) -> None:
        key = message.body.decode()
        if key.endswith(_FAIL_ALWAYS) or (key.endswith(_FAIL_ONCE) and key not in self._failed):
            self._failed.add(key)
            raise HandlerFailedOnPurpose(key)
        self._handled.add(key)
