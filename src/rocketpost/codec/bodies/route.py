r"""The body of a route, in the two forms that clients expect.

plain     {"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"b","cluster":"c",
          "enableActingMaster":false}],"filterServerTable":{},"queueDatas":[...]}
standard  the same with ``"brokerAddrs":{"0":"10.0.0.1:10911"}``, beyond ASCII as ``\uXXXX``

Requesters below version 401 get the plain form, the only one that old libraries are known to read;
newer ones, and those that ask for it, get the standard form. Both are compact: some clients split
them by hand, and a space breaks their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from rocketpost.codec import lenient_json
from rocketpost.codec.bodies.java_text import array, encode_number_keys, quote
from rocketpost.codec.lenient_json import members
from rocketpost.model.route import BrokerData, QueueData, TopicRoute

GLOBAL_SCOPE: Final = "__global__"
_NOTHING: Final[Mapping[str, str]] = {}


class QueueMapping(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """The logical queues of a static topic that a broker serves, with its own id for each."""

    bname: str
    curr_id_map: dict[int, int] = {}
    dirty: bool = False
    epoch: int = 0
    scope: str | None = GLOBAL_SCOPE
    topic: str = ""
    total_queues: int = 0


def decode_route(body: bytes | memoryview) -> TopicRoute:
    """Decode a route in either form.

    Raises:
        RemoteProtocolError: The body is not a route.
    """
    return lenient_json.decode(body, TopicRoute)


def encode_route(
    route: TopicRoute,
    *,
    standard: bool,
    zones: Mapping[str, str] = _NOTHING,
    mappings: Mapping[str, QueueMapping] | None = None,
) -> bytes:
    """Encode a route.

    Args:
        route: The route.
        standard: Whether the requester reads standard JSON.
        zones: Zones by broker name, for the brokers that announced one.
        mappings: The logical queues of a static topic, by broker name.
    """
    brokers = [
        encode_broker(each, standard=standard, zone=zones.get(each.broker_name))
        for each in route.broker_datas
    ]
    filters = [
        (quote(address, ascii_only=standard), array(quote(s, ascii_only=standard) for s in servers))
        for address, servers in sorted(route.filter_server_table.items())
    ]
    parts = [
        (b'"brokerDatas"', array(brokers)),
        (b'"filterServerTable"', bytes(members(filters))),
    ]
    if route.order_topic_conf is not None:
        parts.append((b'"orderTopicConf"', quote(route.order_topic_conf, ascii_only=standard)))
    queues = [_encode_queues(each, standard=standard) for each in route.queue_datas]
    parts.append((b'"queueDatas"', array(queues)))
    if mappings:
        table = [
            (quote(name, ascii_only=standard), encode_mapping(mapping, standard=standard))
            for name, mapping in sorted(mappings.items())
        ]
        parts.append((b'"topicQueueMappingByBroker"', bytes(members(table))))
    return bytes(members(parts))


def encode_broker(broker: BrokerData, *, standard: bool, zone: str | None = None) -> bytes:
    """Encode the addresses of one broker name."""
    addresses = {
        broker_id: quote(address, ascii_only=standard)
        for broker_id, address in broker.broker_addrs.items()
    }
    acting = b"true" if broker.enable_acting_master else b"false"
    parts = [
        (b'"brokerAddrs"', encode_number_keys(addresses, quoted=standard)),
        (b'"brokerName"', quote(broker.broker_name, ascii_only=standard)),
        (b'"cluster"', quote(broker.cluster, ascii_only=standard)),
        (b'"enableActingMaster"', acting),
    ]
    if zone is not None:
        parts.append((b'"zoneName"', quote(zone, ascii_only=standard)))
    return bytes(members(parts))


def encode_mapping(mapping: QueueMapping, *, standard: bool) -> bytes:
    """Encode the logical queues that one broker serves."""
    ids = {logical: b"%d" % queue_id for logical, queue_id in mapping.curr_id_map.items()}
    parts = [
        (b'"bname"', quote(mapping.bname, ascii_only=standard)),
        (b'"currIdMap"', encode_number_keys(ids, quoted=standard)),
        (b'"dirty"', b"true" if mapping.dirty else b"false"),
        (b'"epoch"', b"%d" % mapping.epoch),
    ]
    if mapping.scope is not None:
        parts.append((b'"scope"', quote(mapping.scope, ascii_only=standard)))
    parts.append((b'"topic"', quote(mapping.topic, ascii_only=standard)))
    parts.append((b'"totalQueues"', b"%d" % mapping.total_queues))
    return bytes(members(parts))


def _encode_queues(queues: QueueData, *, standard: bool) -> bytes:
    return (
        b'{"brokerName":%b,"perm":%d,"readQueueNums":%d,"topicSysFlag":%d,"writeQueueNums":%d}'
        % (
            quote(queues.broker_name, ascii_only=standard),
            queues.perm,
            queues.read_queue_nums,
            queues.topic_sys_flag,
            queues.write_queue_nums,
        )
    )
