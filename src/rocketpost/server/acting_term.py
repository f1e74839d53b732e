"""The term of a slave that may act for its master.

In a group with ``enableSlaveActingMaster``, the slave with the smallest id acts while the master is
gone. It serves pulls, offsets and queue locks, so that consumers continue. It stores nothing: its
log is a copy of the master's, and with a byte of its own, the two would differ for ever. So sends
are refused, and delayed, timed, transactional and popped messages wait for the master (ADR 0087).

Acting begins and ends within one term: the registration, the stream of the master's log and the
connections of clients stay as they are.
"""

from __future__ import annotations

from rocketpost.replication.acting import Act, Duty, FollowMaster
from rocketpost.server.context import BrokerContext
from rocketpost.server.follower_term import FollowerTerm
from rocketpost.server.replication.acting import GroupFeature
from rocketpost.server.replication.acting_members import Members
from rocketpost.server.replication.acting_preparation import SlavePreparation
from rocketpost.server.routes.follower_refusals import ACTING, STANDING_BY, follower_routes
from rocketpost.server.routes.route import Route


class ActingTerm(FollowerTerm):
    """The term of a follower that acts for its leader while the leader is gone. Owned by the loop.

    Args:
        context: The state of the broker.
        broker_id: The id under which it registers with name servers.
    """

    def __init__(self, context: BrokerContext, *, broker_id: int) -> None:
        super().__init__(context, broker_id=broker_id)
        self.group = GroupFeature(
            context,
            broker_id=broker_id,
            members=Members.of(context, broker_id=broker_id),
            preparation=SlavePreparation(
                master=self.master, status=self.stream.status, peers=context.peers
            ),
            register=self.registration.begin,
            on_duty=self._take_duty,
        )
        self.features.add(self.group)

    @property
    def is_acting(self) -> bool:
        """Whether the broker acts for its master now."""
        return self.group is not None and self.group.is_acting

    def routes(self) -> list[Route]:
        """Return the routes of all requests; an acting slave refuses fewer of them."""
        return follower_routes(self.features.routes(), ACTING if self.is_acting else STANDING_BY)

    def _grants_locks(self) -> bool:
        return self.is_acting

    def _take_duty(self, duty: Duty) -> None:
        if isinstance(duty, FollowMaster):
            self.master.learn(remoting=duty.address, ha=duty.ha_address)
            self.master.hurry()
            return
        self.on_routes_changed()
        self.master_presence.set_acted_for(isinstance(duty, Act))
