"""Popping: its requests, held pops, and the revival of unacknowledged messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rocketpost.broker.pop.in_flight import InFlightTable
from rocketpost.broker.pop.in_order import OrderService
from rocketpost.broker.pop.log import PopLog
from rocketpost.broker.pop.progress import PopProgress
from rocketpost.broker.pop.receipts import ReceiptService
from rocketpost.broker.pop.requests import PopRequests
from rocketpost.broker.pop.scan import QueueScan
from rocketpost.broker.pop.service import PopService
from rocketpost.broker.pop.targets import RetryRules, Targets
from rocketpost.broker.pop.watermark import ReviveWatermark
from rocketpost.model.names import revive_topic
from rocketpost.model.topic import PERM_READ
from rocketpost.server.access.gate import Gate
from rocketpost.server.context import LeaderContext
from rocketpost.server.feature import Feature
from rocketpost.server.handlers.pop import PopHandlers
from rocketpost.server.handlers.pop_replies import PopReplies
from rocketpost.server.handlers.receipts import ReceiptHandlers
from rocketpost.server.metrics.exposition import Family, gauge, single
from rocketpost.server.metrics.pop import pop_families
from rocketpost.server.popping.desk import HeldPopLimits, PopDesk
from rocketpost.server.popping.recorder import PopRecorder
from rocketpost.server.popping.revival import Revival
from rocketpost.server.routes.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.limits import pull_limits
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.config import StoreConfig
from rocketpost.transport.connection import Connection

_CLEAN_SECONDS: Final = 60.0


class PopFeature(Feature):
    """Serves pops and revives popped messages. Owned by the loop."""

    def __init__(self, context: LeaderContext) -> None:
        self._context = context
        self._limits = pull_limits(context.broker_config)

    async def open(self) -> None:
        """Recover the popped messages from the revive topic, and build the handlers."""
        context, store, tables = self._context, self._context.store, self._context.tables
        clock, store_host = context.clock, context.store_host
        topics, groups, offsets = tables.topics, tables.groups, tables.offsets
        broker_name, batches = context.identity.name, tables.batches
        recorder = PopRecorder(context.writer.put)
        watermark = ReviveWatermark()
        in_flight = self._in_flight = InFlightTable(watermark)
        topic = topics.require(revive_topic(context.identity.cluster))
        log = PopLog(topic=topic.topic_name, broker_name=broker_name, store_host=store_host)
        progress = PopProgress(
            store=store,
            offsets=offsets,
            in_flight=in_flight,
            batches=batches,
            watermark=watermark,
            log=log,
        )
        progress.recover()
        in_flight.launched.clear()  # those of earlier runs
        for key in in_flight:  # a due message of an unknown group is dropped
            groups.adopt(key.group, used_ms=key.pop_ms)
        self._targets = Targets(topics=topics, random_below=random.randrange)
        receipts = self._ends = ReceiptService(
            store=store,
            topics=topics,
            groups=groups,
            in_flight=in_flight,
            log=log,
            progress=progress,
            targets=self._targets,
            clock=clock,
            store_host=store_host,
        )
        scan = QueueScan(store=store, limits=lambda: self._limits)
        self._ordered = OrderService(
            scan=scan,
            targets=self._targets,
            offsets=offsets,
            batches=batches,
            watermark=watermark,
            log=log,
            progress=progress,
            clock=clock,
            revive_queue_count=topic.write_queue_nums,
        )
        self._service = PopService(
            scan=scan,
            targets=self._targets,
            offsets=offsets,
            in_flight=in_flight,
            log=log,
            progress=progress,
            clock=clock,
            revive_queue_count=topic.write_queue_nums,
        )
        self._requests = PopRequests(
            targets=self._targets, topics=topics, groups=groups, filters=context.filters
        )
        self.desk = PopDesk(
            requests=self._requests,
            service=self._service,
            ordered=self._ordered,
            recorder=recorder,
            turns=context.turns,
        )
        self._handlers = PopHandlers(
            desk=self.desk,
            requests=self._requests,
            replies=PopReplies(stats=context.stats, broker_name=broker_name),
        )
        self._receipts = ReceiptHandlers(
            receipts=receipts, ordered=self._ordered, recorder=recorder, store=store, topics=topics
        )
        self._revival = Revival(service=receipts, recorder=recorder, clock=clock)
        progress.on_due = self._revival.due_changed
        self._release = Revival(service=self._ordered, recorder=recorder, clock=clock)
        self._ordered.on_due = self._release.due_changed
        self._ordered.on_release = self.desk.wake

    @property
    def held(self) -> int:
        """Number of pops that wait for messages."""
        return self.desk.held

    def routes(self) -> Sequence[Route]:
        """Return the routes of pops and receipts."""
        return [*self._handlers.routes(), *self._receipts.routes()]

    async def run(self) -> None:
        """Revive due messages and release ordered queues whose time is over."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._revival.run(), name="revival of popped messages")
            group.create_task(self._release.run(), name="release of ordered queues")
            group.create_task(self._clean(), name="cleaning of order info")

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Set the limits of a pop, and how messages are delivered again."""
        self._limits = pull_limits(broker)
        self._requests.broker_readable = bool(broker.permission & PERM_READ)
        self.desk.limits = HeldPopLimits(
            count_max=broker.held_pops_max,
            in_place_max=broker.held_pops_in_place_max,
            of_one_max=broker.held_of_one_max,
        )
        self._targets.rules = RetryRules(
            newer_form=broker.retry_topic_v2,
            older_form_read=broker.retry_topic_v1_read,
            first_percent=broker.pop_retry_percent,
        )
        self._service.unacked_max = broker.pop_unacked_max if broker.pop_threshold else None

    def arrival_listeners(self) -> Sequence[ArrivalListener]:
        """Return the function that wakes held pops."""
        return (self.desk.note_arrivals,)

    def access_changed(self, gate: Gate) -> None:
        """End the held pops whose users have lost their rights."""
        self.desk.end_denied(gate)

    def connection_lost(self, connection: Connection) -> None:
        """Forget the held pops of a client."""
        self.desk.drop(connection)

    def offset_moved_back(self, topic: str, queue_id: int) -> None:
        """Let held pops look for messages again."""
        self.desk.wake(topic, queue_id)

    @property
    def popped_counts(self) -> Mapping[tuple[str, str, int], int]:
        """Popped messages that are not acknowledged yet, by topic, group and queue."""
        return self._in_flight.counts

    def metrics(self) -> Iterable[Family]:
        """Return the numbers of held pops, of popped messages and of their ends."""
        yield gauge("rocketpost_held_pops", "Pops that wait for messages.", single(self.held))
        yield from pop_families(
            self._in_flight,
            self._ends,
            claim_count=self._service.claim_count,
            exist=self._context.tables.exist,
            now_ms=self._context.clock.now_ms(),
        )

    def runtime_values(self) -> dict[str, str]:
        """Return the number of held pops."""
        return {"heldPops": str(self.held)}

    def close(self) -> None:
        """Answer the held pops."""
        self.desk.close()

    async def _clean(self) -> None:
        while True:
            await asyncio.sleep(_CLEAN_SECONDS)
            self._ordered.clean()
