"""Delayed messages and send-backs: their requests, their deliveries, their progress on disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.delay.service import DelayService
from rocketpost.broker.group.retry import RetryService
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.topic import TopicTable
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.server.feature import Feature
from rocketpost.server.features.delay_delivery import Delivery, Put
from rocketpost.server.handlers.retry import RetryHandlers
from rocketpost.server.persistence import File, Persistence, Saved
from rocketpost.server.route import Route
from rocketpost.store.draft import Arrival, Draft
from rocketpost.store.message_store import MessageStore


class DelayFeature(Feature):
    """Everything about delay levels. Owned by the loop.

    Args:
        delays_ms: The delays of level 1, 2, ...
        put: Stores messages as safely as sends are stored.
        broker_writable: Whether the broker's permission has the write bit.
        put_off: Makes a timed message of one that waits for so many milliseconds.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        clock: Clock,
        progress: DelayProgress,
        progress_file: File,
        save_interval_s: float,
        delays_ms: tuple[int, ...],
        store_host: bytes,
        put: Put,
        broker_writable: Callable[[], bool],
        put_off: Callable[[Draft, int], Draft],
    ) -> None:
        self._store = store
        self._progress = progress
        progress.durable = lambda: store.durable_position
        self._persistence = Persistence(
            [Saved(progress, progress_file, at_once=False)], interval_s=save_interval_s
        )
        self._deliveries = Delivery(
            service=DelayService(
                store=store,
                topics=topics,
                groups=groups,
                clock=clock,
                progress=progress,
                delays_ms=delays_ms,
                store_host=store_host,
            ),
            progress=progress,
            put=put,
            level_count=max(
                [len(delays_ms)] + [queue.queue_id + 1 for queue in store.queues_of(SCHEDULE_TOPIC)]
            ),
        )
        self._handlers = RetryHandlers(
            service=RetryService(
                topics=topics,
                groups=groups,
                record_at=store.record_at,
                store_host=store_host,
                random_below=random.randrange,
                level_max=len(delays_ms),
                put_off=put_off,
            ),
            progress=progress,
            put=put,
            broker_writable=broker_writable,
        )

    def routes(self) -> Sequence[Route]:
        """Return the routes of send-backs and what is asked about delays."""
        return self._handlers.routes()

    async def run(self) -> None:
        """Deliver, and save how far that has come."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._persistence.run(), name="delay persistence")
            group.create_task(self._deliveries.run(), name="deliveries")

    def arrived(self, messages: list[Arrival]) -> None:
        """Wake the levels of new messages."""
        self._deliveries.arrived(messages)

    def runtime_values(self) -> dict[str, str]:
        """Return how far each level has come."""
        return self._deliveries.runtime_values()

    def oldest_needed_position(self) -> Position | None:
        """Return where the oldest message lies that waits in a level."""
        found = [
            queue.position_from(self._progress.reached(queue.queue_id + 1))
            for queue in self._store.queues_of(SCHEDULE_TOPIC)
        ]
        return min((position for position in found if position is not None), default=None)

    async def save(self) -> None:
        """Save how far deliveries have come."""
        await self._persistence.close()
