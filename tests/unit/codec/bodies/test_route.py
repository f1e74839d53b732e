"""Routes: Java's texts byte for byte, and whatever we write can be read again."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketpost.codec.bodies.route import QueueMapping, decode_route, encode_mapping, encode_route
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.route import BrokerData, QueueData, TopicRoute

ROUTE = TopicRoute(
    broker_datas=[
        BrokerData(
            broker_addrs={1: "10.0.0.2:10911", 0: "10.0.0.1:10911"},
            broker_name="broker-a",
            cluster="DefaultCluster",
        )
    ],
    order_topic_conf="broker-a:4;broker-b:4",
    queue_datas=[QueueData(broker_name="broker-a", read_queue_nums=4, write_queue_nums=4)],
)
STANDARD = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},'
    b'"brokerName":"broker-a","cluster":"DefaultCluster","enableActingMaster":false}],'
    b'"filterServerTable":{},"orderTopicConf":"broker-a:4;broker-b:4",'
    b'"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
    b'"writeQueueNums":4}]}'
)
APACHE = (  # as captured from an Apache name server 5.3.3
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.2:59477"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},'
    b'"queueDatas":[{"brokerName":"broker-a","perm":7,"readQueueNums":8,"topicSysFlag":0,'
    b'"writeQueueNums":8}]}'
)
PLAIN = STANDARD.replace(b'"0":', b"0:").replace(b'"1":', b"1:")

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.integers(0, 2**31 - 1)
routes = st.builds(
    TopicRoute,
    broker_datas=st.lists(
        st.builds(
            BrokerData,
            broker_addrs=st.dictionaries(st.integers(0, 2**63 - 1), names, max_size=3),
            broker_name=names,
            cluster=names,
            enable_acting_master=st.booleans(),
        ),
        max_size=3,
    ),
    filter_server_table=st.dictionaries(names, st.lists(names, max_size=2), max_size=2),
    order_topic_conf=st.none() | names,
    queue_datas=st.lists(
        st.builds(
            QueueData,
            broker_name=names,
            perm=st.integers(0, 7),
            read_queue_nums=counts,
            topic_sys_flag=counts,
            write_queue_nums=counts,
        ),
        max_size=3,
    ),
)


def test_the_two_forms_of_the_protocol() -> None:
    assert encode_route(ROUTE, standard=True) == STANDARD
    assert encode_route(ROUTE, standard=False) == PLAIN


def test_optional_members_stand_in_their_places() -> None:
    bare = TopicRoute(
        broker_datas=[BrokerData(broker_addrs={}, broker_name="b", enable_acting_master=True)],
        filter_server_table={"10.0.0.1:10911": ["10.0.0.9:1", "10.0.0.9:2"]},
    )
    mapping = QueueMapping(bname="b", curr_id_map={0: 0}, epoch=1, topic="TopicS", total_queues=8)
    encoded = encode_route(bare, standard=False, zones={"b": "z1"}, mappings={"b": mapping})
    assert encoded == (
        b'{"brokerDatas":[{"brokerAddrs":{},"brokerName":"b","cluster":"",'
        b'"enableActingMaster":true,"zoneName":"z1"}],'
        b'"filterServerTable":{"10.0.0.1:10911":["10.0.0.9:1","10.0.0.9:2"]},"queueDatas":[],'
        b'"topicQueueMappingByBroker":{"b":{"bname":"b","currIdMap":{0:0},"dirty":false,'
        b'"epoch":1,"scope":"__global__","topic":"TopicS","totalQueues":8}}}'
    )


def test_a_mapping_without_scope_in_the_standard_form() -> None:
    mapping = QueueMapping(bname="b/1", curr_id_map={2: 7}, dirty=True, scope=None, topic="S")
    assert encode_mapping(mapping, standard=True) == (
        b'{"bname":"b\\/1","currIdMap":{"2":7},"dirty":true,"epoch":0,"topic":"S","totalQueues":0}'
    )


@given(routes, st.booleans())
def test_every_route_survives_both_forms(route: TopicRoute, standard: bool) -> None:
    encoded = encode_route(route, standard=standard)
    assert decode_route(encoded) == route
    if standard:
        assert encoded.isascii()
        msgspec.json.decode(encoded)


def test_a_route_of_an_apache_name_server_is_written_alike() -> None:
    assert encode_route(decode_route(APACHE), standard=True) == APACHE


def test_a_request_that_brings_queues_only() -> None:
    body = b'{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":2}]}'
    assert decode_route(body).queue_datas == [
        QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=2)
    ]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"brokerDatas":5}', b'{"brokerDatas":[{}]}'])
def test_invalid_routes_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_route(body)
