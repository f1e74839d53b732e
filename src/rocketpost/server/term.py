"""Terms of office: the work of a broker in one role, opened and closed as a whole.

The process keeps its listeners, store and tables. The parts of a leader or a follower are built
from them when a term opens: handlers, background tasks, the registration. Closing the term answers
waiting requests, ends every task, saves every file, and leaves the store open for the next term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Self

from rocketpost.broker.group.retention_holds import RetentionHolds
from rocketpost.errors import StoreError
from rocketpost.model.route import MASTER_ID
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import FeatureSet
from rocketpost.server.features.access import AccessFeature
from rocketpost.server.features.administration import AdministrationFeature
from rocketpost.server.features.assignment import AssignmentFeature
from rocketpost.server.features.cleaning import CleaningFeature
from rocketpost.server.features.client import ClientFeature
from rocketpost.server.features.dedup import DedupFeature
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
from rocketpost.server.features.timer import TimerFeature
from rocketpost.server.features.transaction import TransactionFeature
from rocketpost.server.group.requests import GroupRequests
from rocketpost.server.group.status import GroupSeat
from rocketpost.server.group.tables.log import GroupDeletion, TableLog
from rocketpost.server.name_servers.announcing import Announcing
from rocketpost.server.replication.acting import GroupFeature
from rocketpost.server.replication.acting_members import Members
from rocketpost.server.replication.acting_preparation import MasterPreparation
from rocketpost.server.replication.master import MasterFeature
from rocketpost.server.replication.tables_feed import TablesFeed
from rocketpost.server.replication.tables_serving import ProgressFeature
from rocketpost.server.routes.route import Route
from rocketpost.server.writer.queue_deletion import CommitThenDelete
from rocketpost.transport.connection import Connection
from rocketpost.transport.express import Express

logger = logging.getLogger(__name__)


class Term:
    """The time that a broker spends in one role; this one has no role and does nothing.

    Owned by the loop.
    """

    def __init__(self) -> None:
        self.features = FeatureSet()
        self._work: asyncio.Task[None] | None = None
        self.lost: list[Connection] = []
        """Lost connections that no feature has handled."""
        self.on_routes_changed: Callable[[], None] = _nobody
        """Called when :meth:`routes` returns others than before."""

    @property
    def registered(self) -> frozenset[str]:
        """The name servers that know the broker."""
        return frozenset()

    def routes(self) -> list[Route]:
        """Return the routes of all requests."""
        return self.features.routes()

    @property
    def lanes(self) -> Sequence[Express[Connection]]:
        """Functions that take requests before they are decoded."""
        return ()

    @property
    def popped_counts(self) -> Mapping[tuple[str, str, int], int]:
        """Popped messages that are not acknowledged yet, by topic, group and queue."""
        return {}

    def begin(self) -> asyncio.Task[None]:
        """Start the background work; it ends early only if a feature fails."""
        self._work = asyncio.create_task(self.features.run(), name=type(self).__name__)
        return self._work

    async def register(self) -> None:
        """Register with the name servers; return when each was tried, or after some seconds."""

    async def unregister(self) -> None:
        """Unregister from the name servers."""

    async def pause_registration(self) -> None:
        """Stop registering, but stay known to the name servers."""

    async def forget_registration(self) -> None:
        """Close the connections to the name servers."""

    def connection_lost(self, connection: Connection) -> None:
        """Record a lost connection for the next term."""
        self.lost.append(connection)

    async def close(self, reason: str) -> None:
        """End the background work and answer waiting requests.

        No more requests may reach the features.

        Args:
            reason: The reason in the answer to refused requests.
        """
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait((self._work,))
        await self._settle(reason)
        self.features.close()

    async def save(self) -> None:
        """Save the files of every feature, after the messages that they cover.

        Raises:
            StoreError: A file could not be saved; the file saved before is still there.
        """
        await self.features.save()

    async def _settle(self, reason: str) -> None:
        """Finish what can be finished before the other waiting requests are answered."""


class OfficeTerm(Term):
    """A term in which the broker serves clients.

    Args:
        context: The state of the broker.
        broker_id: The id under which it registers with name servers.
        election: Number of the election that gave it this role; 0 if there was none.
    """

    def __init__(self, context: BrokerContext, *, broker_id: int, election: int = 0) -> None:
        super().__init__()
        self.context = context
        self.registration = RegistrationFeature(
            context,
            broker_id=broker_id,
            ha_address=self._ha_address,
            on_master=self._take_master,
            state_version=election,
        )
        self.group: GroupFeature | None = None
        """The broker's place in its group, if a slave of the group acts for a lost master."""
        is_strict = context.broker_config.strict_locks
        self.clients = ClientFeature(
            context,
            others=self._others if is_strict else None,
            grants_locks=self._grants_locks,
        )

    @property
    def registered(self) -> frozenset[str]:
        """The name servers that know the broker."""
        return self.registration.registered

    def connection_lost(self, connection: Connection) -> None:
        """Notify every feature of a lost connection."""
        self.features.connection_lost(connection)

    async def register(self) -> None:
        """Register with the name servers; return when each was tried, or after some seconds.

        A broker that has to prepare first registers later, on its own.
        """
        await (self.registration if self.group is None else self.group).begin()

    async def unregister(self) -> None:
        """Unregister from the name servers."""
        if self.group is not None:
            self.group.end()
        await self.registration.end()

    async def pause_registration(self) -> None:
        """Stop registering, but stay known to the name servers."""
        await self.registration.pause()

    async def forget_registration(self) -> None:
        """Close the connections to the name servers."""
        await self.registration.forget()

    async def save(self) -> None:
        """Save the files of every feature, after the messages that they cover.

        Raises:
            StoreError: A file could not be saved; the file saved before is still there.
        """
        try:
            await asyncio.to_thread(self.context.store.save_blocking)
        except (StoreError, OSError) as error:
            logger.error("messages are not on disk yet: reason=%s", error)
        await self.features.save()

    async def _open(self) -> None:
        self.context.tables.topics.on_change = self._topic_changed
        try:
            await self.features.open()
            self.features.configure(self.context.broker_config, self.context.store_config)
        except BaseException:
            self._forget_topics()
            raise

    def _ha_address(self) -> str:
        """Return the address for slaves; empty if there is none."""
        return ""

    def _take_master(self, remoting: str, ha: str) -> None:
        """Take the addresses of the master that a name server tells a slave."""

    def _grants_locks(self) -> bool:
        """Tell whether clients may lock queues at this broker."""
        return True

    def _others(self) -> Sequence[str]:
        """Return the addresses of the other members of the broker's group."""
        return () if self.group is None else self.group.others

    def _topic_changed(self, topic: str) -> None:
        self.context.persistence.note_change()
        self.registration.note_change()

    def _forget_topics(self) -> None:
        self.context.tables.topics.on_change = self.context.persistence.note_change

    async def _settle(self, reason: str) -> None:
        self._forget_topics()


