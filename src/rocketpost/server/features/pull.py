"""Pulling: its requests, and pulls that are held until a message arrives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rocketpost.broker.pull.known_pulls import KnownPulls
from rocketpost.broker.pull.reader import QueueReader
from rocketpost.broker.pull.service import PullRules, PullService
from rocketpost.broker.pull.subscriptions import PullSubscriptions
from rocketpost.kernel import FORM
from rocketpost.model.topic import PERM_READ
from rocketpost.server.access.gate import Gate
from rocketpost.server.access.logins import Logins
from rocketpost.server.cold_reads import ColdReads
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.handlers.pull import PullHandler
from rocketpost.server.handlers.pull_lane import PullExpress
from rocketpost.server.long_polling import HeldLimits, LongPolls
from rocketpost.server.metrics.exposition import Family, counter, gauge, single
from rocketpost.server.replication.master_presence import MasterPresence
from rocketpost.server.routes.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.limits import pull_limits
from rocketpost.server.writer.log_writer import ArrivalListener
from rocketpost.store.config import StoreConfig
from rocketpost.transport.connection import Connection


class PullFeature(Feature):
    """Serves pulls. Owned by the loop.

    Args:
        context: The state of the broker.
        presence: The presence of this broker's master, if this broker is a slave.
    """

    def __init__(self, context: BrokerContext, *, presence: MasterPresence | None = None) -> None:
        self._presence = presence
        config, store, tables = context.broker_config, context.store, context.tables
        self._reader = QueueReader(
            records=store, access=store.integrity.reader, limits=pull_limits(config)
        )
        self._take(config)
        subscriptions = PullSubscriptions(
            filters=context.filters, membership=context.membership, groups=tables.groups
        )
        self.service = PullService(
            reader=self._reader,
            topics=tables.topics,
            groups=tables.groups,
            subscriptions=subscriptions,
            offsets=tables.offsets,
            stats=context.stats,
            rules=self._rules_now,
            has_master=lambda: presence is None or presence.is_alive,
        )
        self.polls = LongPolls(
            resume=self.service.resume,
            view=store.view,
            limits=lambda: self._held_limits,
            turns=context.turns,
        )
        self.cold_reads = ColdReads(
            warm=store.segments.warm_from_thread, resume=self.service.resume
        )
        if presence is not None:
            presence.on_return.append(self.polls.wake_all)
        self._handler = PullHandler(
            service=self.service, polls=self.polls, cold_reads=self.cold_reads
        )

        self._known = KnownPulls(
            records=store,
            find_queue=store.queues.get,
            access=store.integrity.reader,
            reader=self._reader,
            topics=tables.topics,
            groups=tables.groups,
            membership=context.membership,
            subscriptions=subscriptions,
            offsets=tables.offsets,
            stats=context.stats,
            rules=lambda: self._rules,
        )
        gate = context.access.gate
        codes = [each.code for each in self.routes()]
        logins = None if gate is None else Logins(gate, codes)
        self._lane = PullExpress(self._known, context.stats, logins)
        self._why_off: str | None = "the broker is starting"
        self.express = self._lane.take
        """Answers pulls of known shapes before they are decoded."""

    @property
    def held(self) -> int:
        """Number of pulls that wait for messages."""
        return len(self.polls)

    def routes(self) -> Sequence[Route]:
        """Return the routes of both kinds of pull."""
        return self._handler.routes()

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Apply the settings of pulls."""
        self._reader.limits = pull_limits(broker)
        self._take(broker)
        self._known.forget()
        self._why_off = self._reason(broker)
        self._lane.is_on = self._why_off is None

    def arrival_listeners(self) -> Sequence[ArrivalListener]:
        """Return the function that wakes held pulls."""
        return (self.polls.note_arrivals,)

    def connection_lost(self, connection: Connection) -> None:
        """Forget the held pulls of a client."""
        self.cold_reads.drop(connection)
        self.polls.drop(connection)

    def access_changed(self, gate: Gate) -> None:
        """End the held pulls whose users have lost their rights."""
        self.polls.end_denied(gate)

    def offset_reset(self, topic: str, queue_id: int) -> None:
        """Answer the held pulls of a queue: its consumers continue from another offset."""
        self.polls.wake(topic, queue_id)

    def metrics(self) -> Iterable[Family]:
        """Return the numbers of held pulls and cold reads."""
        yield gauge("rocketpost_held_pulls", "Pulls that wait for messages.", single(self.held))
        yield counter(
            "rocketpost_cold_reads_total",
            "Reads of messages that were not in memory.",
            single(self.cold_reads.read_count),
        )
        yield gauge(
            "rocketpost_pull_lane_on",
            "Whether the lane answers pulls.",
            single(int(self._why_off is None)),
        )

    def waiting_counts(self) -> Mapping[str, int]:
        """Return the number of pulls that wait for the disk."""
        return {"pull": len(self.cold_reads)}

    def runtime_values(self) -> dict[str, str]:
        """Return the numbers of held pulls and cold reads, and whether the lane is on."""
        return {
            "heldPulls": str(self.held),
            "coldReads": str(self.cold_reads.read_count),
            "pullLane": "on" if self._why_off is None else f"off, {self._why_off}",
        }

    def _reason(self, config: BrokerConfig) -> str | None:
        """Return the reason why the lane answers no pulls; None if it does."""
        if not config.pull_lane:
            return "pullLaneEnable=false"
        if not FORM.is_compiled:
            return f"the kernel is not compiled: {FORM.reason}"
        return "this broker is a slave" if self._rules.is_slave else None

    def close(self) -> None:
        """Answer the held pulls."""
        self.cold_reads.close()
        self.polls.close()

    def _rules_now(self) -> PullRules:
        presence = self._presence
        if presence is not None and presence.is_acted_for:
            return self._acting_rules
        return self._rules

    def _take(self, config: BrokerConfig) -> None:
        self._rules = PullRules(
            broker_readable=bool(config.permission & PERM_READ),
            lite_pull=config.lite_pull,
            long_polling=config.long_polling,
            short_polling_ms=config.short_polling_ms,
            is_slave=self._presence is not None,
            reads_from_slaves=config.slave_reads,
            slave_corrects_offsets=config.slave_checks_offsets,
        )
        if self._presence is not None and self._presence.serves_pulls:  # a member of a group
            self._rules = self._rules._replace(reads_from_slaves=True, keeps_offsets=False)
        # Consumers can pull from no other broker: it serves them even without slaveReadEnable.
        self._acting_rules = self._rules._replace(reads_from_slaves=True)
        self._held_limits = HeldLimits(config.held_pulls_max, config.held_of_one_max)
