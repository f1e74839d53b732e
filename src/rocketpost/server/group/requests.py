"""Requests of tools about a group: its state, its leader, its members.

RocketMQ's tools ask a controller for these. Here every member answers for its own group. In these
answers, the id of a broker is its number plus one, whether it leads or not. At name servers, the
leader has the id 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from rocketpost.codec.bodies.group_status import (
    GroupStatus,
    MemberState,
    ReplicaIdentity,
    SyncState,
    SyncStates,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.faults import InvalidParameter, ServerError, ServiceNotAvailable
from rocketpost.codec.headers.broker_group import (
    ChangeGroup,
    ControllerMetadata,
    ElectMaster,
    ElectMasterResponse,
)
from rocketpost.errors import ConfigError, ReplicationError
from rocketpost.raft.members import ChangeKind, MemberChange
from rocketpost.server.context import BrokerContext
from rocketpost.server.feature import Feature
from rocketpost.server.group.status import StatusSource, is_in_sync, runtime_values
from rocketpost.server.handlers.replies import json_reply
from rocketpost.server.metrics.exposition import Family
from rocketpost.server.metrics.replication import group_families
from rocketpost.server.peer_ports.member_login import MemberLogins
from rocketpost.server.routes.access import GET, UPDATE, of_cluster, strict
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain, waiting
from rocketpost.server.settings.group import follower_id_of, parse_peers
from rocketpost.transport.connection import Connection

_CHANGES: Final = {
    "add": ChangeKind.ADD_LEARNER,
    "promote": ChangeKind.PROMOTE,
    "remove": ChangeKind.REMOVE,
}


class GroupRequests(Feature):
    """Serves requests about the group. Owned by the loop.

    Args:
        source: Knows the state of this member, and changes the group.
        context: The state of the broker.
    """

    def __init__(self, source: StatusSource, context: BrokerContext) -> None:
        self._source = source
        self._broker_name = context.identity.name
        login, gate = context.peers.log_ports.login, context.access.gate
        self._logins: MemberLogins | None = None
        if login is not None and gate is not None:
            self._logins = MemberLogins(login, gate)

    def metrics(self) -> Iterable[Family]:
        """Return this member's role, term and positions, and how far others are behind."""
        return group_families(self._source.member_status())

    def runtime_values(self) -> dict[str, str]:
        """Return this member's view of its group."""
        return runtime_values(self._source.member_status())

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests about the group."""
        read, change = of_cluster(GET), of_cluster(UPDATE)
        return [
            *([self._logins.route()] if self._logins is not None else ()),
            plain(RequestCode.GET_GROUP_STATUS, NO_HEADER, strict(read), self.show),
            waiting(RequestCode.CHANGE_GROUP, ChangeGroup, strict(change), self.change),
            plain(
                RequestCode.CONTROLLER_GET_METADATA_INFO, NO_HEADER, strict(read), self.show_leader
            ),
            plain(
                RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
                NO_HEADER,
                strict(read),
                self.show_sync_state,
            ),
            waiting(RequestCode.CONTROLLER_ELECT_MASTER, ElectMaster, change, self.elect),
        ]

    def show(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return this member's view of its group."""
        return json_reply(self._source.member_status())

    async def change(self, connection: Connection, command: Command, header: ChangeGroup) -> Reply:
        """Hand over leadership, or change the members by one; answered when it is done.

        Raises:
            InvalidParameter: The action is unknown, or lacks something.
            ServiceNotAvailable: It is not possible now; the text says why.
        """
        if header.action == "transfer":
            await self._hand_over(header.member)
            return json_reply(self._source.member_status())
        kind = _CHANGES.get(header.action)
        if kind is None:
            known = ", ".join(["transfer", *_CHANGES])
            raise InvalidParameter(f"action={header.action!r} is none of {known}")
        if not header.member:
            raise InvalidParameter("the id of the member is missing")
        if kind is ChangeKind.ADD_LEARNER:
            self._check_new(header)
        try:
            change = MemberChange(kind, header.member)
            await self._source.change_members(change, header.address)
        except ReplicationError as error:
            raise ServiceNotAvailable(str(error)) from error
        return json_reply(self._source.member_status())

    def show_leader(self, connection: Connection, command: Command, header: None) -> Reply:
        """Tell who leads, as a controller does."""
        status = self._source.member_status()
        leader = status.find(status.leader)
        found = ControllerMetadata(
            group=status.group,
            is_leader=status.role == "LEADER",
            peers="".join(f"{each.name}:{each.client_address};" for each in status.members),
        )
        if leader is not None:
            found.controller_leader_id = leader.name
            found.controller_leader_address = leader.client_address
        return Reply(fields=to_fields(found))

    def show_sync_state(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return the members that have nearly all of the log, and the others.

        Raises:
            ServerError: The request names no broker.
        """
        try:
            names = msgspec.json.decode(command.body, type=list[str])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidParameter(f"the body must list names of brokers: {error}") from error
        if not names:
            raise ServerError("the names of brokers are missing")
        states = {}
        if self._broker_name in names:
            states[self._broker_name] = self._sync_state(self._source.member_status())
        return json_reply(SyncStates(replicas_info_table=states))

    async def elect(self, connection: Connection, command: Command, header: ElectMaster) -> Reply:
        """Let the broker of an id lead.

        Raises:
            InvalidParameter: There is no such broker in this group.
            ServiceNotAvailable: It cannot lead now; the text says why.
        """
        if header.broker_name != self._broker_name:
            raise InvalidParameter(
                f"this is a group of brokers {self._broker_name}, not {header.broker_name}"
            )
        status = self._source.member_status()
        by_id = {follower_id_of(each.name): each for each in status.members}
        wanted = by_id.get(header.broker_id) if header.broker_id >= 0 else None
        if header.broker_id >= 0 and wanted is None:
            known = ", ".join(f"{number} ({each.name})" for number, each in sorted(by_id.items()))
            raise InvalidParameter(f"no member has the id {header.broker_id}; there are {known}")
        if wanted is None or wanted.name != status.leader:
            await self._hand_over(wanted.name if wanted is not None else "")
            status = self._source.member_status()
        leader = wanted or status.find(status.leader)
        answer = ElectMasterResponse(
            master_broker_id=follower_id_of(leader.name) if leader is not None else 0,
            master_address=leader.client_address if leader is not None else "",
            master_epoch=status.term,
            sync_state_set_epoch=status.term,
        )
        return Reply(fields=to_fields(answer))

    async def _hand_over(self, to: str) -> None:
        try:
            await self._source.hand_over(to)
        except ReplicationError as error:
            raise ServiceNotAvailable(str(error)) from error

    def _check_new(self, header: ChangeGroup) -> None:
        """Check the address of a new member."""
        status = self._source.member_status()
        members = [f"{each.name}-{each.address}" for each in status.members]
        try:
            parse_peers(";".join([*members, f"{header.member}-{header.address}"]))
        except ConfigError as error:
            raise InvalidParameter(str(error).replace("dLegerPeers", "the group")) from error

    def _sync_state(self, status: GroupStatus) -> SyncState:
        near = [each for each in status.members if is_in_sync(each, status.end)]
        far = [each for each in status.members if each not in near]
        leader = status.find(status.leader)
        return SyncState(
            in_sync_replicas=[self._identity(each) for each in near],
            not_in_sync_replicas=[self._identity(each) for each in far],
            master_address=leader.client_address if leader is not None else "",
            master_broker_id=follower_id_of(leader.name) if leader is not None else 0,
            master_epoch=status.term,
            sync_state_set_epoch=status.term,
        )

    def _identity(self, member: MemberState) -> ReplicaIdentity:
        return ReplicaIdentity(
            alive=not member.problem,
            broker_address=member.client_address,
            broker_id=follower_id_of(member.name),
            broker_name=self._broker_name,
        )