class LeaderTerm(OfficeTerm):
    """The term of a leader, which serves all requests. Owned by the loop.

    Args:
        context: The state of the broker.
        number: The number of the term; later terms have higher ones.
        is_first: Whether it is the first term since the start of the process.
        is_foreign: Whether RocketMQ alone has written to the store so far.
        seat: The leadership of a group, if this broker leads one.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        number: int,
        is_first: bool = False,
        is_foreign: bool = False,
        seat: GroupSeat | None = None,
    ) -> None:
        election = 0 if seat is None else number
        super().__init__(context, broker_id=MASTER_ID, election=election)
        tables = context.tables
        self._table_log: TableLog | None = None
        self._announcing = Announcing(wait_registered=self._save_and_register)
        self.slaves = MasterFeature(context)
        self._pulls = PullFeature(context)
        self._sends = SendFeature(
            context, term=number, announcing=self._announcing, replicas=self.slaves.acks, seat=seat
        )
        leader = self._sends.context
        self._keys = leader.dedup.keys
        self._pops = PopFeature(leader)
        holds = RetentionHolds(
            groups=tables.groups, offsets=tables.offsets, queues=context.store.queues
        )
        timer: TimerFeature | None = None
        if context.store.config.timer_enabled:
            adopts_waiting = is_first and bool(context.repairs)
            timer = TimerFeature(leader, adopts_waiting=adopts_waiting)
        if seat is not None:
            self._table_log = TableLog(leader, writer=self._sends.writer, timer=timer)
            self.clients.commit_locks(self._table_log.commit_locks)
            seat.before_handover = self._table_log.settle
        cleaning = CleaningFeature(context, features=self.features, holds=holds)
        self.features.add(
            StatisticsFeature(context),
            self._pulls,
            self.clients,
            self.registration,
            AdministrationFeature(
                context,
                features=self.features,
                deleter=(
                    CommitThenDelete(context.store, commit=self._sends.writer.commit)
                    if self._table_log is None
                    else GroupDeletion(self._table_log, context.store)
                ),
                clean=cleaning.clean_now,
                wait_registered=self.registration.wait_registered,
                replication=self.slaves.status if seat is None else seat.status,
            ),
            self.slaves if seat is None else GroupRequests(seat, context),
            StandstillFeature.of(context),
            FilterFeature(context),
            AccessFeature(context),
            DedupFeature(leader, is_foreign=is_foreign),
            DelayFeature(leader),
            AssignmentFeature(context),
            ReplyFeature(leader),
            TransactionFeature(leader),
            self._pops,
        )
        if timer is not None:
            self.features.add(timer)
        self.features.add(
            ProgressFeature(delays=tables.delays, timer=timer),
            self._table_log or TablesFeed(context, timer=timer),
            ExpiryFeature.of(context),
            cleaning,
            # After the features that may keep messages from deletion: it reports deleted ones.
            RetentionHoldsFeature(holds=holds, save=context.persistence.save),
            # The last to close: others may store messages when they close.
            self._sends,
        )
        if context.broker_config.acting_master:
            self.group = GroupFeature(
                context,
                broker_id=MASTER_ID,
                members=Members.of(context, broker_id=MASTER_ID),
                preparation=MasterPreparation(
                    address=context.identity.address,
                    ha_address=self._ha_address,
                    log_end=context.store.written_position,
                    status=self.slaves.status,
                    offsets=tables.offsets,
                    peers=context.peers,
                ),
                register=self.registration.begin,
                on_alive=self._sends.note_living_replicas,
            )
            self.features.add(self.group)

    @classmethod
    async def open(
        cls,
        context: BrokerContext,
        *,
        number: int,
        is_first: bool = False,
        is_foreign: bool = False,
        seat: GroupSeat | None = None,
    ) -> Self:
        """Recover the state of a leader, and open its features.

        Args:
            context: The state of the broker.
            number: The number of the term; later terms have higher ones.
            is_first: Whether it is the first term since the start of the process.
            is_foreign: Whether RocketMQ alone has written to the store so far.
            seat: The leadership of a group, if this broker leads one.

        Raises:
            StoreError: The files of a feature cannot be read.
        """
        term = cls(context, number=number, is_first=is_first, is_foreign=is_foreign, seat=seat)
        await term._open()
        term._sends.writer.arrival_listeners = term.features.arrival_listeners()
        term._sends.writer.on_growth = term.slaves.note_growth
        term.slaves.on_acks = term._sends.writer.slaves_changed
        if term._table_log is not None:
            term._table_log.begin()
        return term

    @property
    def popped_counts(self) -> Mapping[tuple[str, str, int], int]:
        """Popped messages that are not acknowledged yet, by topic, group and queue."""
        return self._pops.popped_counts

    def _ha_address(self) -> str:
        return self.slaves.ha_address

    async def _settle(self, reason: str) -> None:
        """Flush once more for the waiting sends, and let slaves have them.

        So a planned end refuses no send.
        """
        await super()._settle(reason)
        await self._announcing.close()
        if self._table_log is not None:
            self._table_log.settle()
        self._sends.writer.commit()
        with contextlib.suppress(StoreError, OSError):
            await asyncio.to_thread(self.context.store.save_blocking)
        await asyncio.sleep(0)
        await self._sends.writer.wait_for_slaves()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.context.broker_config.slave_timeout_ms / 1000):
                await self._sends.writer.wait_kept()
        self._sends.writer.end_term(reason)

    @property
    def lanes(self) -> Sequence[Express[Connection]]:
        """Functions that take plain sends, and pulls of known shapes."""
        return self._sends.express, self._pulls.express

    def _topic_changed(self, topic: str) -> None:
        super()._topic_changed(topic)
        if self._table_log is not None:
            self._table_log.topic_changed(topic)
        self._sends.topic_changed()
        config = self.context.tables.topics.find(topic)
        self._keys.watch(topic, config)
        if config is None:
            self._announcing.forget(topic)
        else:
            self._announcing.add(topic)

    async def _save_and_register(self) -> None:
        """Wait until new topics are saved and the name servers know them.

        A delayed message names its topic, but no queue of that topic has it yet.
        """
        try:
            await self.context.persistence.save_urgent()
        except StoreError as error:
            logger.error("new topics are not saved yet: reason=%s", error)
        await self.registration.wait_registered()


@contextlib.contextmanager
def unsaved_files_logged() -> Iterator[None]:
    """Continue if files of a term cannot be saved.

    The next term recovers from the files saved before, and from the log.
    """
    try:
        yield
    except StoreError as error:
        logger.error("files of the last term are not saved: reason=%s", error)


def _nobody() -> None:
    """Ignore that routes have changed."""
