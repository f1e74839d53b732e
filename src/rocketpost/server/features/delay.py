"""Delayed messages and send-backs: their requests and deliveries."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

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
from rocketpost.server.routes.route import Route
from rocketpost.server.writer.log_writer import ArrivalListener


class DelayFeature(Feature):
    """Serves send-backs and delivers delayed messages. Owned by the loop."""

    def __init__(self, context: LeaderContext) -> None:
        store, tables, put = context.store, context.tables, context.writer.put
        delays_ms = parse_delay_levels(context.store_config.delay_levels)
        self._store = store
        self._progress = tables.delays
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
            put=put,
            wait_for_slaves=context.writer.wait_for_slaves,
            broker_writable=lambda: bool(context.broker_config.permission & PERM_WRITE),
            stats=context.stats,
        )

    async def open(self) -> None:
        """Let progress be saved only as far as delivered messages are on disk."""
        store = self._store
        self._progress.durable = lambda: store.durable_position

    def routes(self) -> Sequence[Route]:
        """Return the route of send-backs."""
        return self._handlers.routes()

    async def run(self) -> None:
        """Deliver due messages."""
        await self._deliveries.run()

    def topic_listeners(self) -> Mapping[str, ArrivalListener]:
        """Return the function that wakes the levels of new messages."""
        return {SCHEDULE_TOPIC: self._deliveries.note_arrivals}

    def runtime_values(self) -> dict[str, str]:
        """Return the progress of each level."""
        return self._deliveries.runtime_values()

    def oldest_needed_position(self) -> Position | None:
        """Return the position of the oldest message that waits in a level."""
        found = [
            queue.position_from(self._progress.next_offset(queue.queue_id + 1))
            for queue in self._store.queues_of(SCHEDULE_TOPIC)
        ]
        return min((position for position in found if position is not None), default=None)
