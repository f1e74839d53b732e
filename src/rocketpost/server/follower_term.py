"""The term of a follower: a slave that copies the log and the tables of its master."""

from __future__ import annotations

from typing import Self

from rocketpost.broker.group.retention_holds import RetentionHolds
from rocketpost.model.route import MASTER_ID
from rocketpost.server.context import BrokerContext
from rocketpost.server.features.access import AccessFeature
from rocketpost.server.features.administration import AdministrationFeature
from rocketpost.server.features.assignment import AssignmentFeature
from rocketpost.server.features.cleaning import CleaningFeature
from rocketpost.server.features.filter import FilterFeature
from rocketpost.server.features.pull import PullFeature
from rocketpost.server.features.retention_holds import RetentionHoldsFeature
from rocketpost.server.features.statistics import StatisticsFeature
from rocketpost.server.replication.master_address import MasterAddress
from rocketpost.server.replication.master_client import MasterClient
from rocketpost.server.replication.master_presence import MasterPresence
from rocketpost.server.replication.retention import MasterHold
from rocketpost.server.replication.slave import SlaveFeature
from rocketpost.server.replication.tables_follower import TablesFollower
from rocketpost.server.replication.tables_serving import FollowedTimer, ProgressFeature
from rocketpost.server.routes.follower_refusals import follower_routes
from rocketpost.server.routes.route import Route
from rocketpost.server.term import OfficeTerm
from rocketpost.server.writer.follower_log import FollowerLog
from rocketpost.server.writer.queue_deletion import CommitThenDelete


class FollowerTerm(OfficeTerm):
    """The term of a follower, which serves reads and refuses other requests. Owned by the loop.

    Messages expire by its own settings, but not before the master has deleted them.

    Args:
        context: The state of the broker.
        broker_id: The id under which it registers with name servers.
    """

    def __init__(self, context: BrokerContext, *, broker_id: int) -> None:
        assert broker_id > MASTER_ID
        super().__init__(context, broker_id=broker_id)
        self.master = MasterAddress(fixed_ha=context.broker_config.ha_master_address)
        """Where the master is."""
        self.master_presence = MasterPresence()
        """The presence of the master."""
        self.log = FollowerLog(store=context.store, flush_mode=context.store_config.flush_mode)
        """Takes the records of the master."""
        self.master_client = MasterClient(self.master, context.peers)
        """Asks the master."""
        self.stream = SlaveFeature(
            context,
            client=self.master_client,
            log=self.log,
            broker_id=broker_id,
            ask_name_servers=self.registration.note_change,
            presence=self.master_presence,
        )
        self.tables = TablesFollower(context, master=self._followed_master)
        """Follows the tables of the master."""
        self.stream.on_connected = self.tables.wake
        holds = RetentionHolds(
            groups=context.tables.groups,
            offsets=context.tables.offsets,
            queues=context.store.queues,
        )
        master_hold = MasterHold(
            log=context.store, holds=holds, ask_bounds=self.stream.master_bounds
        )
        cleaning = CleaningFeature(
            context, features=self.features, holds=master_hold, prepare=master_hold.refresh
        )
        self.features.add(
            StatisticsFeature(context),
            PullFeature(context, presence=self.master_presence),
            self.clients,
            self.registration,
            AdministrationFeature(
                context,
                features=self.features,
                deleter=CommitThenDelete(context.store),
                clean=cleaning.clean_now,
                wait_registered=self.registration.wait_registered,
                replication=self.stream.status,
            ),
            self.stream,
            FilterFeature(context),
            AccessFeature(context),
            AssignmentFeature(context),
            ProgressFeature(delays=context.tables.delays, timer=_timer_of_master(context)),
            self.tables,
            cleaning,
            RetentionHoldsFeature(holds=holds, save=context.persistence.save),
        )

    @classmethod
    async def open(cls, context: BrokerContext, *, broker_id: int) -> Self:
        """Open the features of a follower.

        Raises:
            StoreError: The files of a feature cannot be read.
        """
        term = cls(context, broker_id=broker_id)
        await term._open()
        term.log.arrival_listeners = term.features.arrival_listeners()
        term.log.begin()
        return term

    async def _settle(self, reason: str) -> None:
        await super()._settle(reason)
        self.log.close()

    def routes(self) -> list[Route]:
        """Return the routes of all requests: reads are served, others are refused."""
        return follower_routes(self.features.routes())

    def _followed_master(self) -> str:
        """Return the address of the master; empty while its log is not followed.

        Offsets of a master whose log differs would mean other messages.
        """
        return self.master.remoting if self.stream.status().is_connected else ""

    def _take_master(self, remoting: str, ha: str) -> None:
        if remoting != self.context.identity.address:  # ours, until the name server forgets it
            self.master.learn(remoting=remoting, ha=ha)


def _timer_of_master(context: BrokerContext) -> FollowedTimer | None:
    """Return what a follower knows of its master's timer; None if it has no timed messages."""
    # A returning master of RocketMQ asks its slaves for this, and does not go online without it.
    is_timed = context.store.config.timer_enabled or context.broker_config.acting_master
    return FollowedTimer(context.tables.master_timer) if is_timed else None
