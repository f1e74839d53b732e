"""The broker's services and request handlers, put together around an open store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from rocketpost.broker.dedup.service import OnceService
from rocketpost.broker.expiry import UnusedExpiry
from rocketpost.broker.filter.filters import Filters
from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.broker.group.reset import ResetService
from rocketpost.broker.group.retention_holds import RetentionHolds
from rocketpost.broker.group.standstill import Standstill, StandstillWatch
from rocketpost.broker.kinds import DeadLetters, DelayLevels, HalfMessages
from rocketpost.broker.query import ProgressQueries
from rocketpost.broker.send import SendService
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.timer.admission import Timers
from rocketpost.client.compression import decompress
from rocketpost.codec.properties import properties_bytes_max
from rocketpost.codec.record import pack_host
from rocketpost.errors import StoreError
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.model.ids import Position
from rocketpost.model.topic import PERM_WRITE
from rocketpost.server.adoption import adopt_topics
from rocketpost.server.broker_tables import Identity, Tables, table_repairs
from rocketpost.server.clock import BrokerClock
from rocketpost.server.feature import Feature
from rocketpost.server.features.assignment import AssignmentFeature
from rocketpost.server.features.dedup import DedupFeature
from rocketpost.server.features.dedup_recovery import Known
from rocketpost.server.features.delay import DelayFeature
from rocketpost.server.features.expiry import ExpiryFeature
from rocketpost.server.features.filter import FilterFeature
from rocketpost.server.features.pop import PopFeature
from rocketpost.server.features.pull import PullFeature
from rocketpost.server.features.reply import ReplyFeature
from rocketpost.server.features.retention_holds import RetentionHoldsFeature
from rocketpost.server.features.standstill import StandstillFeature
from rocketpost.server.features.timer import TimerFeature, timer_rules
from rocketpost.server.features.transaction import TransactionFeature, transaction_rules
from rocketpost.server.handlers.admin import AdminHandlers
from rocketpost.server.handlers.client import ClientHandlers
from rocketpost.server.handlers.damage import DamageHandlers
from rocketpost.server.handlers.group import GroupHandlers
from rocketpost.server.handlers.offset import OffsetHandlers
from rocketpost.server.handlers.query import QueryHandlers, QueryLimits
from rocketpost.server.handlers.reset import ResetHandlers
from rocketpost.server.handlers.send import SendHandler, SendsFirst
from rocketpost.server.handlers.topic import TopicHandlers
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.server.notices import Notices
from rocketpost.server.persistence import AfterFlush, File, Persistence, Saved
from rocketpost.server.route import Route
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.server.settings.limits import topic_rules
from rocketpost.server.settings.live_config import LiveConfig
from rocketpost.store.config import FlushMode, StoreConfig
from rocketpost.store.draft import Arrival
from rocketpost.store.message_store import MessageStore
from rocketpost.store.timer.store import TimerStore
from rocketpost.transport.connection import Connection
from rocketpost.transport.turns import Turns
from rocketpost.transport.unique_id import unique_id

logger = logging.getLogger(__name__)

_NO_TABLES = (
    "config/ has no tables, though the log has messages: groups, offsets and settings start empty"
)


class Services:
    """Everything that serves requests. Owned by the loop.

    Args:
        name_servers: Who knows the queues of other brokers.
        clean: Deletes what has expired, now.
        on_topic_change: Called when there is news for the name servers.
        wait_registered: Returns once they know.
        registration_values: What tools show of the registration with name servers.
        turns: Where work for many waits for its turn.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        tables: Tables,
        known: Known,
        timers: TimerStore | None,
        identity: Identity,
        clock: BrokerClock,
        live: LiveConfig,
        overrides_file: File,
        name_servers: Sequence[str],
        clean: Callable[[], Awaitable[object]],
        on_topic_change: Callable[[], None],
        wait_registered: Callable[[], Awaitable[None]],
        registration_values: Callable[[], dict[str, str]],
        turns: Turns,
    ) -> None:
        self.store = store
        self._damage = DamageHandlers(store)
        self._clock = clock
        self._live = live
        self._clean = clean
        self._identity = identity
        self._on_topic_change = on_topic_change
        self.announcing = Announcing(wait_registered=self._kept_and_told)
        self._wait_registered = wait_registered
        self._registration_values = registration_values
        self._keys = known.keys
        self._broker = live.section(BrokerConfig)
        store_config = live.section(StoreConfig)

        self.topics, self.groups, self.offsets = tables.topics, tables.groups, tables.offsets
        self.persistence = Persistence(
            [
                Saved(self.topics, tables.topics_file),
                Saved(self.groups, tables.groups_file),
                Saved(self.topics.auto, tables.auto_topics_file),
                Saved(self.groups.auto, tables.auto_groups_file),
                Saved(live, overrides_file),
                Saved(
                    self.offsets,
                    AfterFlush(tables.offsets_file, store.flush_blocking),
                    at_once=False,
                ),
            ],
            interval_s=self._broker.flush_offsets_ms / 1000,
        )
        self.topics.on_change = self._topics_changed
        self.groups.on_change = self.persistence.changed
        self._repairs = table_repairs(tables)
        if tables.is_bare and store.end_position > 0:
            self._repairs.append(_NO_TABLES)
            logger.error("tables lost: %s", _NO_TABLES)
        saved_ms = self.topics.version.timestamp
        self.topics.add_builtin()
        adopt_topics(
            store,
            self.topics,
            queue_nums=self._broker.default_topic_queue_nums,
            saved_ms=saved_ms,
            is_old=bool(self._repairs),
        )
        if self._repairs and timers is not None:
            for topic in +timers.waiting:
                if self.topics.find(topic) is None:
                    self.topics.adopt(topic, queue_nums=self._broker.default_topic_queue_nums)
        self.groups.add_builtin()

        self.stats = BrokerStats(clock=clock, day_of=_local_day)
        self._membership = Membership(clock=clock, expiry_ms=self._broker.member_expiry_ms)
        self._locks = QueueLocks(clock=clock, lock_ms=self._broker.lock_ms)
        store_host = pack_host(identity.ip, identity.port)
        delays_ms = parse_delay_levels(store_config.delay_levels)
        halves = HalfMessages()
        timed = Timers(
            clock=clock,
            precision_ms=store_config.timer_precision_ms,
            rules=lambda: self._timer_rules,
            count_in=lambda slot_ms: timers.wheel.get(slot_ms).waiting if timers else 0,
            random_below=random.randrange,
        )
        self._send_service = SendService(
            topics=self.topics,
            groups=self.groups,
            clock=clock,
            store_host=store_host,
            cluster_name=identity.cluster,
            region=self._broker.region,
            new_unique_id=unique_id,
            random_below=random.randrange,
            holds_locks=self._locks.holds_locks,
            auto=self.topics.auto,
            kinds=(halves, DeadLetters(), DelayLevels(level_max=len(delays_ms)), timed),
        )
        once = OnceService(producers=known.producers, keys=known.keys, records=store)
        self.sends = SendHandler(
            store=store,
            service=self._send_service,
            once=once,
            stats=self.stats,
            store_host=store_host,
            region=self._broker.region,
            broker_name=identity.name,
            announcing=self.announcing,
            sync_flush=store_config.flush_mode is FlushMode.SYNC_FLUSH,
            flush_timeout_ms=self._broker.sync_flush_timeout_ms,
        )
        self._filters = Filters(table=tables.filters, unpack=decompress, resolve=tables.named.text)
        self.pulls = PullFeature(
            store=store,
            topics=self.topics,
            groups=self.groups,
            membership=self._membership,
            offsets=self.offsets,
            filters=self._filters,
            stats=self.stats,
            config=self._broker,
            turns=turns,
        )
        self.clients = ClientHandlers(
            membership=self._membership,
            groups=self.groups,
            topics=self.topics,
            locks=self._locks,
            filters=self._filters,
            records=store,
            broker_name=identity.name,
            notices=Notices(
                membership=self._membership,
                groups=self.groups,
                notifies=lambda: self._broker.notify_members,
                turns=turns,
            ),
        )
        self._standstill = Standstill(
            clock=clock,
            broker_name=identity.name,
            queues=store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            membership=self._membership,
            locks=self._locks,
        )
        self.holds = RetentionHolds(groups=self.groups, offsets=self.offsets, queues=store.queues)
        self.assignment = AssignmentFeature(
            topics=self.topics,
            membership=self._membership,
            modes=tables.modes,
            modes_file=tables.modes_file,
            broker_name=identity.name,
            name_servers=name_servers,
        )
        self.features: tuple[Feature, ...] = (
            self.pulls,
            StandstillFeature(
                StandstillWatch(clock=clock, offsets=self.offsets, standstill=self._standstill)
            ),
            FilterFeature(
                filters=self._filters,
                table_file=tables.filters_file,
                named=tables.named,
                named_file=tables.named_file,
            ),
            DedupFeature(
                store=store,
                once=once,
                clock=clock,
                file=known.producers_file,
                repair=known.repair,
                save_interval_s=self._broker.idempotent_save_ms / 1000,
                commit=self.sends.commit,
            ),
            DelayFeature(
                store=store,
                topics=self.topics,
                groups=self.groups,
                clock=clock,
                progress=tables.delays,
                progress_file=tables.delays_file,
                save_interval_s=self._broker.flush_delays_ms / 1000,
                delays_ms=delays_ms,
                store_host=store_host,
                put=self.sends.put,
                broker_writable=lambda: bool(self._broker.permission & PERM_WRITE),
                put_off=timed.put_off,
            ),
            self.assignment,
            ReplyFeature(
                sends=self._send_service,
                membership=self._membership,
                clock=clock,
                put=self.sends.put,
                store_host=store_host,
                region=self._broker.region,
            ),
            TransactionFeature(
                kind=halves,
                store=store,
                topics=self.topics,
                offsets=self.offsets,
                membership=self._membership,
                clock=clock,
                broker_name=identity.name,
                store_host=store_host,
                new_unique_id=unique_id,
                put=self.sends.put,
                rules=transaction_rules(self._broker, store_config),
                forget_key=once.keys.forget,
            ),
            PopFeature(
                store=store,
                topics=self.topics,
                groups=self.groups,
                offsets=self.offsets,
                batches=tables.batches,
                batches_file=tables.batches_file,
                filters=self._filters,
                stats=self.stats,
                clock=clock,
                cluster_name=identity.cluster,
                broker_name=identity.name,
                store_host=store_host,
                put=self.sends.put,
                limits=lambda: self.pulls.limits,
                turns=turns,
            ),
        )
        if timers is not None:
            self.features += (
                TimerFeature(
                    store=store,
                    timers=timers,
                    topics=self.topics,
                    groups=self.groups,
                    clock=clock,
                    wall_ms=clock.wall_ms,
                    rules=lambda: self._timer_rules,
                    broker_name=identity.name,
                    store_host=store_host,
                    put=self.sends.put,
                    tables_saved=self.persistence.save_urgent,
                    forget_key=once.keys.forget,
                ),
            )
        self.features += (
            ExpiryFeature(
                UnusedExpiry(
                    clock=clock,
                    topics=self.topics,
                    groups=self.groups,
                    offsets=self.offsets,
                    membership=self._membership,
                    store=store,
                )
            ),
        )
        # The last one: it tells of what goes, and others may keep that from going.
        self.features += (RetentionHoldsFeature(holds=self.holds, saved=self.persistence.save),)
        self.configure(self._broker, store_config)

    @property
    def held(self) -> int:
        """Number of requests that wait for something to happen before they are answered."""
        return sum(feature.held for feature in self.features)

    def routes(self) -> list[Route]:
        """Return the routes of every request that a broker serves."""
        saved = self.persistence.save
        queries = ProgressQueries(
            clock=self._clock,
            broker_name=self._identity.name,
            queues=self.store,
            topics=self.topics,
            offsets=self.offsets,
            membership=self._membership,
            stats=self.stats,
            cause=self._standstill.cause,
        )
        topics = TopicHandlers(
            topics=self.topics,
            offsets=self.offsets,
            stats=self.stats,
            queries=queries,
            store=SendsFirst(self.sends, self.store),
            saved=self._saved_and_told,
        )
        groups = GroupHandlers(
            groups=self.groups,
            topics=self.topics,
            offsets=self.offsets,
            membership=self._membership,
            stats=self.stats,
            broker_address=self._identity.address,
            saved=saved,
        )
        offsets = OffsetHandlers(
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            membership=self._membership,
            queries=queries,
            store=self.store,
            broker_name=self._identity.name,
            broker_address=self._identity.address,
            saved=saved,
            memory_bytes=self.pulls.limits.memory_bytes,
            on_back=self._offset_back,
        )
        resets = ResetHandlers(
            service=ResetService(
                topics=self.topics, groups=self.groups, offsets=self.offsets, queues=self.store
            ),
            offsets=self.offsets,
            membership=self._membership,
            broker_name=self._identity.name,
            saved=saved,
            server_side=lambda: self._broker.server_side_reset,
            on_reset=self._offset_reset,
        )
        messages = QueryHandlers(
            store=self.store,
            topics=self.topics,
            membership=self._membership,
            filters=self._filters,
            index_state=lambda: _index_state(self.store),
            limits=lambda: QueryLimits(
                self._broker.query_count_max, self._broker.query_count_default
            ),
        )
        admin = AdminHandlers(
            clock=self._clock,
            config=self._live,
            topics=self.topics,
            stats=self.stats,
            store=self.store,
            commit_log_path=self.store.layout.commit_log,
            drop_queues=SendsFirst(self.sends, self.store).drop_queues,
            clean=self._clean,
            saved=self.persistence.save_urgent,
            extra=self._runtime_values,
        )
        tables: list[Sequence[Route]] = [
            self.sends.routes(),
            self.clients.routes(),
            *(feature.routes() for feature in self.features),
            topics.routes(),
            groups.routes(),
            offsets.routes(),
            resets.routes(),
            self._damage.routes(),
            messages.routes(),
            admin.routes(),
        ]
        return [route for table in tables for route in table]

    def configure(self, broker: BrokerConfig, store: StoreConfig) -> None:
        """Take settings that may change while the broker runs."""
        before, self._broker = self._broker, broker
        self.topics.rules = topic_rules(broker)
        self.groups.auto_create = broker.auto_create_group
        self.topics.auto.per_second = self.groups.auto.per_second = broker.auto_create_per_second
        self.store.configure(store)
        self._timer_rules = timer_rules(store)
        self.sends.trace_on = broker.trace_on
        self._send_service.configure(
            message_bytes_max=store.message_bytes_max,
            properties_bytes_max=properties_bytes_max(store.append_checksum),
            trace_on=broker.trace_on,
            accept_from_ms=broker.accept_sends_from_ms,
            broker_writable=bool(broker.permission & PERM_WRITE),
            checks_types=broker.topic_type_check,
        )
        if before.permission != broker.permission:
            self.topics.touch()
        for feature in self.features:
            feature.configure(broker, store)

    def arrived(self, messages: list[Arrival]) -> None:
        """Tell everybody who waits of messages that became visible."""
        self.stats.stored(messages)
        for feature in self.features:
            feature.arrived(messages)

    def oldest_needed_position(self) -> Position | None:
        """Return where the oldest message lies that must not be deleted."""
        found = (feature.oldest_needed_position() for feature in self.features)
        return min((position for position in found if position is not None), default=None)

    async def move_messages_before(self, position: int) -> None:
        """Have everybody move what is still needed away from before a position.

        Raises:
            StoreError: Not all could be moved.
        """
        for feature in self.features:
            await feature.move_messages_before(position)
        # What was moved or delivered must not be taken back by a power cut: the rest is deleted.
        await asyncio.to_thread(self.store.flush_blocking)

    def connection_lost(self, connection: Connection) -> None:
        """Tell everybody who keeps something for a client that it went."""
        self.clients.connection_lost(connection)
        for feature in self.features:
            feature.connection_lost(connection)

    def close(self) -> None:
        """Answer who still waits, and refuse what cannot be done any more."""
        for feature in self.features:
            feature.close()
        self.sends.close()

    async def save(self) -> None:
        """Save every table for the last time.

        Raises:
            StoreError: A table could not be saved; what was saved before still is.
        """
        try:
            # Progress is saved as far as what was done is on disk.
            await asyncio.to_thread(self.store.save_blocking)
        except (StoreError, OSError) as error:
            logger.error("messages are not on disk yet: reason=%s", error)
        async with contextlib.AsyncExitStack() as stack:  # all are tried, whichever fails
            stack.push_async_callback(self.persistence.close)
            for feature in self.features:
                stack.push_async_callback(feature.save)

    def _offset_reset(self, topic: str, queue_id: int) -> None:
        self.pulls.polls.wake(topic, queue_id)
        self._offset_back(topic, queue_id)

    def _offset_back(self, topic: str, queue_id: int) -> None:
        for feature in self.features:
            feature.offset_reset(topic, queue_id)

    async def _kept_and_told(self) -> None:
        """Return once new topics survive a crash and the name servers know them.

        What waits for its time names its topic, and no queue of that topic tells of it yet.
        """
        try:
            await self.persistence.save_urgent()
        except StoreError as error:
            logger.error("new topics are not saved yet: reason=%s", error)
        await self._wait_registered()

    async def _saved_and_told(self) -> None:
        await self.persistence.save()
        await self._wait_registered()

    def _topics_changed(self, topic: str) -> None:
        self.persistence.changed()
        self._on_topic_change()
        self._keys.watch(topic, self.topics.find(topic))
        if self.topics.find(topic) is None:
            self.announcing.forget(topic)
        else:
            self.announcing.add(topic)

    def _runtime_values(self) -> dict[str, str]:
        values = {
            "sendsAwaitingFlush": str(len(self.sends.gate)),
            "commitLogSyncCount": str(self.store.sync_count),
            "storeWritable": "true" if self.store.writable else "false",
            "storeNotWritableReason": self.store.why_not_writable or "",
            "diskUsedRatio": f"{self.store.cleaning.disk_ratio:.4f}",
            "segmentsKeptReason": self.store.cleaning.why_kept or "",
        }
        values["tableRepairs"] = "; ".join(self._repairs)
        values |= self._registration_values()
        values |= self._damage.values()
        for feature in self.features:
            values |= feature.runtime_values()
        return values


def _local_day(ms: int) -> int:
    """Return the number of the day where the broker runs."""
    return datetime.fromtimestamp(ms / 1000).toordinal()


def _index_state(store: MessageStore) -> tuple[int, int]:
    index = store.index
    return (index.end_ms, int(index.end_position)) if index is not None else (0, 0)
