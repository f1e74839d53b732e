"""Header fields of requests about a group of brokers that elects its leader.

CHANGE_GROUP and LOG_IN_MEMBER are our own. The others are those that RocketMQ's tools send to a
controller.
"""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int64


class ChangeGroup(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """CHANGE_GROUP (7104): hand over leadership, or change the members by one."""

    action: str
    """``transfer``, ``add``, ``promote`` or ``remove``."""
    member: str = ""
    """Id of the member; for ``transfer``, empty lets the leader choose."""
    address: str = ""
    """For ``add``: host and port at which the member listens to the others."""


class LogInMember(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """LOG_IN_MEMBER (7105): a member proves who it is, by two requests over one connection.

    The first has a number that is used once, and its answer another one. The second has a proof,
    and its answer that of the other side (``access.peer_proof``).
    """

    nonce: str = ""
    """A number in hexadecimal digits."""
    proof: str = ""
    """A proof in hexadecimal digits."""


class ElectMaster(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """CONTROLLER_ELECT_MASTER (1002): let a broker lead."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = -1
    designate_elect: bool = False
    invoke_time: Int64 = 0


class ElectMasterResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to CONTROLLER_ELECT_MASTER."""

    master_broker_id: Int64 = 0
    master_address: str = ""
    master_epoch: Int64 = 0
    sync_state_set_epoch: Int64 = 0


class ControllerMetadata(msgspec.Struct, rename="camel", kw_only=True, omit_defaults=True):
    """Answer to CONTROLLER_GET_METADATA_INFO (1005)."""

    group: str = ""
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str = ""
    """``id:host:port;`` for each member."""
