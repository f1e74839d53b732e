"""Requests of every code, with a name for everything that they may touch."""

from __future__ import annotations

from typing import Final

from rocketpost.codec.codes import RequestCode as Code

NAMES: Final = {
    "topic": "T", "consumerGroup": "G", "group": "G", "groupName": "G", "producerGroup": "P",
    "srcGroup": "S", "destGroup": "G", "compareGroup": "C", "filterGroups": "F1, F2",
    "topicList": "T;U", "clusterName": "c", "cluster": "c", "brokerName": "b",
    "brokerAddr": "127.0.0.1:1", "brokerId": "0", "clientID": "i", "clientId": "i",
    "msgId": "7F00000100002A9F000000000000007B", "offset": "123", "commitLogOffset": "123",
    "tranStateTableOffset": "0", "commitOrRollback": "8", "queueId": "0", "queueOffset": "0",
    "commitOffset": "0", "timestamp": "0", "maxMsgNums": "1", "invisibleTime": "0",
    "pollTime": "0", "extraInfo": "0 1 0 0 0 b 0 0", "key": "k", "recallHandle": "h",
    "statsName": "s", "statsKey": "k", "name": "f", "namespace": "n", "value": "v",
    "masterFlushOffset": "0",
    "minBrokerId": "0", "action": "transfer", "a": "P", "b": "T",
}  # fmt: skip
"""Fields of all headers: every request finds those that it knows."""

BODIES: Final[dict[Code, object]] = {
    Code.HEART_BEAT: {
        "clientID": "i",
        "producerDataSet": [{"groupName": "P"}],
        "consumerDataSet": [
            {
                "groupName": "G",
                "subscriptionDataSet": [
                    {"topic": "T", "subString": "*"},
                    {"topic": "%RETRY%G", "subString": "*"},
                ],
            }
        ],
    },
    Code.LOCK_BATCH_MQ: {
        "clientId": "i",
        "consumerGroup": "G",
        "mqSet": [{"brokerName": "b", "queueId": queue, "topic": "T"} for queue in range(2)],
    },
    Code.CHECK_CLIENT_CONFIG: {
        "clientId": "i",
        "group": "G",
        "subscriptionData": {"topic": "T", "subString": "*", "expressionType": "TAG"},
    },
    Code.QUERY_ASSIGNMENT: {"clientId": "i", "consumerGroup": "G", "topic": "T"},
    Code.SET_MESSAGE_REQUEST_MODE: {"topic": "T", "consumerGroup": "G", "mode": "POP"},
    Code.BATCH_ACK_MESSAGE: {
        "brokerName": "b",
        "acks": [{"c": "G", "t": "T", "so": 0, "rq": 0, "q": 0, "pt": 1, "it": 1, "b": ""}],
    },
    Code.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [{"topicName": "T"}]},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": "G"},
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {"groupConfigList": [{"groupName": "G"}]},
}
BODIES[Code.UNLOCK_BATCH_MQ] = BODIES[Code.LOCK_BATCH_MQ]
