"""Transactions, duplicates, recalls and pops: the settings of a running broker."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.record import decode_records
from rocketpost.model.stamp import Stamp

from .harness import Peer, broker, heartbeat, until

CHECKED_TOO_OFTEN = "TRANS_CHECK_MAX_TIME_TOPIC"
OPS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


async def count(peer: Peer, topic: str) -> int:
    """Return how many messages the first queue of a topic has."""
    answer = await peer.call(Code.GET_MAX_OFFSET, topic=topic, queueId=0)
    return int(answer.fields["offset"]) if answer.code == 0 else 0


async def until_count(peer: Peer, topic: str, wanted: int, *, seconds: float) -> None:
    async def enough() -> bool:
        return await count(peer, topic) >= wanted

    await until(enough, seconds=seconds)


async def test_when_and_how_often_a_producer_is_asked(tmp_path: Path) -> None:
    async with broker(
        tmp_path, transactionTimeOut=30, transactionCheckInterval=30, transactionCheckMax=2
    ) as peer:
        producer = {"clientID": "c", "producerDataSet": [{"groupName": "P"}]}
        await peer.ok(Code.HEART_BEAT, msgspec.json.encode(producer))
        await peer.send("T", **HALF)
        await until_count(peer, CHECKED_TOO_OFTEN, 1, seconds=5)
        asked = [peer.heard.get_nowait().code for _ in range(peer.heard.qsize())]
        assert asked == [Code.CHECK_TRANSACTION_STATE] * 2


@pytest.mark.parametrize(
    "settings", [{"transactionOpBatchInterval": 30}, {"transactionOpMsgMaxSize": 1}]
)
async def test_when_the_end_of_a_transaction_is_noted(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    async with broker(tmp_path, **settings) as peer:
        half = await peer.send("T", **HALF)
        await peer.ok(
            Code.END_TRANSACTION, producerGroup="P", commitOrRollback=8,
            tranStateTableOffset=half.fields["queueOffset"],
            commitLogOffset=int(half.fields["msgId"][16:], 16),
            msgId=half.fields["transactionId"],
        )  # fmt: skip
        await until_count(peer, OPS, 1, seconds=2.5)  # by default after three seconds


async def test_dedupSeconds_and_the_attribute_of_a_topic(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        for topic, seconds in (("T", 0), ("T", 60)):
            await peer.set(dedupSeconds=seconds)
            await peer.send(topic, UNIQ_KEY=f"U{seconds}")
            await peer.send(topic, UNIQ_KEY=f"U{seconds}")
        assert await count(peer, "T") == 2 + 1
        await peer.set(dedupSeconds=0)
        await peer.topic("Once", "+dedup.seconds=60")
        await peer.send("Once", UNIQ_KEY="U")
        await peer.send("Once", UNIQ_KEY="U")
        assert await count(peer, "Once") == 1


async def test_dedupKeysMax(tmp_path: Path) -> None:
    async with broker(tmp_path, dedupSeconds=60, dedupKeysMax=1) as peer:
        for key in ("A", "B", "C", "A"):  # A was forgotten
            await peer.send("T", UNIQ_KEY=key)
        assert await count(peer, "T") == 4


async def send_stamped(peer: Peer, producer: str, sequence: int) -> Command:
    return await peer.call(
        Code.SEND_MESSAGE, b"body", producerGroup="P", topic="T", defaultTopic="TBW102",
        defaultTopicQueueNums=1, queueId=0, sysFlag=0, bornTimestamp=1, flag=0, properties="",
        sequence=Stamp(producer, 0, sequence).to_field(),
    )  # fmt: skip


async def test_idempotentProducersMax(tmp_path: Path) -> None:
    async with broker(tmp_path, idempotentProducersMax=1) as peer:
        for producer in ("A", "B", "A"):  # A was forgotten
            await send_stamped(peer, producer, 0)
        assert await count(peer, "T") == 3


async def test_idempotentProducerIdleSeconds(tmp_path: Path) -> None:
    async with broker(tmp_path, idempotentProducerIdleSeconds=1) as peer:
        await send_stamped(peer, "A", 0)

        async def stored_again() -> bool:
            await send_stamped(peer, "A", 0)
            await asyncio.sleep(1.2)
            return await count(peer, "T") > 1

        await until(stored_again)


async def test_flushProducerStateInterval(tmp_path: Path) -> None:
    async with broker(tmp_path, flushProducerStateInterval=30) as peer:
        await send_stamped(peer, "A", 0)
        saved = tmp_path / "store" / "config" / "producerState.json"
        await until(lambda: asyncio.to_thread(_holds, saved, '"A"'), seconds=5)


def _holds(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


async def test_recalls(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        refused = await peer.call(Code.RECALL_MESSAGE, topic="T", recallHandle="?")
        assert refused.code == ResponseCode.NO_PERMISSION
        await peer.set(recallMessageEnable="true")
        await peer.send("T")
        later = {"topic": "T", "recallHandle": "?"}
        assert (await peer.call(Code.RECALL_MESSAGE, **later)).code == (
            ResponseCode.ILLEGAL_OPERATION
        )
        await peer.set(brokerPermission=4, allowRecallWhenBrokerNotWriteable="false")
        assert (await peer.call(Code.RECALL_MESSAGE, **later)).code == (
            ResponseCode.SERVICE_NOT_AVAILABLE
        )


async def pop(peer: Peer, *, poll_ms: int = 0, invisible_ms: int = 60_000) -> Command:
    return await peer.call(
        Code.POP_MESSAGE, consumerGroup="G", topic="T", queueId=-1, maxMsgNums=1,
        invisibleTime=invisible_ms, pollTime=poll_ms, bornTime=int(time.time() * 1000), initMode=0,
        exp="*", expType="TAG", order="false",
    )  # fmt: skip


@pytest.mark.parametrize("key", ["maxPopPollingSize", "popPollingSize"])
async def test_how_many_pops_are_held(tmp_path: Path, key: str) -> None:
    async with broker(tmp_path) as peer:
        await peer.topic("T")
        await peer.set(**{key: 1})
        held = asyncio.ensure_future(pop(peer, poll_ms=20_000))
        await peer.ok(Code.GET_BROKER_RUNTIME_INFO)
        assert (await pop(peer, poll_ms=20_000)).code == ResponseCode.POLLING_FULL
        await peer.send("T")
        assert (await held).code == 0


async def test_how_much_may_be_popped_and_unacknowledged(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.topic("T")
        for _ in range(3):
            await peer.send("T")
        assert (await pop(peer)).code == 0
        await peer.set(popInflightMessageThreshold=1)
        assert (await pop(peer)).code == 0
        await peer.set(enablePopMessageThreshold="true")
        assert (await pop(peer)).code != 0
        await peer.set(popInflightMessageThreshold=10)
        assert (await pop(peer)).code == 0


@pytest.mark.parametrize(("newer", "topic"), [("false", "%RETRY%G_T"), ("true", "%RETRY%G+T")])
async def test_enableRetryTopicV2(tmp_path: Path, newer: str, topic: str) -> None:
    async with broker(tmp_path, enableRetryTopicV2=newer) as peer:
        await peer.topic("T")
        await peer.send("T")
        assert (await pop(peer, invisible_ms=100)).code == 0
        await until_count(peer, topic, 1, seconds=10)


async def test_queues_shared_out_by_the_broker(tmp_path: Path) -> None:
    async with broker(tmp_path, defaultMessageRequestMode="POP") as peer:
        await peer.topic("T")
        await peer.ok(Code.HEART_BEAT, heartbeat("me"))
        question = msgspec.json.encode(
            {
                "clientId": "me", "consumerGroup": "G", "messageModel": "CLUSTERING",
                "strategyName": "AVG", "topic": "T",
            }
        )  # fmt: skip

        async def assigned() -> list[tuple[int, str]]:
            answer = await peer.ok(Code.QUERY_ASSIGNMENT, question)
            found = msgspec.json.decode(answer.body)["messageQueueAssignments"]
            return [(each["messageQueue"]["queueId"], each["mode"]) for each in found]

        assert await assigned() == [(-1, "POP")]
        await peer.set(serverLoadBalancerEnable="false")
        assert await assigned() == [(0, "POP")]


async def popped_again(peer: Peer) -> None:
    """Have a message of the topic T come again, and send another one."""
    await peer.topic("T")
    await peer.send("T", b"old")
    assert (await pop(peer, invisible_ms=100)).code == 0
    await until_count(peer, "%RETRY%G_T", 1, seconds=10)
    await peer.send("T", b"new")


@pytest.mark.parametrize(("percent", "first"), [(100, b"old"), (0, b"new")])
async def test_popFromRetryProbability(tmp_path: Path, percent: int, first: bytes) -> None:
    async with broker(tmp_path, popFromRetryProbability=percent) as peer:
        await popped_again(peer)
        [record] = decode_records((await pop(peer)).body)
        assert bytes(record.body) == first


@pytest.mark.parametrize(("reads", "count"), [("true", 2), ("false", 1)])
async def test_retrieveMessageFromPopRetryTopicV1(tmp_path: Path, reads: str, count: int) -> None:
    async with broker(tmp_path) as peer:
        await popped_again(peer)
        await peer.set(enableRetryTopicV2="true", retrieveMessageFromPopRetryTopicV1=reads)
        answers = [await pop(peer) for _ in range(3)]
        assert sum(answer.code == 0 for answer in answers) == count


async def test_autoCreatePerSecond(tmp_path: Path) -> None:
    refused = {}
    for rate in (1, 10_000):
        async with broker(tmp_path / str(rate), autoCreatePerSecond=rate) as peer:
            answers = [await peer.send(f"T{number}") for number in range(200)]
            refused[rate] = sum(answer.code != 0 for answer in answers)
    assert refused[1] > 0 == refused[10_000]
