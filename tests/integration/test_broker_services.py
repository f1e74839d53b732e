"""A whole broker in this process, spoken to over real sockets in raw commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from rocketpost.codec.bodies.offset import decode_consume_state, decode_queue_offsets
from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.bodies.topic import decode_topic_state
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.record import decode_records
from rocketpost.model.route import MessageQueue
from rocketpost.server.broker import BrokerServer
from rocketpost.server.routes.dispatch import answer
from rocketpost.server.routes.route import Reply
from rocketpost.transport.connection import Connection


class Peer:
    """A client that knows the protocol and nothing else."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[Command] = asyncio.Queue()
        self._connection: Connection | None = None

    async def connect(self, port: int) -> Peer:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(on_request=self._on_request), "127.0.0.1", port
        )
        self._connection = connection
        return self

    def _on_request(self, connection: Connection, command: Command) -> None:
        self.heard.put_nowait(command)
        if not command.is_oneway:
            answer(connection, command, Reply(body=b'{"properties":{}}'))

    async def call(self, code: int, body: bytes = b"", **fields: object) -> Command:
        assert self._connection is not None
        texts = {name: str(value) for name, value in fields.items()}
        return await self._connection.request(code, fields=texts, body=body, timeout=5)

    async def close(self) -> None:
        assert self._connection is not None
        self._connection.close()
        await self._connection.wait_closed()


