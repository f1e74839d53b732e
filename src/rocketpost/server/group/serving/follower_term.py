"""The term of a follower in a group: it serves reads of what is committed, and refuses the rest."""

from __future__ import annotations

from typing import Self

from rocketpost.broker.group.retention_holds import RetentionHolds
from rocketpost.server.context import BrokerContext
from rocketpost.server.features.administration import AdministrationFeature
from rocketpost.server.features.assignment import AssignmentFeature
from rocketpost.server.features.cleaning import CleaningFeature
from rocketpost.server.features.filter import FilterFeature
from rocketpost.server.features.pull import PullFeature
from rocketpost.server.features.retention_holds import RetentionHoldsFeature
from rocketpost.server.features.statistics import StatisticsFeature
from rocketpost.server.group.requests import GroupRequests
from rocketpost.server.group.serving.forwarding import Forwarding
from rocketpost.server.group.status import StatusSource
from rocketpost.server.group.tables.reader import TableReader
from rocketpost.server.replication.master_presence import MasterPresence
from rocketpost.server.routes.follower_refusals import OF_GROUP, follower_routes
from rocketpost.server.routes.route import Route
from rocketpost.server.term import OfficeTerm
from rocketpost.server.writer.queue_deletion import CommitThenDelete


class GroupFollowerTerm(OfficeTerm):
    """The term of a group's follower. Owned by the loop.

    The log follows the leader in every term, below the terms of office (``server.group.member``).

    Args:
        context: The state of the broker.
        broker_id: The id under which it registers with name servers.
        election: The term of the group in which it began to follow.
        source: Knows the state of this member.
        tables: Applies the tables of the group.
        forwarding: Passes requests on to the leader.
    """

    def __init__(
        self,
        context: BrokerContext,
        *,
        broker_id: int,
        election: int,
        source: StatusSource,
        tables: TableReader,
        forwarding: Forwarding,
    ) -> None:
        super().__init__(context, broker_id=broker_id, election=election)
        self.master_presence = MasterPresence()
        """The presence of a master, as pulls see it: a follower needs none to hold them."""
        self._forwarding = forwarding
        # Everything that it shows is committed, and a consumer may not know the leader yet.
        self.master_presence.serves_pulls = True
        holds = RetentionHolds(
            groups=context.tables.groups,
            offsets=context.tables.offsets,
            queues=context.store.queues,
        )
        cleaning = CleaningFeature(context, features=self.features, holds=holds)
        self.features.add(
            tables,
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
                replication=source.status,
            ),
            GroupRequests(source, context),
            self._forwarding,
            FilterFeature(context),
            AssignmentFeature(context),
            cleaning,
            RetentionHoldsFeature(holds=holds, save=context.persistence.save),
        )

    @classmethod
    async def open(
        cls,
        context: BrokerContext,
        *,
        broker_id: int,
        election: int,
        source: StatusSource,
        tables: TableReader,
        forwarding: Forwarding,
    ) -> Self:
        """Open the features of a follower.

        Raises:
            StoreError: The files of a feature cannot be read.
        """
        term = cls(
            context,
            broker_id=broker_id,
            election=election,
            source=source,
            tables=tables,
            forwarding=forwarding,
        )
        await term._open()
        return term

    def routes(self) -> list[Route]:
        """Return the routes of all requests: reads are served, others are refused."""
        return self._forwarding.replace(follower_routes(self.features.routes(), OF_GROUP))
