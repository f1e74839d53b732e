"""No request moves, empties or deletes what the broker keeps for its own work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.record import pack_host
from rocketpost.model.names import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    REPLICATED_TABLES_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from rocketpost.server.broker import BrokerServer
from rocketpost.server.context import BrokerContext
from rocketpost.store.member.group_records import draft_term

from .harness import Peer, broker, connected

REVIVE: Final = "rmq_sys_REVIVE_LOG_DefaultCluster"
TRANSACTIONS: Final = "CID_RMQ_SYS_TRANS"
OWN: Final = [
    (HALF_TOPIC, TRANSACTIONS),
    (OP_HALF_TOPIC, TRANSACTIONS),
    (REVIVE, "CID_RMQ_SYS_REVIVE_GROUP"),
    (REVIVE, "CID_RMQ_SYS_REVIVE_APPLIED"),
    (SCHEDULE_TOPIC, TRANSACTIONS),
    (TIMER_TOPIC, TRANSACTIONS),
    (REPLICATED_TABLES_TOPIC, TRANSACTIONS),
]
OWN_GROUPS: Final = sorted({group for _, group in OWN})

REFUSED: Final = {
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.SEND_BATCH_MESSAGE,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.INVOKE_BROKER_TO_RESET_OFFSET,
    Code.CLONE_GROUP_OFFSET,
    Code.POP_MESSAGE,
    Code.NOTIFICATION,
    Code.PEEK_MESSAGE,
    Code.POLLING_INFO,
    Code.ACK_MESSAGE,
    Code.BATCH_ACK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.UPDATE_AND_CREATE_TOPIC,
    Code.UPDATE_AND_CREATE_TOPIC_LIST,
    Code.DELETE_TOPIC_IN_BROKER,
    Code.DELETE_SUBSCRIPTIONGROUP,
    Code.CONSUMER_SEND_MSG_BACK,
}
"""Requests that would change the broker's own state."""

WITHOUT_EFFECT: Final = {
    # They only look: pulls read the work topics, but commit nothing for the broker's groups.
    Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE, Code.VIEW_MESSAGE_BY_ID, Code.QUERY_MESSAGE,
    Code.QUERY_CONSUME_QUEUE, Code.QUERY_CONSUMER_OFFSET, Code.GET_MAX_OFFSET, Code.GET_MIN_OFFSET,
    Code.GET_EARLIEST_MSG_STORETIME, Code.SEARCH_OFFSET_BY_TIMESTAMP, Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_CONSUME_STATS, Code.GET_BROKER_CONSUME_STATS, Code.QUERY_CONSUME_TIME_SPAN,
    Code.QUERY_CORRECTION_OFFSET, Code.GET_ALL_TOPIC_CONFIG, Code.GET_TOPIC_CONFIG,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, Code.GET_TOPIC_STATS_INFO, Code.GET_POP_STATE,
    Code.QUERY_TOPIC_CONSUME_BY_WHO, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG, Code.QUERY_TOPICS_BY_CONSUMER,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO,
    Code.VIEW_BROKER_STATS_DATA, Code.GET_BROKER_HA_STATUS, Code.GET_ALL_DELAY_OFFSET,
    Code.EXCHANGE_BROKER_HA_INFO,
    Code.GET_NAMED_FILTERS, Code.TEST_FILTER, Code.GET_PRODUCER_STATES, Code.CHECK_CLIENT_CONFIG,
    Code.GET_DAMAGE, Code.GET_TIMER_CHECK_POINT, Code.GET_TIMER_METRICS, Code.FOLLOW_TABLES,
    Code.GET_BROKER_EPOCH_CACHE, Code.EXCHANGE_BROKER_HA_INFO,
    Code.GET_CONSUMER_LIST_BY_GROUP, Code.GET_CONSUMER_CONNECTION_LIST,
    Code.GET_PRODUCER_CONNECTION_LIST, Code.GET_ALL_PRODUCER_INFO, Code.GET_CONSUMER_RUNNING_INFO,
    Code.CONSUME_MESSAGE_DIRECTLY, Code.GET_ALL_MESSAGE_REQUEST_MODE, Code.QUERY_ASSIGNMENT,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    # Users and rules are the administrator's. Without access control nobody can change them.
    Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_GET_USER,
    Code.AUTH_LIST_USER, Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL,
    Code.AUTH_GET_ACL, Code.AUTH_LIST_ACL, Code.GET_AUDIT_LOG,
    # They change what clients are told, which the broker's own work does not ask.
    Code.HEART_BEAT, Code.UNREGISTER_CLIENT, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ,
    Code.SET_MESSAGE_REQUEST_MODE, Code.PUT_NAMED_FILTER, Code.DELETE_NAMED_FILTER,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
    # They delete what has expired, or queues of topics that do not exist; the broker's topics do.
    Code.CLEAN_EXPIRED_CONSUMEQUEUE, Code.DELETE_EXPIRED_COMMITLOG, Code.CLEAN_UNUSED_TOPIC,
    # They change the broker's work, in the way they are there for: one message of a client.
    Code.END_TRANSACTION, Code.RESUME_CHECK_HALF_MESSAGE, Code.RECALL_MESSAGE,
    # They are stored in the topic of replies, if anywhere.
    Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2,
    # Settings say nothing of topics and groups.
    Code.UPDATE_BROKER_CONFIG, Code.RESET_MASTER_FLUSH_OFFSET,
}  # fmt: skip
"""Requests that leave the broker's own state alone, whatever they name."""


