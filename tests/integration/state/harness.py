"""Brokers in this process whose files are copied, damaged and opened again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.record import Record, decode_records
from rocketpost.server.broker import BrokerServer
from rocketpost.server.routes.dispatch import answer
from rocketpost.server.routes.route import Reply
from rocketpost.testing import free_port
from rocketpost.transport.connection import Connection

SETTINGS: Final = {
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "mappedFileSizeCommitLog": str(8 * 1024 * 1024),
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}


class Peer:
    """A client that knows the protocol and nothing else."""

    connection: Connection

    async def connect(self, port: int) -> Peer:
        loop = asyncio.get_running_loop()
        _, self.connection = await loop.create_connection(
            lambda: Connection(on_request=_refuse), "127.0.0.1", port
        )
        return self

    async def call(self, code: int, body: bytes = b"", **fields: object) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.connection.request(code, fields=texts, body=body, timeout=20)

    async def succeed(self, code: int, body: bytes = b"", **fields: object) -> Command:
        response = await self.call(code, body, **fields)
        assert response.code == ResponseCode.SUCCESS, response.remark
        return response

    async def send(
        self,
        topic: str,
        properties: str = "",
        *,
        body: bytes = b"body",
        sys_flag: int = 0,
        **fields: object,
    ) -> Command:
        return await self.succeed(
            Code.SEND_MESSAGE, body, producerGroup="P", topic=topic, defaultTopic="TBW102",
            defaultTopicQueueNums=1, queueId=0, sysFlag=sys_flag, bornTimestamp=1, flag=0,
            properties=properties, **fields,
        )  # fmt: skip

    async def pull(self, topic: str, offset: int = 0, *, hold_ms: int = 0) -> list[Record]:
        response = await self.call(
            Code.PULL_MESSAGE, consumerGroup="TOOLS_CONSUMER", topic=topic, queueId=0,
            queueOffset=offset, maxMsgNums=32, sysFlag=6 if hold_ms else 4, commitOffset=0,
            suspendTimeoutMillis=hold_ms, subscription="*", subVersion=0,
        )  # fmt: skip
        return list(decode_records(response.body)) if response.code == 0 else []

    async def offset(self, group: str, topic: str = "T", queue_id: int = 0) -> int | None:
        response = await self.call(
            Code.QUERY_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue_id,
            setZeroIfNotFound="false",
        )  # fmt: skip
        return int(response.fields["offset"]) if response.code == 0 else None

    async def status(self) -> dict[str, str]:
        return decode_key_values((await self.succeed(Code.GET_BROKER_RUNTIME_INFO)).body)


def _refuse(connection: Connection, command: Command) -> None:
    if not command.is_oneway:
        answer(connection, command, Reply(ResponseCode.SYSTEM_ERROR))


@asynccontextmanager
async def broker(root: Path, **settings: str) -> AsyncIterator[BrokerServer]:
    """A broker on the files of a directory, stopped in order."""
    server = BrokerServer(SETTINGS | {"storePathRootDir": str(root)} | settings)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def guarded_member(root: Path) -> dict[str, str]:
    """Return the settings of the only member of a group that elects, for access control.

    Args:
        root: The directory for the key with which passwords are encrypted.
    """
    key = root / "secret.key"
    key.write_text("5f" * 32)
    key.chmod(0o600)
    return {
        "authSecretKeyFile": str(key),
        "innerClientAuthenticationCredentials": '{"accessKey":"root","secretKey":"root-secret"}',
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "g",
        "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-127.0.0.1:{free_port()}",
    }


@asynccontextmanager
async def connected(server: BrokerServer) -> AsyncIterator[Peer]:
    """A client of a broker."""
    peer = await Peer().connect(server.port)
    try:
        yield peer
    finally:
        peer.connection.close()
        await peer.connection.wait_closed()


def copy_files(root: Path, target: Path) -> Path:
    """Copy what a kill -9 at this moment would leave; the loop must not run meanwhile."""
    shutil.copytree(root, target)
    (target / "abort").touch()
    return target
