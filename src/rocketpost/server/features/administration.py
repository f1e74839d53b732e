"""Requests of administrators and tools: topics, groups, offsets, messages, settings, damage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rocketpost.broker.group.reset import ResetService
from rocketpost.broker.pop.targets import own_retry_topics
from rocketpost.broker.query import ProgressQueries
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature, FeatureSet
from rocketpost.server.features.standstill import standstill_of
from rocketpost.server.handlers.admin import AdminHandlers, CleaningHandlers, SettingsHandlers
from rocketpost.server.handlers.damage import DamageHandlers
from rocketpost.server.handlers.group import GroupHandlers
from rocketpost.server.handlers.ha_status import HaStatusHandlers
from rocketpost.server.handlers.offset import (
    OffsetHandlers,
    ProgressHandlers,
    QueueOffsetHandlers,
)
from rocketpost.server.handlers.query import QueryHandlers, QueryLimits
from rocketpost.server.handlers.reset import ResetHandlers
from rocketpost.server.handlers.topic import TopicHandlers
from rocketpost.server.replication.status import ReplicationStatus
from rocketpost.server.routes.route import Route
from rocketpost.server.settings.limits import pull_limits
from rocketpost.server.writer.queue_deletion import QueueDeleter
from rocketpost.store.message_store import MessageStore


class AdministrationFeature(Feature):
    """Serves administrators. Owned by the loop.

    Args:
        context: The state of the broker.
        features: Notified of changed offsets, and asked for their values.
        deleter: Deletes the queues of topics.
        clean: Deletes expired files now.
        wait_registered: Returns once the name servers know the topics.
        replication: Returns the state of replication.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        features: FeatureSet,
        deleter: QueueDeleter,
        clean: Callable[[], Awaitable[object]],
        wait_registered: Callable[[], Awaitable[None]],
        replication: Callable[[], ReplicationStatus],
    ) -> None:
        self._context = context
        self._features = features
        self._deleter = deleter
        self._clean = clean
        self._wait_registered = wait_registered
        self._replication = replication
        self._damage = DamageHandlers(context.store)

    def routes(self) -> Sequence[Route]:
        """Return the routes of every request of an administrator."""
        context = self._context
        messages = QueryHandlers(
            store=context.store,
            topics=context.tables.topics,
            membership=context.membership,
            filters=context.filters,
            index_state=lambda: _index_state(context.store),
            limits=lambda: QueryLimits(
                context.broker_config.query_count_max, context.broker_config.query_count_default
            ),
        )
        admin = AdminHandlers(
            clock=context.clock,
            stats=context.stats,
            store=context.store,
            commit_log_path=context.store.layout.commit_log,
            extra=self._features.runtime_values,
        )
        ha_status = HaStatusHandlers(
            end_position=lambda: context.store.end_position,
            checkpoint=context.store.checkpoint,
            status=self._replication,
            identity=context.identity,
        )
        settings = SettingsHandlers(config=context.settings, save=context.persistence.save_urgent)
        cleaning = CleaningHandlers(
            topics=context.tables.topics,
            store=context.store,
            delete_queues=self._deleter.delete_queues,
            clean=self._clean,
        )
        return [
            *self._table_routes(),
            *self._damage.routes(),
            *messages.routes(),
            *admin.routes(),
            *ha_status.routes(),
            *settings.routes(),
            *cleaning.routes(),
        ]

    def runtime_values(self) -> dict[str, str]:
        """Return the state of the store and its tables, and whether clients can be served."""
        store, problems = self._context.store, self._context.health.reasons()
        values = {
            "ready": "false" if problems else "true",
            "notReadyReason": "; ".join(problems),
            "commitLogSyncCount": str(store.sync_count),
            "storeWritable": "true" if store.writable else "false",
            "storeNotWritableReason": store.why_not_writable or "",
            "tableRepairs": "; ".join(self._context.repairs),
        }
        return values | self._damage.values()

    def _table_routes(self) -> list[Route]:
        context, tables = self._context, self._context.tables
        save = context.persistence.save
        queries = ProgressQueries(
            clock=context.clock,
            broker_name=context.identity.name,
            queues=context.store,
            topics=tables.topics,
            offsets=tables.offsets,
            membership=context.membership,
            stats=context.stats,
            cause=standstill_of(context).cause,
        )
        topics = TopicHandlers(
            topics=tables.topics,
            offsets=tables.offsets,
            stats=context.stats,
            queries=queries,
            store=self._deleter,
            save=self._save_and_register,
            retry_topics=self._retry_topics,
        )
        groups = GroupHandlers(
            tables=tables,
            membership=context.membership,
            stats=context.stats,
            broker_address=context.identity.address,
            save=save,
        )
        offsets = OffsetHandlers(
            tables=tables,
            membership=context.membership,
            store=context.store,
            save=save,
            memory_bytes=pull_limits(context.broker_config).memory_bytes,
            on_back=self._features.offset_moved_back,
        )
        progress = ProgressHandlers(
            tables=tables, queries=queries, broker_address=context.identity.address
        )
        resets = ResetHandlers(
            service=ResetService(
                topics=tables.topics,
                groups=tables.groups,
                offsets=tables.offsets,
                queues=context.store,
            ),
            offsets=tables.offsets,
            membership=context.membership,
            broker_name=context.identity.name,
            save=save,
            server_side=lambda: context.broker_config.server_side_reset,
            on_reset=self._features.offset_reset,
        )
        return [
            *topics.routes(),
            *groups.routes(),
            *offsets.routes(),
            *QueueOffsetHandlers(context.store).routes(),
            *progress.routes(),
            *resets.routes(),
        ]

    async def _save_and_register(self) -> None:
        await self._context.persistence.save()
        await self._wait_registered()

    def _retry_topics(self, topic: str) -> Sequence[str]:
        """Return the topics to delete together with a topic."""
        if not self._context.broker_config.clears_retry_topics:
            return ()
        tables = self._context.tables
        readers = tables.offsets.groups_of(topic)
        return own_retry_topics(topic, readers, topics=tables.topics, groups=tables.groups)


def _index_state(store: MessageStore) -> tuple[int, int]:
    index = store.index
    return (index.end_ms, int(index.end_position)) if index is not None else (0, 0)
