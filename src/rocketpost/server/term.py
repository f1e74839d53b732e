"""Terms of office: what a broker does in one role, opened and closed as a whole.

The process keeps its listeners, store and tables. What it does as a leader is built from them when
a term opens: handlers, background tasks, the registration. Closing the term answers everybody who
waits, ends every task, saves every file, and leaves the store open for the next term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Self

from rocketpost.broker.dedup.service import OnceService
from rocketpost.broker.group.retention_holds import RetentionHolds
from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import FeatureSet
from rocketpost.server.features.administration import AdministrationFeature
from rocketpost.server.features.assignment import AssignmentFeature
from rocketpost.server.features.cleaning import CleaningFeature
from rocketpost.server.features.client import ClientFeature
from rocketpost.server.features.dedup import DedupFeature
from rocketpost.server.features.dedup_recovery import Known, recover_blocking
from rocketpost.server.features.delay import DelayFeature
from rocketpost.server.features.expiry import ExpiryFeature
from rocketpost.server.features.filter import FilterFeature
from rocketpost.server.features.pop import PopFeature
from rocketpost.server.features.pull import PullFeature
from rocketpost.server.features.registration import RegistrationFeature
from rocketpost.server.features.reply import ReplyFeature
from rocketpost.server.features.retention_holds import RetentionHoldsFeature
from rocketpost.server.features.send import SendFeature
from rocketpost.server.features.standstill import StandstillFeature
from rocketpost.server.features.statistics import StatisticsFeature
from rocketpost.server.features.timer import TimerFeature, open_timers_blocking
from rocketpost.server.features.transaction import TransactionFeature
from rocketpost.server.log_writer import CommitThenDrop
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.store.timer.store import TimerStore

logger = logging.getLogger(__name__)

LEADER_ID = 0


class LeaderTerm:
    """The term of a leader, which serves everything. Owned by the loop.

    Args:
        context: The state of the broker.
        known: What is stored already.
        timers: The timer's files, if the broker has a timer.
        adopts_waiting: Whether topics of timed messages may be missing in the table.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        known: Known,
        timers: TimerStore | None,
        adopts_waiting: bool = False,
    ) -> None:
        self.context = context
        self.features = FeatureSet()
        self.registration = RegistrationFeature(context, broker_id=LEADER_ID)
        tables = context.tables
        self._keys = known.keys
        self._announcing = Announcing(wait_registered=self._save_and_register)
        dedup = OnceService(producers=known.producers, keys=known.keys, records=context.store)
        self._sends = SendFeature(context, dedup=dedup, timers=timers, announcing=self._announcing)
        leader = self._sends.context
        holds = RetentionHolds(
            groups=tables.groups, offsets=tables.offsets, queues=context.store.queues
        )
        cleaning = CleaningFeature(context, features=self.features, holds=holds)
        self.clients = ClientFeature(context)
        self.features.add(
            StatisticsFeature(context),
            PullFeature(context),
            self.clients,
            self.registration,
            AdministrationFeature(
                context,
                features=self.features,
                dropper=CommitThenDrop(self._sends.writer, context.store),
                clean=cleaning.clean_now,
                wait_registered=self.registration.wait_registered,
            ),
            StandstillFeature.of(context),
            FilterFeature(context),
            DedupFeature(leader, file=known.producers_file, repair=known.repair),
            DelayFeature(leader),
            AssignmentFeature(context),
            ReplyFeature(leader),
            TransactionFeature(leader),
            PopFeature(leader),
        )
        if timers is not None:
            self.features.add(TimerFeature(leader, timers=timers, adopts_waiting=adopts_waiting))
        self.features.add(
            ExpiryFeature.of(context),
            cleaning,
            # After those that may keep messages from being deleted: it reports what is deleted.
            RetentionHoldsFeature(holds=holds, saved=context.persistence.save),
            # The last to close: others may store something when they do.
            self._sends,
        )

    @classmethod
    async def open(
        cls, context: BrokerContext, *, is_first: bool = False, is_foreign: bool = False
    ) -> Self:
        """Recover what a leader must know.

        Args:
            context: The state of the broker.
            is_first: Whether it is the first term since the start of the process.
            is_foreign: Whether RocketMQ alone has written to the store so far.

        Raises:
            StoreError: The files of a feature cannot be read.
        """
        known = await asyncio.to_thread(
            recover_blocking,
            context.store,
            topics=context.tables.topics,
            config=context.broker_config,
            clock=context.clock,
            is_foreign=is_foreign,
        )
        timers = await asyncio.to_thread(
            open_timers_blocking,
            context.store,
            clock=context.clock,
            topics=list(context.tables.topics.configs),
        )
        try:
            term = cls(
                context,
                known=known,
                timers=timers,
                adopts_waiting=is_first and bool(context.repairs),
            )
            context.tables.topics.on_change = term._topic_changed
            await term.features.open()
            term.features.configure(context.broker_config, context.store_config)
        except BaseException:
            context.tables.topics.on_change = context.persistence.changed
            if timers is not None:
                timers.close()
            raise
        return term

    async def close(self) -> None:
        """Answer everybody who waits; background work has ended.

        Sends that wait for the disk get it once more, so that a planned end refuses nothing.
        """
        await self._announcing.close()
        self._sends.writer.commit()
        with contextlib.suppress(StoreError, OSError):
            await asyncio.to_thread(self.context.store.save_blocking)
        await asyncio.sleep(0)
        self.features.close()
        self.context.tables.topics.on_change = self.context.persistence.changed

    async def save(self) -> None:
        """Save the files of every feature, after everything that they speak of.

        Raises:
            StoreError: A file could not be saved; what was saved before still is.
        """
        try:
            await asyncio.to_thread(self.context.store.save_blocking)
        except (StoreError, OSError) as error:
            logger.error("messages are not on disk yet: reason=%s", error)
        await self.features.save()

    def durable_from_thread(self, position: Position) -> None:
        """Answer sends that waited for the disk."""
        self._sends.durable_from_thread(position)

    def broken_from_thread(self, reason: str) -> None:
        """Refuse sends that wait for the disk."""
        self._sends.broken_from_thread(reason)

    def _topic_changed(self, topic: str) -> None:
        topics = self.context.tables.topics
        self.context.persistence.changed()
        self.registration.changed()
        self._keys.watch(topic, topics.find(topic))
        if topics.find(topic) is None:
            self._announcing.forget(topic)
        else:
            self._announcing.add(topic)

    async def _save_and_register(self) -> None:
        """Return once new topics survive a crash and the name servers know them.

        A message that waits for its time names its topic, and no queue of that topic shows it yet.
        """
        try:
            await self.context.persistence.save_urgent()
        except StoreError as error:
            logger.error("new topics are not saved yet: reason=%s", error)
        await self.registration.wait_registered()
