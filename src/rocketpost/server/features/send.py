"""The feature that serves sends, and makes the context that a leader's features share.

It assembles the checks of ``broker.send``, the log writer and the request handler.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rocketpost.broker.dedup.producers import ProducerTable
from rocketpost.broker.dedup.service import DedupService
from rocketpost.broker.dedup.unique_keys import KeyWindow
from rocketpost.broker.kinds import DeadLetters, DelayLevels, HalfMessages
from rocketpost.broker.send import SendService
from rocketpost.broker.timer.admission import TimedMessages
from rocketpost.codec.properties import properties_bytes_max
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.topic import PERM_WRITE
from rocketpost.server.access.logins import Logins
from rocketpost.server.context import BrokerContext, LeaderContext
from rocketpost.server.feature import Feature
from rocketpost.server.features.dedup_recovery import producer_limits
from rocketpost.server.features.timer import timer_rules
from rocketpost.server.handlers.send import SendHandler
from rocketpost.server.metrics.exposition import Family, Sample, gauge, label_text, single
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.server.routes.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.replication import BrokerRole
from rocketpost.server.writer.acknowledgement_rules import (
    NO_REPLICAS,
    Commitment,
    Replicas,
    Replicated,
    rules_for,
)
from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.server.writer.replica_demand import ReplicaPolicy
from rocketpost.server.writer.send_lane import SendLane
from rocketpost.store.config import StoreConfig
from rocketpost.transport.unique_id import unique_id

logger = logging.getLogger(__name__)


class LeaderSeat(Commitment, Protocol):
    """The leadership of a group, for one term."""

    def take(self, writer: LogWriter) -> None:
        """Let a writer accept messages, until the leadership ends; it may have ended already."""


class SendFeature(Feature):
    """Serves sends. Owned by the loop.

    Args:
        context: The state of the broker.
        term: The number of the term.
        announcing: Knows which topics have no route yet; the first sends to them wait.
        replicas: The reports of slaves, for which the answers of a SYNC_MASTER wait.
        seat: The leadership of a group, if this broker leads one.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        term: int,
        announcing: Announcing,
        replicas: Replicas = NO_REPLICAS,
        seat: LeaderSeat | None = None,
    ) -> None:
        self._seat = seat
        self._stats = context.stats
        broker, store = context.broker_config, context.store_config
        self._term = term
        tables, identity = context.tables, context.identity
        self._timer_rules = timer_rules(store)
        dedup = DedupService(
            producers=ProducerTable(producer_limits(broker)),
            keys=KeyWindow(clock=context.clock),
            records=context.store,
        )
        halves = HalfMessages()
        timed = TimedMessages(
            clock=context.clock,
            precision_ms=store.timer_precision_ms,
            rules=lambda: self._timer_rules,
            random_below=random.randrange,
        )
        level_max = len(parse_delay_levels(store.delay_levels))
        self._service = SendService(
            topics=tables.topics,
            groups=tables.groups,
            clock=context.clock,
            store_host=context.store_host,
            cluster_name=identity.cluster,
            region=broker.region,
            new_unique_id=unique_id,
            random_below=random.randrange,
            holds_locks=context.locks.holds_locks,
            auto=tables.topics.auto,
            kinds=(halves, DeadLetters(), DelayLevels(level_max=level_max), timed),
        )
        self._replicated: Replicated | None = None
        if broker.broker_role is BrokerRole.SYNC_MASTER and seat is None:
            self._replicated = Replicated(
                context.store, replicas=replicas, policy=replica_policy(broker)
            )
        self.writer = LogWriter(
            store=context.store,
            rules=rules_for(store.flush_mode, context.store, seat),
            ledger=dedup,
            timeout_ms=broker.sync_flush_timeout_ms if seat is None else broker.slave_timeout_ms,
            replicated=self._replicated,
            slave_timeout_ms=broker.slave_timeout_ms,
        )
        self._handler = SendHandler(
            writer=self.writer,
            store=context.store,
            service=self._service,
            dedup=dedup,
            stats=context.stats,
            store_host=context.store_host,
            region=broker.region,
            broker_name=identity.name,
            announcing=announcing,
        )
        gate = context.access.gate
        logins = None if gate is None else Logins(gate, [each.code for each in self.routes()])
        self._lane = SendLane.of(
            writer=self.writer,
            store=context.store,
            service=self._service,
            keys=dedup.keys,
            topics=tables.topics,
            announcing=announcing,
            stats=context.stats,
            store_host=context.store_host,
            region=broker.region,
            logins=logins,
        )
        self.express = self._lane.take
        """Takes plain sends before they are decoded."""
        self.context = LeaderContext.extend(
            context,
            writer=self.writer,
            sends=self._service,
            dedup=dedup,
            halves=halves,
            timed=timed,
            timer_rules=lambda: self._timer_rules,
        )
        """The broker's state, and the objects that a leader's other features share."""

    async def open(self) -> None:
        """Begin the writer's term: accept messages, and show confirmed ones to consumers."""
        self.writer.begin_term(self._term)
        if self._seat is not None:
            self._seat.take(self.writer)
        self._handler.lane = self._lane

    def topic_changed(self) -> None:
        """Look at every topic anew before the lane takes its messages."""
        self._lane.forget_topics()

    def routes(self) -> Sequence[Route]:
        """Return the routes of all kinds of send."""
        return self._handler.routes()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Set the limits of messages, and the rules for sends."""
        self._timer_rules = timer_rules(store)
        self._handler.trace_on = broker.trace_on
        self._service.configure(
            message_bytes_max=store.message_bytes_max,
            properties_bytes_max=properties_bytes_max(store.append_checksum),
            trace_on=broker.trace_on,
            accept_from_ms=broker.accept_sends_from_ms,
            broker_writable=bool(broker.permission & PERM_WRITE),
            checks_types=broker.topic_type_check,
        )
        if self._replicated is not None:
            self._replicated.policy = replica_policy(broker)
            self.writer.set_slave_timeout(broker.slave_timeout_ms)
            self.writer.slaves_changed()
        was_off = self._lane.why_off
        self._lane.configure(
            is_wanted=broker.send_lane,
            trace_on=broker.trace_on,
            append_checksum=store.append_checksum,
        )
        if was_off != self._lane.why_off:
            logger.info("send lane: %s", self._lane_state)

    def metrics(self) -> Iterable[Family]:
        """Return the numbers of sends that are not answered yet, and whether the lane is on."""
        is_on = self._lane.why_off is None
        yield gauge("rocketpost_send_lane_on", "Whether the lane takes sends.", single(int(is_on)))
        yield gauge(
            "rocketpost_waiting_sends",
            "Sends that are not answered yet.",
            [
                Sample(label_text({"reason": "flush"}), self.writer.waiting_count),
                Sample(label_text({"reason": "slaves"}), self.writer.awaiting_slaves_count),
            ],
        )

    def waiting_counts(self) -> Mapping[str, int]:
        """Return the number of sends that are not answered yet."""
        return {"send": self.writer.waiting_count + self.writer.awaiting_slaves_count}

    def runtime_values(self) -> dict[str, str]:
        """Return the sends that wait, whether the lane is on, and how long writes take."""
        times = self.writer.write_times
        return {
            "sendsAwaitingFlush": str(self.writer.waiting_count),
            "sendsAwaitingSlaves": str(self.writer.awaiting_slaves_count),
            "sendLane": self._lane_state,
            "putMessageDistributeTime": times.text(self._stats.put_count),
            "putMessageEntireTimeMax": str(times.longest_ms),
        }

    def note_living_replicas(self, count: int) -> None:
        """Take the number of replicas that name servers know, with this one.

        Groups with an acting master refuse sends if there are too few.
        """
        if self._replicated is not None:
            self._replicated.alive = count
            self.writer.slaves_changed()

    @property
    def _lane_state(self) -> str:
        why_off = self._lane.why_off
        return "on" if why_off is None else f"off, {why_off}"

    def close(self) -> None:
        """Close the writer: nothing is stored after this."""
        self.writer.close()


def replica_policy(broker: BrokerConfig) -> ReplicaPolicy:
    """Return the settings that say how many replicas a message of a SYNC_MASTER needs."""
    return ReplicaPolicy(
        replicas=broker.in_sync_replicas,
        gap_bytes=broker.ha_gap_bytes_max,
        refuses=broker.acting_master,
        adapts=broker.auto_in_sync_replicas,
        replicas_min=broker.in_sync_replicas_min,
    )
