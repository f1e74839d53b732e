"""Bodies that list brokers: the whole cluster table, and the members of one broker name.

Integer keys are written without quotes, whatever the requester's version.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from rocketpost.codec import lenient_json
from rocketpost.codec.bodies.java_text import array, encode_number_keys, quote
from rocketpost.codec.bodies.route import encode_broker
from rocketpost.codec.lenient_json import members
from rocketpost.model.route import BrokerData


class ClusterInfo(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """All brokers by name, and the broker names of every cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class MemberGroup(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The addresses that share a broker name."""

    broker_addrs: dict[int, str] = {}
    broker_name: str
    cluster: str


class _MemberGroupBody(msgspec.Struct, rename="camel"):
    broker_member_group: MemberGroup


def encode_cluster(info: ClusterInfo, *, zones: Mapping[str, str] | None = None) -> bytes:
    """Encode the answer to GET_BROKER_CLUSTER_INFO; both tables sorted by name."""
    zones = zones or {}
    brokers = [
        (quote(name), encode_broker(broker, standard=False, zone=zones.get(name)))
        for name, broker in sorted(info.broker_addr_table.items())
    ]
    clusters = [
        (quote(cluster), array(map(quote, sorted(names))))
        for cluster, names in sorted(info.cluster_addr_table.items())
    ]
    tables = [
        (b'"brokerAddrTable"', bytes(members(brokers))),
        (b'"clusterAddrTable"', bytes(members(clusters))),
    ]
    return bytes(members(tables))


def decode_cluster(body: bytes | memoryview) -> ClusterInfo:
    """Decode the answer to GET_BROKER_CLUSTER_INFO.

    Raises:
        RemoteProtocolError: The body is not a cluster table.
    """
    return lenient_json.decode(body, ClusterInfo)


def encode_member_group(group: MemberGroup) -> bytes:
    """Encode the answer to GET_BROKER_MEMBER_GROUP."""
    addresses = {broker_id: quote(address) for broker_id, address in group.broker_addrs.items()}
    return b'{"brokerMemberGroup":{"brokerAddrs":%b,"brokerName":%b,"cluster":%b}}' % (
        encode_number_keys(addresses, quoted=False),
        quote(group.broker_name),
        quote(group.cluster),
    )


def decode_member_group(body: bytes | memoryview) -> MemberGroup:
    """Decode the answer to GET_BROKER_MEMBER_GROUP.

    Raises:
        RemoteProtocolError: The body is not a member group.
    """
    return lenient_json.decode(body, _MemberGroupBody).broker_member_group
