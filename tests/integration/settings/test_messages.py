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
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig

from .harness import HOUR_MS, Peer, broker, heartbeat, peer_at, until

CHECKED_TOO_OFTEN = "TRANS_CHECK_MAX_TIME_TOPIC"
OPS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
HALF = {"TRAN_MSG": "true", "PGROUP": "P"}


async def count(peer: Peer, topic: str) -> int:
    """Return how many messages the first queue of a topic has."""
    answer = await peer.call(Code.GET_MAX_OFFSET, topic=topic, queueId=0)
    return int(answer.fields["offset"]) if answer.code == 0 else 0


async def until_count(peer: Peer, topic: str, wanted: int) -> None:
    async def enough() -> bool:
        return await count(peer, topic) >= wanted

    await until(enough)


async def test_when_and_how_often_a_producer_is_asked(tmp_path: Path) -> None:
    producer = {"clientID": "c", "producerDataSet": [{"groupName": "P"}]}
    often = {"transactionCheckInterval": 30, "transactionCheckMax": 2}
    async with (
        broker(tmp_path / "slow", transactionTimeOut=HOUR_MS, **often) as slow,
        broker(tmp_path / "quick", transactionTimeOut=30, **often) as quick,
    ):
        for peer in (slow, quick):
            await peer.ok(Code.HEART_BEAT, msgspec.json.encode(producer))
            await peer.send("T", **HALF)
        await until_count(quick, CHECKED_TOO_OFTEN, 1)
        asked = [quick.heard.get_nowait().code for _ in range(quick.heard.qsize())]
        assert asked == [Code.CHECK_TRANSACTION_STATE] * 2
        assert slow.heard.empty()


@pytest.mark.parametrize(
    "settings", [{"transactionOpBatchInterval": 30}, {"transactionOpMsgMaxSize": 1}]
)
async def test_when_the_end_of_a_transaction_is_noted(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    async def transact(peer: Peer) -> None:
        half = await peer.send("T", **HALF)
        await peer.ok(
            Code.END_TRANSACTION, producerGroup="P", commitOrRollback=8,
            tranStateTableOffset=half.fields["queueOffset"],
            commitLogOffset=int(half.fields["msgId"][16:], 16),
            msgId=half.fields["transactionId"],
        )  # fmt: skip

    late = {"transactionOpBatchInterval": HOUR_MS}
    async with (
        broker(tmp_path / "slow", **late) as slow,
        broker(tmp_path / "quick", **late | settings) as quick,
    ):
        await transact(slow)
        for done in range(2):
            await transact(quick)
            await until_count(quick, OPS, 1 + done)
        assert await count(slow, OPS) == 0


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
    settings = {"idempotentProducerIdleSeconds": 1, "flushProducerStateInterval": 30}
    async with broker(tmp_path, **settings) as peer:
        await send_stamped(peer, "A", 0)

        async def stored_again() -> bool:
            await send_stamped(peer, "A", 0)
            await asyncio.sleep(1.2)
            return await count(peer, "T") > 1

        await until(stored_again)


async def test_flushProducerStateInterval(tmp_path: Path) -> None:
    def saved(name: str) -> Path:
        return tmp_path / name / "store" / "config" / "producerState.json"

    async with (
        broker(tmp_path / "slow", flushProducerStateInterval=HOUR_MS) as slow,
        broker(tmp_path / "quick", flushProducerStateInterval=30) as quick,
    ):
        await send_stamped(slow, "A", 0)
        for producer in ("A", "B"):
            await send_stamped(quick, producer, 0)
            await until(lambda p=producer: asyncio.to_thread(_holds, saved("quick"), f'"{p}"'))  # type: ignore[misc]
        assert not _holds(saved("slow"), '"A"')


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
        await until_count(peer, topic, 1)


Queue = tuple[str, int, str]


async def assigned(peer: Peer) -> list[Queue]:
    """Return what a member is to read of the topic T: broker, queue and mode."""
    question = {
        "clientId": "me", "consumerGroup": "G", "messageModel": "CLUSTERING",
        "strategyName": "AVG", "topic": "T",
    }  # fmt: skip
    answer = await peer.ok(Code.QUERY_ASSIGNMENT, msgspec.json.encode(question))
    found = msgspec.json.decode(answer.body).get("messageQueueAssignments") or []
    queues = [(each["messageQueue"], each["mode"]) for each in found]
    return [(queue["brokerName"], queue["queueId"], mode) for queue, mode in queues]


async def test_queues_assigned_by_the_broker(tmp_path: Path) -> None:
    async with broker(tmp_path, defaultMessageRequestMode="POP") as peer:
        await peer.topic("T")
        await peer.ok(Code.HEART_BEAT, heartbeat("me"))
        assert await assigned(peer) == [("broker-a", -1, "POP")]
        await peer.set(serverLoadBalancerEnable="false")
        assert await assigned(peer) == [("broker-a", 0, "POP")]


async def test_defaultPopShareQueueNum(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, defaultMessageRequestMode="POP") as peer,
        peer_at("127.0.0.1", peer.server.port) as second,
        peer_at("127.0.0.1", peer.server.port) as third,
    ):
        await peer.topic("T", readQueueNums=3, writeQueueNums=3)
        for member, name in ((peer, "me"), (second, "second"), (third, "third")):
            await member.ok(Code.HEART_BEAT, heartbeat(name))
        assert await assigned(peer) == [("broker-a", -1, "POP")]
        await peer.set(defaultPopShareQueueNum=1)  # its own share, and that of one neighbour
        assert await assigned(peer) == [("broker-a", 0, "POP"), ("broker-a", 1, "POP")]


