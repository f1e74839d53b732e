"""The tables that a RocketMQ slave fetches: the bodies it expects, on both ports, in every role."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rocketpost.codec.codes import RequestCode as Code

from .settings.harness import Peer, broker, peer_at

BUILTIN = {
    "TBW102", "SELF_TEST_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT", "BenchmarkTest",
    "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster",
    "rmq_sys_SYNC_BROKER_MEMBER_broker-a", "rmq_sys_wheel_timer",
}  # fmt: skip
"""Topics that a RocketMQ broker makes; its slave deletes those that its master does not list."""
CODES = (
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.GET_TIMER_CHECK_POINT,
    Code.GET_TIMER_METRICS,
)


async def bodies(peer: Peer) -> dict[int, bytes]:
    return {code: bytes((await peer.ok(code)).body) for code in CODES}


async def test_a_slave_finds_every_table_on_both_ports_and_in_both_roles(tmp_path: Path) -> None:
    settings = {"timerWheelEnable": "true", "traceTopicEnable": "true"}
    async with broker(tmp_path, **settings) as peer:
        await peer.topic("T")
        await peer.group("G")
        await peer.send("T")
        await peer.ok(
            Code.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1
        )
        led = await bodies(peer)
        async with peer_at("127.0.0.1", peer.server.port - 2) as vip:
            assert await bodies(vip) == led
        assert len(led[Code.GET_TIMER_CHECK_POINT]) == 56
        topics = msgspec.json.decode(led[Code.GET_ALL_TOPIC_CONFIG])
        assert list(topics) == [
            "dataVersion", "mappingDataVersion", "topicConfigTable", "topicQueueMappingDetailMap",
            "topicQueueMappingInfoMap",
        ]  # fmt: skip
        assert topics["topicConfigTable"].keys() >= BUILTIN | {"T"}
        assert led[Code.GET_ALL_CONSUMER_OFFSET].endswith(b',"T@G":{0:1}}}')
        assert led[Code.GET_ALL_MESSAGE_REQUEST_MODE] == b'{"messageRequestModeMap":{}}'
        await peer.server.become_follower(1)
        followed = await bodies(peer)
        same = set(CODES) - {Code.GET_TIMER_CHECK_POINT, Code.GET_TIMER_METRICS}
        assert {code: followed[code] for code in same} == {code: led[code] for code in same}
        assert len(followed[Code.GET_TIMER_CHECK_POINT]) == 56


async def test_a_slave_of_5_3_4_reads_pages(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        for name in ("G1", "G2", "G3"):
            await peer.group(name)
        whole = await peer.ok(Code.GET_ALL_TOPIC_CONFIG)
        table = msgspec.json.decode(whole.body)
        version = msgspec.json.encode(table["dataVersion"]).decode()
        assert whole.fields["totalTopicNum"] == str(len(table["topicConfigTable"]))
        found: dict[str, object] = {}
        while len(found) < len(table["topicConfigTable"]):
            page = await peer.ok(
                Code.GET_ALL_TOPIC_CONFIG,
                topicSeq=len(found), maxTopicNum=5, dataVersion=version if found else "",
            )  # fmt: skip
            found |= msgspec.json.decode(page.body)["topicConfigTable"]
        assert found == table["topicConfigTable"]
        page = await peer.ok(
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, groupSeq=0, maxGroupNum=2, dataVersion=""
        )
        body = msgspec.json.decode(page.body)
        assert len(body["subscriptionGroupTable"]) == 2
        assert int(page.fields["totalGroupNum"]) > 5
