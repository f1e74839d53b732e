"""Settings of broker, store, topics and groups: what a running broker does with each.

Every test compares two values of a setting, on a whole broker in this process, spoken to over real
sockets in raw commands.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketpost.codec.bodies.cluster import decode_cluster
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, decode_records
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv import NameServer, NamesrvConfig
from rocketpost.transport.connection import Connection

SUSPEND = 2
SUBSCRIPTION = 4


class Peer:
    """A client that knows the protocol and nothing else."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def call(self, code: int, body: bytes = b"", **fields: object) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.connection.request(code, fields=texts, body=body, timeout=15)

    async def ok(self, code: int, body: bytes = b"", **fields: object) -> Command:
        answer = await self.call(code, body, **fields)
        assert answer.code == 0, answer.remark
        return answer

    async def set(self, **values: object) -> None:
        """Change settings of the running broker."""
        text = "".join(f"{key}={value}\n" for key, value in values.items())
        await self.ok(Code.UPDATE_BROKER_CONFIG, text.encode())

    async def topic(self, topic: str, attributes: str = "") -> Command:
        return await self.call(
            Code.UPDATE_AND_CREATE_TOPIC, topic=topic, readQueueNums=1, writeQueueNums=1, perm=6,
            attributes=attributes, defaultTopic="TBW102", topicFilterType="SINGLE_TAG",
        )  # fmt: skip

    async def group(self, group: str, **members: Any) -> Command:
        body = msgspec.json.encode({"groupName": group, **members})
        return await self.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

    async def send(
        self, topic: str, body: bytes = b"body", default_queues: int = 1, **properties: str
    ) -> Command:
        return await self.call(
            Code.SEND_MESSAGE, body, producerGroup="P", topic=topic, defaultTopic="TBW102",
            defaultTopicQueueNums=default_queues, queueId=0, sysFlag=0, bornTimestamp=1, flag=0,
            properties=encode_properties(properties).decode(),
        )  # fmt: skip

    async def pull(
        self, topic: str, offset: int = 0, *, group: str = "G", hold_ms: int = 0, **more: object
    ) -> Command:
        fields: dict[str, object] = {
            "consumerGroup": group, "topic": topic, "queueId": 0, "queueOffset": offset,
            "maxMsgNums": 32, "sysFlag": SUBSCRIPTION | (SUSPEND if hold_ms else 0),
            "commitOffset": 0, "suspendTimeoutMillis": hold_ms, "subscription": "*",
            "subVersion": 0,
        }  # fmt: skip
        return await self.call(Code.PULL_MESSAGE, **fields | more)

    async def records(self, topic: str, **more: Any) -> list[Record]:
        return decode_records((await self.pull(topic, **more)).body)


@contextlib.asynccontextmanager
async def broker(root: Path, **settings: object) -> AsyncIterator[Peer]:
    """Run a broker with these settings, and a client of it."""
    values: dict[str, object] = {
        "storePathRootDir": root / "store",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "mappedFileSizeCommitLog": 4 * 1024 * 1024,
        "maxMessageSize": 1024 * 1024,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
    }
    server = BrokerServer({key: str(value) for key, value in (values | settings).items()})
    await server.start()
    try:
        async with peer_at("127.0.0.1", server.port) as peer:
            yield peer
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def peer_at(host: str, port: int) -> AsyncIterator[Peer]:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(
        lambda: Connection(on_request=lambda _, __: None), host, port
    )
    try:
        yield Peer(connection)
    finally:
        connection.close()
        await connection.wait_closed()