@asynccontextmanager
async def broker(root: Path, **settings: str) -> AsyncIterator[BrokerServer]:
    server = BrokerServer(
        {
            "storePathRootDir": str(root),
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": "0",
            "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
            "maxHashSlotNum": "1000",
            "maxIndexNum": "4000",
        }
        | settings
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def send(peer: Peer, topic: str, count: int = 1) -> list[Command]:
    sent = []
    for number in range(count):
        response = await peer.call(
            Code.SEND_MESSAGE,
            b"body %d" % number,
            producerGroup="P",
            topic=topic,
            defaultTopic="TBW102",
            defaultTopicQueueNums=4,
            queueId=0,
            sysFlag=0,
            bornTimestamp=1,
            flag=0,
            properties=f"KEYS\x01key{number}\x02TAGS\x01A\x02",
        )
        assert response.code == 0, response.remark
        sent.append(response)
    return sent


def heartbeat(client_id: str, group: str = "G", topic: str = "T") -> bytes:
    subscription = {"topic": topic, "subString": "*", "subVersion": 1}
    consumer = {"groupName": group, "subscriptionDataSet": [subscription]}
    return msgspec.json.encode({"clientID": client_id, "consumerDataSet": [consumer]})


async def pull(peer: Peer, offset: int, *, topic: str = "T", group: str = "G") -> Command:
    return await peer.call(
        Code.PULL_MESSAGE,
        consumerGroup=group,
        topic=topic,
        queueId=0,
        queueOffset=offset,
        maxMsgNums=32,
        sysFlag=4,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription="*",
        subVersion=0,
    )


async def create(peer: Peer, topic: str = "T", queues: int = 2) -> None:
    response = await peer.call(
        Code.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=queues,
        writeQueueNums=queues,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order="false",
    )
    assert response.code == 0, response.remark


@pytest.mark.slow
async def test_topics_groups_offsets_and_settings_survive_a_restart(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        await create(peer)
        await send(peer, "T", 3)
        await send(peer, "ByProducer")
        group = b'{"groupName":"G","retryMaxTimes":3}'
        assert (await peer.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)).code == 0
        offset = {"consumerGroup": "G", "topic": "T", "queueId": 0}
        committed = await peer.call(Code.UPDATE_CONSUMER_OFFSET, **offset, commitOffset=2)
        assert committed.code == 0
        changed = await peer.call(Code.UPDATE_BROKER_CONFIG, b"fileReservedTime=24")
        assert changed.code == 0
        await peer.close()
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        found = await peer.call(Code.QUERY_CONSUMER_OFFSET, **offset)
        assert found.fields == {"offset": "2"}
        shown = await peer.call(Code.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
        assert msgspec.json.decode(shown.body)["retryMaxTimes"] == 3
        made = await peer.call(Code.GET_TOPIC_CONFIG, topic="ByProducer")
        assert msgspec.json.decode(made.body)["writeQueueNums"] == 4
        settings = (await peer.call(Code.GET_BROKER_CONFIG)).body
        assert b"fileReservedTime=24\n" in settings
        await peer.close()
    async with broker(tmp_path, fileReservedTime="48") as server:
        peer = await Peer().connect(server.port)
        assert b"fileReservedTime=48\n" in (await peer.call(Code.GET_BROKER_CONFIG)).body
        await peer.close()


@pytest.mark.slow
async def test_look_ups_return_what_was_stored(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        await create(peer)
        sent = await send(peer, "T", 3)
        identity = sent[1].fields["msgId"]
        viewed = await peer.call(Code.VIEW_MESSAGE_BY_ID, offset=int(identity[16:], 16))
        (record,) = decode_records(viewed.body)
        assert (record.topic, bytes(record.body), record.queue_offset) == ("T", b"body 1", 1)
        key = {"topic": "T", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 2**62}
        by_key = await peer.call(Code.QUERY_MESSAGE, key="key2", **key)
        assert [bytes(each.body) for each in decode_records(by_key.body)] == [b"body 2"]
        missing = await peer.call(Code.QUERY_MESSAGE, key="nokey", **key)
        assert missing.code == ResponseCode.QUERY_NOT_FOUND
        queue = {"topic": "T", "queueId": 0}
        assert (await peer.call(Code.GET_MAX_OFFSET, **queue)).fields == {"offset": "3"}
        assert (await peer.call(Code.GET_MIN_OFFSET, **queue)).fields == {"offset": "0"}
        state = decode_topic_state((await peer.call(Code.GET_TOPIC_STATS_INFO, topic="T")).body)
        assert state.queues[MessageQueue("broker-a", 0, "T")].max_offset == 3
        entries = await peer.call(Code.QUERY_CONSUME_QUEUE, **queue, index=0, count=2)
        assert len(msgspec.json.decode(entries.body)["queueData"]) == 2
        runtime = decode_key_values((await peer.call(Code.GET_BROKER_RUNTIME_INFO)).body)
        assert runtime["putMessageTimesTotal"] == "3"
        stats = await peer.call(
            Code.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T"
        )
        assert msgspec.json.decode(stats.body)["statsMinute"]["sum"] == 3
        for code in (
            Code.CLEAN_EXPIRED_CONSUMEQUEUE,
            Code.DELETE_EXPIRED_COMMITLOG,
            Code.CLEAN_UNUSED_TOPIC,
            Code.GET_BROKER_HA_STATUS,
        ):
            assert (await peer.call(code)).code == 0
        await peer.close()


async def test_a_young_queue_is_consumed_from_its_start(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        await create(peer)
        await send(peer, "T", 1)
        offset = {"consumerGroup": "New", "topic": "T"}
        young = await peer.call(Code.QUERY_CONSUMER_OFFSET, **offset, queueId=0)
        assert (young.code, young.fields) == (0, {"offset": "0"})
        empty = await peer.call(Code.QUERY_CONSUMER_OFFSET, **offset, queueId=1)
        assert (empty.code, empty.fields) == (0, {"offset": "0"})
        await peer.close()


async def test_a_message_stored_while_a_new_group_finds_its_start_is_consumed(
    tmp_path: Path,
) -> None:
    """The steps of every client that starts at the end, with a send between two of them."""
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        await create(peer)
        queue = {"topic": "T", "queueId": 0}
        known = await peer.call(Code.QUERY_CONSUMER_OFFSET, consumerGroup="New", **queue)
        await send(peer, "T", 1)
        if known.code == ResponseCode.QUERY_NOT_FOUND:
            known = await peer.call(Code.GET_MAX_OFFSET, **queue)
        assert known.fields == {"offset": "0"}
        await peer.close()


async def test_members_are_notified_of_each_other_and_of_a_lost_connection(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        first = await Peer().connect(server.port)
        second = await Peer().connect(server.port)
        admin = await Peer().connect(server.port)
        await create(admin)
        assert (await first.call(Code.HEART_BEAT, heartbeat("id-1"))).code == 0
        await asyncio.wait_for(first.heard.get(), 2)
        assert (await second.call(Code.HEART_BEAT, heartbeat("id-2"))).code == 0
        told = await asyncio.wait_for(first.heard.get(), 2)
        assert (told.code, told.is_oneway) == (Code.NOTIFY_CONSUMER_IDS_CHANGED, True)
        await asyncio.wait_for(second.heard.get(), 2)
        ids = await admin.call(Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        assert msgspec.json.decode(ids.body) == {"consumerIdList": ["id-1", "id-2"]}
        assert (await admin.call(Code.GET_TOPIC_CONFIG, topic="%RETRY%G")).code == 0
        info = await admin.call(Code.GET_CONSUMER_RUNNING_INFO, consumerGroup="G", clientId="id-2")
        assert info.body == b'{"properties":{}}'
        await asyncio.wait_for(second.heard.get(), 2)
        await second.close()
        await asyncio.wait_for(first.heard.get(), 2)
        ids = await admin.call(Code.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="G")
        assert msgspec.json.decode(ids.body) == {"consumerIdList": ["id-1"]}
        await first.close()
        await admin.close()


async def test_a_reset_reaches_the_next_pull(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        await create(peer, queues=1)
        await send(peer, "T", 3)
        assert (await pull(peer, 0)).code == 0
        fields = {"topic": "T", "group": "G", "timestamp": 0, "isForce": "true"}
        await peer.call(
            Code.UPDATE_CONSUMER_OFFSET, consumerGroup="G", topic="T", queueId=0, commitOffset=3
        )
        reset = await peer.call(Code.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
        assert decode_queue_offsets(reset.body) == {MessageQueue("broker-a", 0, "T"): 0}
        moved = await pull(peer, 3)
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.fields["nextBeginOffset"] == "0"
        assert (await pull(peer, 0)).code == 0
        progress = await peer.call(Code.GET_CONSUME_STATS, consumerGroup="G", topic="T")
        (queue,) = decode_consume_state(progress.body).queues.values()
        assert (queue.broker_offset, queue.consumer_offset) == (3, 0)
        await peer.close()


async def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        await create(peer)
        await send(peer, "T", 3)
        assert (await peer.call(Code.DELETE_TOPIC_IN_BROKER, topic="T")).code == 0
        assert (await pull(peer, 0)).code == ResponseCode.TOPIC_NOT_EXIST
        await peer.close()
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        gone = await peer.call(Code.GET_TOPIC_CONFIG, topic="T")
        assert gone.code == ResponseCode.TOPIC_NOT_EXIST
        assert not (tmp_path / "consumequeue" / "T").exists()
        await peer.close()


@pytest.mark.parametrize(
    "text", ["rocketmqHome=-c x|sh y", "storePathCommitLog=/tmp", "listenPort=1", "unknown=1"]
)
async def test_settings_that_requests_may_not_change_are_refused(tmp_path: Path, text: str) -> None:
    async with broker(tmp_path) as server:
        peer = await Peer().connect(server.port)
        before = (await peer.call(Code.GET_BROKER_CONFIG)).body
        response = await peer.call(Code.UPDATE_BROKER_CONFIG, text.encode())
        assert response.code == ResponseCode.NO_PERMISSION
        assert text.partition("=")[0] in (response.remark or "")
        assert (await peer.call(Code.GET_BROKER_CONFIG)).body == before
        await peer.close()