async def test_loadBalancePollNameServerInterval(tmp_path: Path) -> None:
    server = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=None))
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        async with (
            broker(
                tmp_path / "a", namesrvAddr=address, loadBalancePollNameServerInterval=50
            ) as peer,
            broker(tmp_path / "b", namesrvAddr=address, brokerName="broker-b") as other,
        ):

            async def are(*names: str) -> bool:
                return {name for name, _, _ in await assigned(peer)} == set(names)

            await peer.topic("T")
            await peer.ok(Code.HEART_BEAT, heartbeat("me"))
            await until(lambda: are("broker-a"))
            await other.topic("T")
            await until(lambda: are("broker-a", "broker-b"))  # by default within 30 seconds
    finally:
        await server.stop()


async def popped_again(peer: Peer) -> None:
    """Have a message of the topic T come again, and send another one."""
    await peer.topic("T")
    await peer.send("T", b"old")
    assert (await pop(peer, invisible_ms=100)).code == 0
    await until_count(peer, "%RETRY%G_T", 1)
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


@pytest.mark.parametrize(("clears", "bodies"), [("true", [b"new"]), ("false", [b"new", b"old"])])
async def test_clearRetryTopicWhenDeleteTopic(
    tmp_path: Path, clears: str, bodies: list[bytes]
) -> None:
    async with broker(tmp_path) as peer:
        await popped_again(peer)
        await peer.set(clearRetryTopicWhenDeleteTopic=clears)
        await peer.ok(Code.DELETE_TOPIC_IN_BROKER, topic="T")
        await peer.topic("T")
        await peer.send("T", b"new")
        answers = [await pop(peer) for _ in range(3)]
        found = [
            record for each in answers if not each.code for record in decode_records(each.body)
        ]
        assert sorted(bytes(record.body) for record in found) == bodies


async def test_autoCreatePerSecond(tmp_path: Path) -> None:
    refused = {}
    for rate in (1, 10_000):
        async with broker(tmp_path / str(rate), autoCreatePerSecond=rate) as peer:
            answers = [await peer.send(f"T{number}") for number in range(200)]
            refused[rate] = sum(answer.code != 0 for answer in answers)
    assert refused[1] > 0 == refused[10_000]
