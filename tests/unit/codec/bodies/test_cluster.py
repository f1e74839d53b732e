"""Cluster tables and member groups, whose integer keys are never quoted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.bodies.cluster import (
    ClusterInfo,
    MemberGroup,
    decode_cluster,
    decode_member_group,
    encode_cluster,
    encode_member_group,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.route import BrokerData

CLUSTER = (
    b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911"},'
    b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}},'
    b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
)
APACHE = (  # as captured from an Apache name server 5.3.3
    b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.2:59477"},'
    b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}},'
    b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
)
GROUP = (
    b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster"}}'
)

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
addresses = st.dictionaries(st.integers(0, 2**63 - 1), names, max_size=3)


def test_the_texts_of_the_protocol() -> None:
    assert encode_cluster(decode_cluster(CLUSTER)) == CLUSTER
    assert encode_member_group(decode_member_group(GROUP)) == GROUP


def test_the_table_of_an_apache_name_server_is_written_alike() -> None:
    assert encode_cluster(decode_cluster(APACHE)) == APACHE


def test_no_brokers_at_all() -> None:
    assert encode_cluster(ClusterInfo()) == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


def test_zones_and_order() -> None:
    info = ClusterInfo(
        broker_addr_table={
            name: BrokerData(broker_addrs={}, broker_name=name, cluster="c") for name in ("b", "a")
        },
        cluster_addr_table={"c": ["b", "a"]},
    )
    assert encode_cluster(info, zones={"a": "z"}) == (
        b'{"brokerAddrTable":{"a":{"brokerAddrs":{},"brokerName":"a","cluster":"c",'
        b'"enableActingMaster":false,"zoneName":"z"},"b":{"brokerAddrs":{},"brokerName":"b",'
        b'"cluster":"c","enableActingMaster":false}},"clusterAddrTable":{"c":["a","b"]}}'
    )


@given(addresses, names, names)
def test_every_member_group_survives(addrs: dict[int, str], name: str, cluster: str) -> None:
    group = MemberGroup(broker_addrs=addrs, broker_name=name, cluster=cluster)
    assert decode_member_group(encode_member_group(group)) == group


@pytest.mark.parametrize("body", [b"", b"[]", b'{"brokerAddrTable":[]}'])
def test_invalid_clusters_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_cluster(body)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"brokerMemberGroup":{}}'])
def test_invalid_groups_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_member_group(body)