@asynccontextmanager
async def broker_at_work(root: Path) -> AsyncIterator[tuple[BrokerServer, Peer]]:
    """A broker that has something of everything to do: a half, a delay, a timer, a pop."""
    async with broker(root) as server, connected(server) as peer:
        await peer.send("T")
        await peer.send("T", "DELAY\x0118\x02")
        await peer.send("T", "TIMER_DELAY_SEC\x013600\x02")
        await peer.send("T", "TRAN_MSG\x01true\x02PGROUP\x01P\x02", sys_flag=4)
        popped = await peer.call(
            Code.POP_MESSAGE, consumerGroup="G", topic="T", queueId=-1, maxMsgNums=32,
            invisibleTime=60_000, pollTime=0, bornTime=0, initMode=0, order="false",
        )  # fmt: skip
        assert popped.code == 0, popped.remark
        assert server._term is not None
        _add_term(server._term.context)
        yield server, peer


def _add_term(context: BrokerContext) -> None:
    """Append a term record, as in a store that belonged to a group of brokers."""
    store = context.store
    host = pack_host("127.0.0.1", 10911)
    store.append(draft_term(1, "n0", start=store.end_position, host=host, now_ms=1))
    store.confirm(store.commit())


def _state(context: BrokerContext) -> dict[str, Any]:
    topics = sorted({topic for topic, _ in OWN})
    return {
        "offsets": {pair: context.tables.offsets.row(*pair) for pair in OWN},
        "topics": {topic: context.tables.topics.find(topic) for topic in topics},
        "ends": {
            (queue.topic, queue.queue_id): queue.end
            for topic in topics
            for queue in context.store.queues_of(topic)
        },
        "groups": [context.tables.groups.find(group) is not None for group in OWN_GROUPS],
    }


def _hostile(topic: str, group: str, position: int) -> dict[str, object]:
    """Fields of all headers: every request finds those that it knows."""
    return {
        "topic": topic, "originTopic": topic, "consumerGroup": group, "group": group,
        "groupName": group, "producerGroup": group, "srcGroup": "G", "destGroup": group,
        "cleanOffset": "true", "removeOffset": "true", "offline": "true",
        "queueId": 0, "queueOffset": 0, "offset": 0, "commitOffset": 1, "timestamp": 0,
        "isForce": "true", "maxMsgNums": 1, "invisibleTime": 0, "pollTime": 0, "bornTime": 0,
        "initMode": 1, "order": "false", "sysFlag": 1, "suspendTimeoutMillis": 0,
        "subscription": "*", "subVersion": 0, "expressionType": "TAG", "extraInfo":
        f"0 1 0 0 DefaultCluster broker 0 0 {topic}", "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 1, "bornTimestamp": 1, "flag": 0, "properties": "",
        "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0, "delayLevel": 1, "readable": "false", "clientID": "c", "name": "f",
        "a": group, "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0,
    } | {"offset": position}  # fmt: skip


def _body(code: int, topic: str, group: str) -> bytes:
    config = {"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    bodies: dict[int, object] = {
        Code.BATCH_ACK_MESSAGE: {
            "brokerName": "b",
            "acks": [
                {"c": group, "t": topic, "r": "0", "so": 0, "rq": 0, "q": 0, "pt": 1, "it": 1,
                 "b": [1]}
            ],
        },
        Code.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [config]},
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: {"groupName": group, "consumeEnable": False},
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: {
            "groupConfigList": [{"groupName": group, "consumeEnable": False}]
        },
        Code.SET_MESSAGE_REQUEST_MODE: {
            "topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 0,
        },
        Code.HEART_BEAT: {
            "clientID": "c",
            "consumerDataSet": [
                {"groupName": group, "subscriptionDataSet": [{"topic": topic, "subString": "*"}]}
            ],
        },
    }  # fmt: skip
    return msgspec.json.encode(bodies[code]) if code in bodies else b"x"


@pytest.mark.slow
async def test_no_request_touches_the_brokers_own_state(tmp_path: Path) -> None:
    async with broker_at_work(tmp_path) as (server, peer):
        assert server._term is not None
        context, codes = server._term.context, server._dispatcher.routes.keys()
        assert codes == REFUSED | WITHOUT_EFFECT, "say what the new request does with them"
        half = context.store.queue(HALF_TOPIC, 0)
        assert half is not None
        entry = half.entry(0)
        assert entry is not None
        # Let every group of the broker have a configuration and an offset where it could have one.
        for group in OWN_GROUPS:
            context.tables.groups.require(group)
        before = _state(context)
        for code in sorted(codes):
            for topic, group in OWN:
                position = entry[0] if code == Code.CONSUMER_SEND_MSG_BACK else 0
                fields = _hostile(topic, group, position)
                if code == Code.QUERY_MESSAGE:
                    fields |= {"key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1}
                response = await peer.call(code, _body(code, topic, group), **fields)
                if code in REFUSED:
                    refusals = {ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER}
                    if context.tables.topics.find(topic) is None:
                        refusals.add(ResponseCode.TOPIC_NOT_EXIST)
                    assert response.code in refusals, (
                        Code(code).name,
                        topic,
                        group,
                        response.code,
                        response.remark,
                    )
                assert _state(context) == before, (Code(code).name, topic, group)


@pytest.mark.slow
async def test_nobody_pops_unfinished_work_under_any_name(tmp_path: Path) -> None:
    async with broker_at_work(tmp_path) as (_, peer):
        for topic in sorted({topic for topic, _ in OWN} - {REPLICATED_TABLES_TOPIC}):
            response = await peer.call(Code.POP_MESSAGE, **_hostile(topic, "G", 0))
            assert response.code == ResponseCode.NO_PERMISSION, topic
            assert "belong to the broker" in (response.remark or "")
