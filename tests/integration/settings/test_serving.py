"""Settings of how a broker accepts, holds and answers requests."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.record import decode_records
from rocketpost.store.files import RealFiles

from .harness import HOUR_MS, SUBSCRIPTION, Peer, broker, heartbeat, peer_at, until


async def topic_config(peer: Peer, topic: str) -> dict[str, Any]:
    answer = await peer.ok(Code.GET_TOPIC_CONFIG, topic=topic)
    found: dict[str, Any] = msgspec.json.decode(answer.body)
    return found.get("topicConfig", found)


async def test_brokerPermission(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.send("T")
        assert (await peer.pull("T")).code == 0
        await peer.set(brokerPermission=2)
        assert (await peer.pull("T")).code == ResponseCode.NO_PERMISSION


async def test_topics_created_by_use(tmp_path: Path) -> None:
    async with broker(tmp_path, defaultTopicQueueNums=3) as peer:
        await peer.send("T", default_queues=8)
        assert (await topic_config(peer, "T"))["writeQueueNums"] == 3
        await peer.set(autoCreateTopicEnable="false")
        assert (await peer.send("Other")).code == ResponseCode.TOPIC_NOT_EXIST
        await peer.set(autoCreateSubscriptionGroup="false")
        refused = await peer.pull("T", group="Other")
        assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_topics_of_the_broker_itself(tmp_path: Path) -> None:
    async with broker(tmp_path / "a") as peer:
        assert (await topic_config(peer, "DefaultCluster"))["perm"] == 7
        assert (await topic_config(peer, "broker-a"))["perm"] == 7
        assert (await peer.call(Code.GET_TOPIC_CONFIG, topic="Traces")).code != 0
    async with broker(
        tmp_path / "b",
        clusterTopicEnable="false",
        brokerTopicEnable="false",
        traceTopicEnable="true",
        msgTraceTopicName="Traces",
    ) as peer:
        assert (await topic_config(peer, "DefaultCluster"))["perm"] == 1
        assert (await topic_config(peer, "broker-a"))["perm"] == 1
        assert (await peer.call(Code.GET_TOPIC_CONFIG, topic="Traces")).code == 0


async def test_traceOn(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        assert (await peer.send("T")).fields["TRACE_ON"] == "true"
        await peer.set(traceOn="false")
        assert (await peer.send("T")).fields["TRACE_ON"] == "false"


async def test_longPollingEnable(tmp_path: Path) -> None:
    async with broker(tmp_path, shortPollingTimeMills=20) as peer:
        await peer.send("T")
        held = asyncio.ensure_future(peer.pull("T", 1, hold_ms=30_000))
        await peer.ok(Code.GET_BROKER_RUNTIME_INFO)  # the pull came before
        await peer.set(longPollingEnable="false")
        assert (await peer.pull("T", 1, hold_ms=30_000)).code == ResponseCode.PULL_NOT_FOUND
        assert not held.done()
        await peer.send("T")
        assert (await held).code == 0


async def test_shortPollingTimeMills(tmp_path: Path) -> None:
    async with broker(tmp_path, longPollingEnable="false", shortPollingTimeMills=HOUR_MS) as peer:
        await peer.send("T")
        held = asyncio.ensure_future(peer.pull("T", 1, hold_ms=30_000))
        await peer.ok(Code.GET_BROKER_RUNTIME_INFO)  # the pull came before
        await peer.set(shortPollingTimeMills=20)
        for _ in range(3):
            answer = await peer.pull("T", 1, hold_ms=30_000)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert not held.done()
        await peer.send("T")
        assert (await held).code == 0


async def test_litePullMessageEnable(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.send("T")
        fields = {
            "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
            "sysFlag": SUBSCRIPTION, "subscription": "*",
        }  # fmt: skip
        assert (await peer.call(Code.LITE_PULL_MESSAGE, **fields)).code == 0
        await peer.set(litePullMessageEnable="false")
        refused = await peer.call(Code.LITE_PULL_MESSAGE, **fields)
        assert refused.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("switch", ["notifyConsumerIdsChangedEnable", "group"])
async def test_notifyConsumerIdsChangedEnable(tmp_path: Path, switch: str) -> None:
    async with broker(tmp_path) as peer, peer_at("127.0.0.1", peer.server.port) as other:
        if switch == "group":
            await peer.group("Quiet", notifyConsumerIdsChangedEnable=False)
        else:
            await peer.set(notifyConsumerIdsChangedEnable="false")
        await peer.ok(Code.HEART_BEAT, heartbeat("first", "Quiet"))
        await other.ok(Code.HEART_BEAT, heartbeat("second", "Quiet"))
        await peer.set(notifyConsumerIdsChangedEnable="true")
        await peer.ok(Code.HEART_BEAT, heartbeat("first", "Loud"))
        await other.ok(Code.HEART_BEAT, heartbeat("second", "Loud"))
        async with asyncio.timeout(60):
            heard = await peer.heard.get()
        assert heard.code == Code.NOTIFY_CONSUMER_IDS_CHANGED
        assert heard.fields["consumerGroup"] == "Loud"


async def test_useServerSideResetOffset(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.send("T")
        fields = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true"}
        await peer.group("G")
        reset = Code.INVOKE_BROKER_TO_RESET_OFFSET
        assert (await peer.call(reset, **fields)).code == 0
        await peer.set(useServerSideResetOffset="false")
        await peer.ok(
            Code.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=1
        )
        assert (await peer.call(reset, **fields)).code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_channelExpiredTimeout(tmp_path: Path) -> None:
    async with broker(tmp_path, channelExpiredTimeout=300) as peer:
        await peer.ok(Code.HEART_BEAT, heartbeat("silent"))
        async with asyncio.timeout(60):
            await peer.connection.wait_closed()  # by default after two minutes


async def test_lockMaxLiveTime(tmp_path: Path) -> None:
    async with broker(tmp_path, **{"rocketmq.broker.rebalance.lockMaxLiveTime": 50}) as peer:
        await peer.send("T")

        async def lock(client: str) -> bool:
            queue = {"topic": "T", "brokerName": "broker-a", "queueId": 0}
            body = {"consumerGroup": "G", "clientId": client, "mqSet": [queue]}
            answer = await peer.ok(Code.LOCK_BATCH_MQ, msgspec.json.encode(body))
            return b'"queueId"' in answer.body

        assert await lock("first")
        await until(lambda: lock("second"))  # by default after a minute


async def test_startAcceptSendRequestTimeStamp(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        assert (await peer.send("T")).code == 0
        await peer.set(startAcceptSendRequestTimeStamp=int(time.time() * 1000) + 3_600_000)
        assert (await peer.send("T")).code == ResponseCode.SYSTEM_ERROR


async def test_syncFlushTimeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, may_sync = RealFiles.fdatasync, threading.Event()

    def sync(self: RealFiles, fd: int) -> None:
        may_sync.wait()
        real(self, fd)

    may_sync.set()
    monkeypatch.setattr(RealFiles, "fdatasync", sync)
    flush = {"flushDiskType": "SYNC_FLUSH"}
    async with (
        broker(tmp_path / "slow", syncFlushTimeout=HOUR_MS, **flush) as slow,
        broker(tmp_path / "quick", syncFlushTimeout=30, **flush) as quick,
    ):
        assert (await slow.send("T")).code == 0
        await quick.send("T")  # there is a topic
        may_sync.clear()
        try:
            waiting = asyncio.ensure_future(slow.send("T"))
            for _ in range(2):
                assert (await quick.send("T")).code == ResponseCode.FLUSH_DISK_TIMEOUT
            assert not waiting.done()
        finally:
            may_sync.set()
        assert (await waiting).code == 0


@pytest.mark.parametrize(
    ("ratio", "settings", "count"),
    [
        (100, {}, 20),
        (100, {"maxTransferCountOnMessageInMemory": 5}, 5),
        (100, {"maxTransferBytesOnMessageInMemory": 2200}, 3),
        (100, {"pullBatchMaxMessageCount": 4}, 4),
        (1, {}, 8),
        (1, {"maxTransferCountOnMessageInDisk": 3}, 3),
        (1, {"maxTransferBytesOnMessageInDisk": 1500}, 2),
    ],
)
async def test_how_much_a_pull_returns(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ratio: int,
    settings: dict[str, int],
    count: int,
) -> None:
    memory = SimpleNamespace(sysconf=lambda name: 1000)  # a megabyte
    monkeypatch.setattr("rocketpost.server.settings.limits.os", memory)
    async with broker(tmp_path, accessMessageInMemoryMaxRatio=ratio, **settings) as peer:
        for _ in range(20):
            await peer.send("T", bytes(500))
        await peer.send("Other", bytes(20_000))
        assert len(await peer.records("T")) == count


async def test_maxFilterMessageSize(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        for _ in range(5):
            await peer.send("T", TAGS="A")
        seen = []
        for size in (16_000, 40):
            await peer.set(maxFilterMessageSize=size)
            missed = await peer.pull("T", subscription="B", maxMsgNums=1)
            seen.append(missed.fields["nextBeginOffset"])
        assert seen == ["5", "2"]


async def test_enablePropertyFilter(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.send("T", a="1")
        query = {"expressionType": "SQL92", "subscription": "a = '1'"}
        assert (await peer.pull("T", **query)).code == 0
        await peer.set(enablePropertyFilter="false")
        assert (await peer.pull("T", **query)).code == ResponseCode.SYSTEM_ERROR


async def subscribe_by_filter(peer: Peer) -> None:
    """Have a member of the group G say which messages of the topic T it wants."""
    wanted = {"topic": "T", "subString": "a = '1'", "expressionType": "SQL92", "subVersion": 1}
    group = {"groupName": "G", "subscriptionDataSet": [wanted]}
    beat = {"clientID": "me", "consumerDataSet": [group]}
    await peer.ok(Code.HEART_BEAT, msgspec.json.encode(beat))


async def test_filterSupportRetry(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await subscribe_by_filter(peer)
        assert (await peer.send("%RETRY%G", a="2", RETRY_TOPIC="T")).code == 0
        seen = []
        for judged in ("false", "true"):
            await peer.set(filterSupportRetry=judged)
            seen.append(len(await peer.records("%RETRY%G")))
        assert seen == [1, 0]


async def test_filterDataCleanTimeSpan(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:

        async def is_known() -> bool:
            assert peer.server._term is not None
            peer.server._term.clients.expire()  # as the broker does every few seconds
            answer = await peer.ok(Code.GET_BROKER_RUNTIME_INFO)
            return msgspec.json.decode(answer.body)["table"]["consumerFilters"] == "1"

        async def is_forgotten() -> bool:
            return not await is_known()

        await subscribe_by_filter(peer)
        await peer.ok(Code.UNREGISTER_CLIENT, clientID="me", consumerGroup="G")
        assert await is_known()
        await peer.set(filterDataCleanTimeSpan=1)
        await until(is_forgotten)


async def test_how_much_a_query_returns(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        for _ in range(4):
            await peer.send("T", KEYS="k", UNIQ_KEY="U")

        async def found(**more: object) -> int:
            answer = await peer.call(
                Code.QUERY_MESSAGE, topic="T", maxNum=9, beginTimestamp=0,
                endTimestamp=2**62, **more,
            )  # fmt: skip
            return len(decode_records(answer.body))

        unique = {"key": "U", "_UNIQUE_KEY_QUERY": "true"}
        assert (await found(key="k"), await found(**unique)) == (4, 4)
        await peer.set(maxMsgsNumBatch=2, defaultQueryMaxNum=3)
        assert await found(key="k") == 2
        await peer.set(maxMsgsNumBatch=64)
        assert await found(**unique) == 3


async def test_rejectTransactionMessage(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        half = {"TRAN_MSG": "true", "PGROUP": "P"}
        assert (await peer.send("T", **half)).code == 0
        await peer.set(rejectTransactionMessage="true")
        assert (await peer.send("T", **half)).code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("key", ["pullThreadPoolQueueCapacity", "connectionHeldMax"])
async def test_how_many_pulls_are_held(tmp_path: Path, key: str) -> None:
    async with broker(tmp_path) as peer:
        await peer.send("T")
        await peer.set(**{key: 1})
        held = asyncio.ensure_future(peer.pull("T", 1, hold_ms=30_000))
        await peer.ok(Code.GET_BROKER_RUNTIME_INFO)
        assert (await peer.pull("T", 1, hold_ms=30_000)).code == ResponseCode.SYSTEM_BUSY
        await peer.send("T")
        assert (await held).code == 0
