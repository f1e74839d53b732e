"""Settings of a group of brokers that elects its leader, by the keys of RocketMQ's DLedger mode."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from rocketpost.errors import ConfigError, ConnectionLost
from rocketpost.model.members import (
    MEMBER_ADDRESS_BYTES_MAX,
    MEMBER_COUNT_MAX,
    MEMBER_NAME_BYTES_MAX,
)
from rocketpost.settings import build, option
from rocketpost.transport.connector import split_address

_NODE: Final = re.compile(r"[A-Za-z]([0-9]{1,9})")
_PEER: Final = re.compile(r"([^-\s]+)-(.+):([0-9]+)")
_EXAMPLE: Final = "n0-10.0.0.1:40911;n1-10.0.0.2:40911;n2-10.0.0.3:40911"
_PORT_MAX: Final = 65_535
_MEMBERS_MIN: Final = 3
_DEFAULTS: Final = {"flushDiskType": "SYNC_FLUSH"}
_REFUSED_IN_GROUPS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "brokerRole": (
        ("async_master",),
        "the members elect the leader, and every message waits for most of them; remove brokerRole",
    ),
    "enableSlaveActingMaster": (("false",), "the members elect a leader instead"),
    "haMasterAddress": ((), "the members are listed in dLegerPeers"),
    "lockInStrictMode": (("false",), "every member of a group knows all locks anyway; remove it"),
}
"""Keys by which a broker replicates in another way: the values allowed in a group, and a reason."""


class Peer(NamedTuple):
    """One member, as the settings name it."""

    node: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """The group of a broker, and its place in it.

    Attributes:
        enabled: Whether the broker is a member of a group.
        group: Name of the group.
        peers: All members, this one included, as ``id-host:port;...``.
        node: Id of this member.
        preferred: Id of the member that leads if it can; empty if any member will do.
    """

    enabled: bool = option("enableDLegerCommitLog", False)
    group: str = option("dLegerGroup", "")
    peers: str = option("dLegerPeers", "")
    node: str = option("dLegerSelfId", "")
    preferred: str = option("preferredLeaderId", "")

    def __post_init__(self) -> None:
        if not self.enabled:
            return
        if not self.group or len(self.group) > MEMBER_NAME_BYTES_MAX:
            raise ConfigError(
                f"dLegerGroup={self.group!r} must name the group, the same on all members, with at"
                f" most {MEMBER_NAME_BYTES_MAX} characters; brokerName is a good choice"
            )
        members = self.members
        if self.node not in members:
            raise ConfigError(
                f"dLegerSelfId={self.node!r} must be one of the members in dLegerPeers:"
                f" {', '.join(members)}"
            )
        if self.preferred and self.preferred not in members:
            raise ConfigError(
                f"preferredLeaderId={self.preferred!r} must be one of the members in dLegerPeers:"
                f" {', '.join(members)}"
            )

    @property
    def members(self) -> dict[str, Peer]:
        """All members by id, in the order of the settings."""
        return parse_peers(self.peers)

    @property
    def own(self) -> Peer:
        """This member."""
        return self.members[self.node]

    @property
    def others(self) -> dict[str, Peer]:
        """All members but this one, by id."""
        return {node: peer for node, peer in self.members.items() if node != self.node}

    @property
    def follower_id(self) -> int:
        """The broker id of this member while it follows: its number plus one, as in RocketMQ."""
        return follower_id_of(self.node)


def with_group_defaults(values: Mapping[str, str]) -> dict[str, str]:
    """Return a broker's properties with the defaults of a group's member, if it is one.

    Raises:
        ConfigError: A value of the group cannot be honoured.
    """
    return dict(values) if group_settings(values) is None else {**_DEFAULTS, **values}


def check_member(values: Mapping[str, str]) -> None:
    """Check that a broker's other settings allow it to be a member of a group.

    Raises:
        ConfigError: They do not allow it; the text says what to do.
    """
    if group_settings(values) is None:
        return
    for key, (allowed, reason) in _REFUSED_IN_GROUPS.items():
        value = values.get(key, "").strip()
        if value and value.lower() not in allowed:
            raise ConfigError(
                f"{key}={value} and enableDLegerCommitLog=true exclude each other: {reason}"
            )


def group_notes(values: Mapping[str, str]) -> list[str]:
    """Return notes on the settings of a group that are not used as a reader may expect.

    Raises:
        ConfigError: A value of the group cannot be honoured.
    """
    group = group_settings(values)
    if group is None:
        keys = ("dLegerGroup", "dLegerPeers", "dLegerSelfId", "preferredLeaderId")
        return [
            f"{key} has no effect without enableDLegerCommitLog=true"
            for key in keys
            if key in values
        ]
    notes = []
    if values.get("flushDiskType", "").strip().upper() == "ASYNC_FLUSH":
        notes.append(
            "flushDiskType=ASYNC_FLUSH: a message is acknowledged when most members have it in "
            "memory. A power cut of all of them can lose it; SYNC_FLUSH, the default of a group, "
            "cannot"
        )
    if len(group.members) < _MEMBERS_MIN:
        notes.append(
            f"dLegerPeers has {len(group.members)} members: the loss of one stops the group. Use 3"
        )
    elif len(group.members) % 2 == 0:
        notes.append(
            f"dLegerPeers has {len(group.members)} members: that survives no more losses than"
            f" {len(group.members) - 1}"
        )
    return notes


def group_settings(values: Mapping[str, str]) -> GroupConfig | None:
    """Return the group of a broker; None if it is in none.

    Raises:
        ConfigError: A value cannot be honoured; the text names its key.
    """
    config = build(GroupConfig, values)
    return config if config.enabled else None


def parse_peers(text: str) -> dict[str, Peer]:
    """Return the members that ``dLegerPeers`` names, by id.

    Raises:
        ConfigError: It is malformed.
    """
    peers: dict[str, Peer] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        peer = _parse_peer(part)
        for other in peers.values():
            if _number(other.node) == _number(peer.node):
                raise ConfigError(
                    f"dLegerPeers has {other.node} and {peer.node}: give each member another number"
                )
            if other.address == peer.address:
                raise ConfigError(
                    f"dLegerPeers has the address {peer.address} twice, for {other.node} and"
                    f" {peer.node}"
                )
        peers[peer.node] = peer
    if not peers:
        raise ConfigError(f"dLegerPeers must name all members, such as {_EXAMPLE}")
    if len(peers) > MEMBER_COUNT_MAX:
        raise ConfigError(
            f"dLegerPeers has {len(peers)} members; a group has at most {MEMBER_COUNT_MAX}"
        )
    return peers


def _parse_peer(text: str) -> Peer:
    match = _PEER.fullmatch(text)
    if match is None or not 0 < int(match[3]) <= _PORT_MAX:
        raise ConfigError(f"dLegerPeers has {text!r}, which is not id-host:port as in {_EXAMPLE}")
    node, host, port = match[1], match[2], int(match[3])
    if _NODE.fullmatch(node) is None:
        raise ConfigError(
            f"dLegerPeers has the id {node!r}: use a letter and a number, such as n0. A follower"
            " registers with name servers under that number plus one"
        )
    if len(text.encode()) > MEMBER_ADDRESS_BYTES_MAX:
        raise ConfigError(f"dLegerPeers has a member with a long address: {text}")
    try:
        split_address(f"{host}:{port}")
    except ConnectionLost as error:
        raise ConfigError(f"dLegerPeers names {node}, but {error}") from None
    return Peer(node, host, port)


def follower_id_of(node: str) -> int:
    """Return the broker id of a member while it follows."""
    return _number(node) + 1


def _number(node: str) -> int:
    return int(node[1:])
