"""A broker's tables and handlers without sockets, files or time of their own."""

from __future__ import annotations

from dataclasses import dataclass

from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.filter.table import FilterTable
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.broker.group.reset import ResetService
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.pop.targets import own_retry_topics
from rocketpost.broker.query import ProgressQueries
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TopicTable
from rocketpost.client.compression import decompress
from rocketpost.errors import ConfigError
from rocketpost.model.topic import TopicConfig
from rocketpost.server.handlers.admin import AdminHandlers, CleaningHandlers, SettingsHandlers
from rocketpost.server.handlers.client import ClientHandlers, LockHandlers
from rocketpost.server.handlers.group import GroupHandlers
from rocketpost.server.handlers.ha_status import HaStatusHandlers
from rocketpost.server.handlers.offset import (
    OffsetHandlers,
    ProgressHandlers,
    QueueOffsetHandlers,
)
from rocketpost.server.handlers.query import QueryHandlers
from rocketpost.server.handlers.relay import RelayHandlers
from rocketpost.server.handlers.reset import ResetHandlers
from rocketpost.server.handlers.topic import TopicHandlers
from rocketpost.server.notices import Notices
from rocketpost.server.replication.status import MasterStatus, ReplicationStatus
from rocketpost.server.settings.live_config import LiveConfig
from rocketpost.server.tables.broker_tables import Identity
from rocketpost.settings import option
from rocketpost.testing.clock import FakeClock

from ..contexts import some_tables
from .fakes import Caller, FakeCheckpoint, FakeStore, Saves


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleConfig:
    """Settings as a broker has them: some may change, paths never."""

    permission: int = option("brokerPermission", 6, mutable=True)
    trace_on: bool = option("traceOn", True, mutable=True)
    root: str = option("storePathRootDir", "/data")
    name_servers: str = option("namesrvAddr", "")

    def __post_init__(self) -> None:
        if not 0 <= self.permission <= 7:
            raise ConfigError(f"brokerPermission={self.permission} is not one of 0 to 7")


class World:
    """Everything that handlers of a broker work with."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.store = FakeStore()
        self.saves = Saves()
        self.cleaned = 0
        self.checkpoint = FakeCheckpoint()
        self.replication: ReplicationStatus = MasterStatus()
        self.notifies = True
        self.server_side_reset = True
        self.topics = TopicTable(clock=clock, cluster_name="DefaultCluster", broker_name="broker-a")
        self.topics.add_builtin()
        self.groups = GroupTable(clock=clock)
        self.offsets = OffsetTable(clock=clock)
        self.tables = some_tables(topics=self.topics, groups=self.groups, offsets=self.offsets)
        self.membership = Membership(clock=clock)
        self.locks = QueueLocks(clock=clock)
        self.filters = Filters(table=FilterTable(clock=clock), unpack=decompress)
        self.stats = BrokerStats(clock=clock)
        self.config = LiveConfig(SampleConfig(), clock=clock, from_file={"traceOn": "true"})
        self.queries = ProgressQueries(
            clock=clock,
            broker_name="broker-a",
            queues=self.store,
            topics=self.topics,
            offsets=self.offsets,
            membership=self.membership,
            stats=self.stats,
        )
        self.clients = ClientHandlers(
            membership=self.membership,
            groups=self.groups,
            topics=self.topics,
            locks=self.locks,
            filters=self.filters,
            notices=Notices(
                membership=self.membership,
                groups=self.groups,
                notifies=lambda: self.notifies,
            ),
        )
        self.back: list[tuple[str, int]] = []
        self.call = Caller(
            self.clients, LockHandlers(locks=self.locks, topics=self.topics), self._relays(),
            self._topics(), self._groups(), self._offsets(), QueueOffsetHandlers(self.store),
            self._progress(), self._resets(), self._rest(), self._admin(), self._ha_status(),
            self._cleaning(),
            SettingsHandlers(config=self.config, save=self.saves),
        )  # fmt: skip

    def add_topic(self, name: str = "T", queues: int = 2, **fields: object) -> TopicConfig:
        config = TopicConfig(
            topic_name=name,
            read_queue_nums=queues,
            write_queue_nums=queues,
            **fields,  # type: ignore[arg-type]
        )
        return self.topics.update(config).after

    def _topics(self) -> TopicHandlers:
        return TopicHandlers(
            topics=self.topics,
            offsets=self.offsets,
            stats=self.stats,
            queries=self.queries,
            store=self.store,
            save=self.saves,
            retry_topics=lambda topic: own_retry_topics(
                topic, self.offsets.groups_of(topic), topics=self.topics, groups=self.groups
            ),
        )

    def _groups(self) -> GroupHandlers:
        return GroupHandlers(
            tables=self.tables,
            membership=self.membership,
            stats=self.stats,
            broker_address="10.0.0.1:10911",
            save=self.saves,
        )

    def _offsets(self) -> OffsetHandlers:
        return OffsetHandlers(
            tables=self.tables,
            membership=self.membership,
            store=self.store,
            save=self.saves,
            memory_bytes=5000,
            on_back=lambda topic, queue_id: self.back.append((topic, queue_id)),
        )

    def _resets(self) -> ResetHandlers:
        return ResetHandlers(
            service=ResetService(
                topics=self.topics, groups=self.groups, offsets=self.offsets, queues=self.store
            ),
            offsets=self.offsets,
            membership=self.membership,
            broker_name="broker-a",
            save=self.saves,
            server_side=lambda: self.server_side_reset,
        )

    def _rest(self) -> QueryHandlers:
        return QueryHandlers(
            store=self.store,
            topics=self.topics,
            membership=self.membership,
            filters=self.filters,
            index_state=lambda: (123, 456),
        )

    def _cleaning(self) -> CleaningHandlers:
        async def clean() -> None:
            self.cleaned += 1

        return CleaningHandlers(
            topics=self.topics,
            store=self.store,
            delete_queues=self.store.delete_queues,
            clean=clean,
        )

    def _relays(self) -> RelayHandlers:
        return RelayHandlers(
            membership=self.membership,
            tables=self.tables,
            records=self.store,
            broker_name="broker-a",
        )

    def _progress(self) -> ProgressHandlers:
        return ProgressHandlers(
            tables=self.tables, queries=self.queries, broker_address="10.0.0.1:10911"
        )

    def _ha_status(self) -> HaStatusHandlers:
        return HaStatusHandlers(
            end_position=lambda: self.store.end_position,
            checkpoint=self.checkpoint,
            status=lambda: self.replication,
            identity=Identity(cluster="c", name="broker-a", ip="10.0.0.1", port=10911),
        )

    def _admin(self) -> AdminHandlers:
        return AdminHandlers(
            clock=self.clock,
            stats=self.stats,
            store=self.store,
            commit_log_path=".",
            extra=lambda: {"heldPulls": "3"},
        )
