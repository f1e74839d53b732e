"""Bodies of requests about a group of brokers that elects its leader.

GET_GROUP_STATUS and CHANGE_GROUP are our own. The others are those that RocketMQ's tools send to a
controller: here every member answers them for its own group.
"""

from __future__ import annotations

import msgspec

from rocketpost.codec.bodies.leniency import decode_body


class MemberState(msgspec.Struct, rename="camel", kw_only=True):
    """One member, as another one or it itself sees it."""

    name: str
    address: str
    """Host and port for other members."""
    client_address: str = ""
    """Host and port for clients; empty if it was never met."""
    is_voter: bool = True
    """Whether it votes; a learner only gets the log."""
    has: int = 0
    """Position up to which it has the log of the leader, safely."""
    is_known: bool = False
    """Whether ``has`` is known: the leader knows it of all members, others of themselves."""
    is_suspect: bool = False
    """Whether it has lost something, and must get it back before it votes."""
    problem: str = ""
    """Reason why it cannot be reached."""


class GroupStatus(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to GET_GROUP_STATUS: one member's view of its group."""

    group: str
    member: str
    role: str
    """LEADER, FOLLOWER, or CANDIDATE."""
    term: int = 0
    leader: str = ""
    """Id of the leader; empty if none is known."""
    first: int = 0
    """Position of the oldest byte that this member keeps."""
    end: int = 0
    """End of this member's log."""
    committed: int = 0
    """Position before which everything is committed, as far as this member knows."""
    is_suspect: bool = False
    suspicions: list[str] = []
    """Losses that the last start of this member found."""
    problem: str = ""
    """Reason why this member cannot do its part; empty if it can."""
    scrub: str = ""
    """Progress of the comparison of old log with other members."""
    epochs: list[tuple[int, int]] = []
    """Each term of the log, and the position at which it begins."""
    members: list[MemberState] = []

    def find(self, name: str) -> MemberState | None:
        """Return one member."""
        return next((each for each in self.members if each.name == name), None)


class ReplicaIdentity(msgspec.Struct, rename="camel", kw_only=True):
    """One broker of a group in the answer to CONTROLLER_GET_SYNC_STATE_DATA."""

    alive: bool = False
    broker_address: str = ""
    broker_id: int = 0
    broker_name: str = ""


class SyncState(msgspec.Struct, rename="camel", kw_only=True):
    """The brokers of one name in that answer."""

    in_sync_replicas: list[ReplicaIdentity] = []
    master_address: str = ""
    master_broker_id: int = 0
    master_epoch: int = 0
    not_in_sync_replicas: list[ReplicaIdentity] = []
    sync_state_set_epoch: int = 0


class SyncStates(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to CONTROLLER_GET_SYNC_STATE_DATA."""

    replicas_info_table: dict[str, SyncState] = {}


def decode_group_status(data: bytes | memoryview) -> GroupStatus:
    """Read a member's view of its group.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, GroupStatus)


def decode_sync_states(data: bytes | memoryview) -> SyncStates:
    """Read which brokers are in sync.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, SyncStates)
