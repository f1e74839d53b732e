"""Delayed messages and send-backs: their requests, their deliveries, their progress on disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from rocketpost.broker.delay.service import DelayService
from rocketpost.broker.group.retry import RetryService
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.ids import Position
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.model.topic import PERM_WRITE
from rocketpost.server.context import LeaderContext
from rocketpost.server.feature import Feature
from rocketpost.server.features.delay_delivery import Delivery
from rocketpost.server.handlers.retry import RetryHandlers
from rocketpost.server.persistence import Persistence, Saved
from rocketpost.server.route import Route
from rocketpost.store.draft import Arrival


class DelayFeature(Feature):
    """Everything about delay levels. Owned by the loop."""

    def __init__(self, context: LeaderContext) -> None:
        store, tables, put = context.store, context.tables, context.writer.put
        delays_ms = parse_delay_levels(context.store_config.delay_levels)
        self._store = store
        self._progress = tables.delays
        self._persistence = Persistence(
            [Saved(tables.delays, tables.delays_file, at_once=False)],
            interval_s=context.broker_config.flush_delays_ms / 1000,
        )
        self._deliveries = Delivery(
            service=DelayService(
                store=store,
                topics=tables.topics,
                groups=tables.groups,
                clock=context.clock,
                progress=tables.delays,
                delays_ms=delays_ms,
                store_host=context.store_host,
            ),
            progress=tables.delays,
            put=put,
            level_count=max(
                [len(delays_ms)] + [queue.queue_id + 1 for queue in store.queues_of(SCHEDULE_TOPIC)]
            ),
        )
        self._handlers = RetryHandlers(
            service=RetryService(
                topics=tables.topics,
                groups=tables.groups,
                record_at=store.record_at,
                store_host=context.store_host,
                random_below=random.randrange,
                level_max=len(delays_ms),
                put_off=context.timed.put_off,
            ),
            progress=tables.delays,
            put=put,
            broker_writable=lambda: bool(context.broker_config.permission & PERM_WRITE),
        )

    async def open(self) -> None:
        """Save progress only as far as what was delivered is on disk."""
        self._progress.durable = lambda: self._store.durable_position

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
