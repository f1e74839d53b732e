"""A whole broker in this process, and a client that knows the protocol and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.command import Command
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, decode_records
from rocketpost.server.broker import BrokerServer
from rocketpost.transport.connection import Connection

COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4
HOUR_MS = 3_600_000
"""An interval for the broker that must not act while another one with a short interval does.

Both have the same default, so that neither would be first if their values were not read.
"""


class Peer:
    """One connection to a broker."""

    def __init__(self, connection: Connection, heard: asyncio.Queue[Command]) -> None:
        self.connection = connection
        self.heard = heard
        """Requests of the broker."""
        self.server: BrokerServer

    async def call(self, code: int, body: bytes = b"", **fields: object) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.connection.request(code, fields=texts, body=body, timeout=60)

    async def ok(self, code: int, body: bytes = b"", **fields: object) -> Command:
        answer = await self.call(code, body, **fields)
        assert answer.code == 0, answer.remark
        return answer

    async def set(self, **values: object) -> None:
        """Change settings of the running broker."""
        text = "".join(f"{key}={value}\n" for key, value in values.items())
        await self.ok(Code.UPDATE_BROKER_CONFIG, text.encode())

    async def topic(self, topic: str, attributes: str = "", **members: object) -> Command:
        fields: dict[str, object] = {
            "topic": topic, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6,
            "attributes": attributes, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip
        return await self.call(Code.UPDATE_AND_CREATE_TOPIC, **fields | members)

    async def group(self, group: str, **members: Any) -> Command:
        body = msgspec.json.encode({"groupName": group, **members})
        return await self.call(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)

    async def send(
        self,
        topic: str,
        body: bytes = b"body",
        default_queues: int = 1,
        queue_id: int = 0,
        **properties: str,
    ) -> Command:
        return await self.call(
            Code.SEND_MESSAGE, body, producerGroup="P", topic=topic, defaultTopic="TBW102",
            defaultTopicQueueNums=default_queues, queueId=queue_id, sysFlag=0, bornTimestamp=1,
            flag=0, properties=encode_properties(properties).decode(),
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
async def broker(root: Path, *, host: str = "127.0.0.1", **settings: object) -> AsyncIterator[Peer]:
    """Run a broker with these settings, and a client of it."""
    values: dict[str, object] = {
        "storePathRootDir": root / "store",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": host,
        "listenPort": 0,
        "mappedFileSizeCommitLog": 4 * 1024 * 1024,
        "maxMessageSize": 1024 * 1024,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
    }
    server = BrokerServer({key: str(value) for key, value in (values | settings).items()})
    await server.start()
    try:
        async with peer_at(host, server.port) as peer:
            peer.server = server
            yield peer
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def peer_at(host: str, port: int) -> AsyncIterator[Peer]:
    loop = asyncio.get_running_loop()
    heard: asyncio.Queue[Command] = asyncio.Queue()
    _, connection = await loop.create_connection(
        lambda: Connection(on_request=lambda _, command: heard.put_nowait(command)), host, port
    )
    try:
        yield Peer(connection, heard)
    finally:
        connection.close()
        await connection.wait_closed()


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 15) -> None:
    """Return when a condition holds.

    Raises:
        TimeoutError: It does not for too long.
    """
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.02)


def heartbeat(client_id: str, group: str = "G", topic: str = "T", **consumer: object) -> bytes:
    """Return the body of a heartbeat of one consumer."""
    subscription = {"topic": topic, "subString": "*", "subVersion": 1}
    data = {"groupName": group, "subscriptionDataSet": [subscription], **consumer}
    return msgspec.json.encode({"clientID": client_id, "consumerDataSet": [data]})