async def test_message_type_of_a_topic_and_whether_it_is_checked(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        assert (await peer.topic("Fifo", "+message.type=FIFO")).code == 0
        assert (await peer.send("Fifo")).code == 0
        refused = await peer.send("Fifo", DELAY="2")
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        assert "message.type=FIFO" in (refused.remark or "")
        await peer.set(enableTopicMessageTypeCheck="false")
        assert (await peer.send("Fifo", DELAY="2")).code == 0


async def test_enableMixedMessageType(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        refused = await peer.topic("Any", "+message.type=MIXED")
        assert refused.code == ResponseCode.INVALID_PARAMETER
        await peer.set(enableMixedMessageType="true")
        assert (await peer.topic("Any", "+message.type=MIXED")).code == 0
        assert (await peer.send("Any", DELAY="2")).code == 0


async def test_groupRetryPolicy_says_when_a_message_comes_again(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [300]}}
        assert (await peer.group("G", groupRetryPolicy=policy)).code == 0
        sent = await peer.send("T")
        position = int(sent.fields["msgId"][16:], 16)
        await peer.ok(
            Code.CONSUMER_SEND_MSG_BACK, offset=position, group="G", delayLevel=0, originTopic="T"
        )
        # By the delay levels it would come after ten seconds.
        [again] = await peer.records("%RETRY%G", hold_ms=5000)
        assert again.reconsume_times == 1
        waited = int(again.properties["TIMER_DELIVER_MS"]) - again.born_ms
        assert waited > 0
        assert again.store_ms >= int(again.properties["TIMER_DELIVER_MS"])


@pytest.mark.parametrize(
    "members",
    [{"brokerId": 1}, {"whichBrokerWhenConsumeSlowly": 2}, {"consumeTimeoutMinute": 5}],
)
async def test_members_of_groups_that_would_not_act(
    tmp_path: Path, members: dict[str, int]
) -> None:
    async with broker(tmp_path) as peer:
        refused = await peer.group("G", **members)
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert f"{min(members)}={members[min(members)]} cannot be honoured" in (
            refused.remark or ""
        )


class ListingServer:
    """A small HTTP address server: one line of name servers."""

    def __init__(self) -> None:
        self.line = ""
        self.asked: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(request.split()[1])
        body = f"{self.line}\n".encode()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()


async def brokers_of(server: NameServer) -> set[str]:
    """Return the names of the brokers that a name server knows."""
    async with peer_at("127.0.0.1", server.port) as peer:
        answer = await peer.ok(Code.GET_BROKER_CLUSTER_INFO)
    return set(decode_cluster(answer.body).broker_addr_table)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(15):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_fetchNamesrvAddrByAddressServer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path=None)
    first, second = NameServer(config), NameServer(config)
    await first.start()
    await second.start()
    listing = ListingServer()
    http = await asyncio.start_server(listing.answer, "127.0.0.1", 0)
    port = http.sockets[0].getsockname()[1]
    listing.line = f"127.0.0.1:{first.port}"
    try:
        async with broker(
            tmp_path,
            fetchNamesrvAddrByAddressServer="true",
            rmqAddressServerDomain=f"127.0.0.1:{port}",
            rmqAddressServerSubGroup="ours",
            fetchNamesrvAddrInterval=50,
        ):
            assert set(listing.asked) == {"/rocketmq/ours"}
            assert await brokers_of(first) == {"broker-a"}
            listing.line = f"127.0.0.1:{second.port}"  # the broker moves
            await until(lambda: knows(second, {"broker-a"}))
            await until(lambda: knows(first, set()))
            count = len(listing.asked)
            listing.line = ""  # nothing listed: it stays where it is
            await until(lambda: asked_more(listing, count + 2))
            assert await brokers_of(second) == {"broker-a"}
    finally:
        http.close()
        await first.stop()
        await second.stop()


async def knows(server: NameServer, names: set[str]) -> bool:
    return await brokers_of(server) == names


async def asked_more(listing: ListingServer, count: int) -> bool:
    return len(listing.asked) >= count


async def test_an_address_server_is_not_asked_where_name_servers_are_given(
    tmp_path: Path,
) -> None:
    listing = ListingServer()
    http = await asyncio.start_server(listing.answer, "127.0.0.1", 0)
    port = http.sockets[0].getsockname()[1]
    async with broker(
        tmp_path,
        namesrvAddr="127.0.0.1:1",
        fetchNamesrvAddrByAddressServer="true",
        rmqAddressServerDomain=f"127.0.0.1:{port}",
    ):
        assert listing.asked == []
    http.close()


async def test_serverChannelMaxIdleTimeSeconds(tmp_path: Path) -> None:
    async with broker(tmp_path, serverChannelMaxIdleTimeSeconds=1) as peer:
        await peer.ok(Code.GET_BROKER_RUNTIME_INFO)
        async with asyncio.timeout(10):
            await peer.connection.wait_closed()  # by default after two minutes
