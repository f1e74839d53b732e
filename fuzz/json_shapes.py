"""JSON bodies that look like the real ones, and are wrong somewhere."""

from __future__ import annotations

import copy
import json
from typing import Any, Final

from fuzz.supply import Supply

_TOPIC: Final = {
    "attributes": {"+message.type": "NORMAL"}, "order": False, "perm": 6, "readQueueNums": 4,
    "topicFilterType": "SINGLE_TAG", "topicName": "TopicA", "topicSysFlag": 0, "writeQueueNums": 4,
}  # fmt: skip
_GROUP: Final = {
    "brokerId": 0, "consumeEnable": True, "groupName": "GroupA", "retryMaxTimes": 16,
    "groupRetryPolicy": {"type": "CUSTOMIZED"}, "retryQueueNums": 1, "attributes": {},
    "consumeTimeoutMinute": 15, "groupSysFlag": 0, "whichBrokerWhenConsumeSlowly": 1,
}  # fmt: skip
_QUEUE: Final = {"brokerName": "broker-a", "queueId": 1, "topic": "TopicA"}
_SUBSCRIPTION: Final = {
    "classFilterMode": False, "codeSet": [65], "expressionType": "TAG", "subString": "A || B",
    "subVersion": 1700000000000, "tagsSet": ["A"], "topic": "TopicA",
}  # fmt: skip
_VERSION: Final = {"counter": 3, "stateVersion": 0, "timestamp": 1700000000000}
_ROUTE: Final[dict[str, Any]] = {
    "brokerDatas": [
        {"brokerAddrs": {"0": "127.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "C"}
    ],
    "filterServerTable": {}, "orderTopicConf": "broker-a:4",
    "queueDatas": [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0,
         "writeQueueNums": 4}
    ],
}  # fmt: skip

SHAPES: Final[dict[str, Any]] = {
    "heartbeat": {
        "clientID": "127.0.0.1@1",
        "consumerDataSet": [
            {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY",
             "groupName": "GroupA", "messageModel": "CLUSTERING", "unitMode": False,
             "subscriptionDataSet": [_SUBSCRIPTION]}
        ],
        "heartbeatFingerprint": 0,
        "producerDataSet": [{"groupName": "ProducerA"}],
        "withoutSub": False,
    },
    "lock": {"clientId": "c", "consumerGroup": "GroupA", "mqSet": [_QUEUE]},
    "check": {"clientId": "c", "group": "GroupA", "subscriptionData": _SUBSCRIPTION},
    "topic": _TOPIC,
    "topics": {"topicConfigList": [_TOPIC]},
    "group": _GROUP,
    "groups": {"groupConfigList": [_GROUP]},
    "version": _VERSION,
    "route": _ROUTE,
    "registration": {
        "filterServerList": [],
        "topicConfigSerializeWrapper": {
            "dataVersion": _VERSION, "mappingDataVersion": _VERSION,
            "topicConfigTable": {"TopicA": _TOPIC}, "topicQueueMappingInfoMap": {},
        },
    },
    "topic table": {"dataVersion": _VERSION, "topicConfigTable": {"TopicA": _TOPIC}},
    "group table": {
        "dataVersion": _VERSION, "forbiddenTable": {"GroupA": {"TopicA": 4}},
        "subscriptionGroupTable": {"GroupA": _GROUP},
    },
    "offset table": {"dataVersion": _VERSION, "offsetTable": {"TopicA@GroupA": {"0": 5}}},
    "overrides": {"maxMessageSize": {"value": "1000", "file": None}},
    "dropped": {"TopicA": 100},
    "kv": {"configTable": {"ORDER_TOPIC_CONFIG": {"TopicA": "broker-a:4"}}},
    "table": {"table": {"TopicA": "broker-a:4"}},
    "cluster": {
        "brokerAddrTable": {"broker-a": _ROUTE["brokerDatas"][0]},
        "clusterAddrTable": {"C": ["broker-a"]},
    },
    "consume state": {
        "consumeTps": 1.5,
        "offsetTable": {
            json.dumps(_QUEUE): {"brokerOffset": 5, "consumerOffset": 3, "lastTimestamp": 1}
        },
    },
    "topic state": {
        "offsetTable": {json.dumps(_QUEUE): {"lastUpdateTimestamp": 1, "maxOffset": 2}}
    },
}  # fmt: skip

_SCALARS: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**40, 1.5, 1e300,
    "", "0", "-1", "x", [], {}, [None], {"": None}, [[]], "9" * 30,
)  # fmt: skip


def body(supply: Supply, known: tuple[str, ...], shapes: tuple[str, ...] = tuple(SHAPES)) -> bytes:
    """Return a body: one of the shapes with something changed, or bytes as they come."""
    if supply.chance(6):
        return supply.raw()
    value = _changed(supply, SHAPES[supply.pick(shapes)], known)
    text = json.dumps(value, ensure_ascii=supply.chance(2)).encode("utf-8", "replace")
    if supply.chance(4):
        text = _javaish(text)
    if supply.chance(8):
        at = supply.number(0, len(text))
        text = text[:at] + supply.raw(16) + text[at + supply.number(0, 3) :]
    if supply.chance(16):
        depth = supply.number(1, 2000)
        text = supply.pick((b"[", b'{"a":', b"{")) * depth + text
    return text


def _changed(supply: Supply, shape: Any, known: tuple[str, ...]) -> Any:
    """Return ``shape`` with a few of its parts replaced, renamed, doubled or gone."""
    holder = {"": copy.deepcopy(shape)}
    for _ in range(supply.number(0, 3)):
        container, key = supply.pick(_places(holder))
        how = supply.byte() % 8
        if how < 3:
            container[key] = copy.deepcopy(supply.pick(_SCALARS))
        elif how < 5:
            container[key] = supply.text(known)
        elif how == 5 and container is not holder:
            del container[key]
        elif isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif container is not holder:
            container[supply.text(known)] = copy.deepcopy(container[key])
    return holder[""]


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a value, as its container and the key in it."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    found: list[tuple[Any, Any]] = []
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found += _places(value[key])
    return found


def _javaish(text: bytes) -> bytes:
    """Spell keys as Java does: numbers bare, objects as objects."""
    return (
        text.replace(b'{"0":', b"{0:")
        .replace(b'"{\\"', b'{"')
        .replace(b'\\"', b'"')
        .replace(b'}":', b"}:")
    )
