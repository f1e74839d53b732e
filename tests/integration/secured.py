"""Settings and clients of servers with TLS and access control, in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from rocketpost.client import ClientTls
from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.server.broker import BrokerServer
from rocketpost.server.namesrv.process import NameServer
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.settings import build
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.transport.connector import Connector
from rocketpost.transport.tls_contexts import ClientContext, KeyPair

ROOT: Final = Credentials("root", "root-secret")
INNER: Final = Credentials("servers", "servers-secret")
GUARDED: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    "innerClientAuthenticationCredentials": (
        '{"accessKey":"servers","secretKey":"servers-secret"}'
    ),
}
"""Settings of access control."""


def tls_values(folder: CertificateFolder, mode: str = "enforcing") -> dict[str, str]:
    """Return the settings of TLS with a new certificate."""
    keys = folder.issue()
    return {
        "tls.server.mode": mode,
        "tls.server.certPath": keys.certificate,
        "tls.server.keyPath": keys.key,
        "tls.client.trustCertPath": folder.root,
    }


def secret_key(root: Path) -> dict[str, str]:
    """Write a key that encrypts passwords, and return the setting that names it."""
    key = root / "secret.key"
    root.mkdir(parents=True, exist_ok=True)
    key.write_text("5a" * 32)
    key.chmod(0o600)
    return {"authSecretKeyFile": str(key)}


def broker_values(root: Path, **more: object) -> dict[str, str]:
    """Return the settings of a small broker on this machine."""
    values: dict[str, object] = {
        "storePathRootDir": root / "store",
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "haListenPort": 0,
        "mappedFileSizeCommitLog": 4 * 1024 * 1024,
        "maxMessageSize": 3_600_000,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
        "haSendHeartbeatInterval": 200,
        "haHousekeepingInterval": 2000,
    }
    return {key: str(value) for key, value in (values | more).items()}


@contextlib.asynccontextmanager
async def running(*servers: BrokerServer) -> AsyncIterator[None]:
    """Run brokers, the last of which stops first."""
    async with contextlib.AsyncExitStack() as stack:
        for server in servers:
            await server.start()
            stack.push_async_callback(server.stop)
        yield


@contextlib.asynccontextmanager
async def name_server(root: Path, values: dict[str, str]) -> AsyncIterator[str]:
    """Run a name server with these settings; yields its address."""
    own = {
        "bindAddress": "127.0.0.1",
        "listenPort": "0",
        "kvConfigPath": str(root / "kv.json"),
        "authConfigPath": str(root / "namesrv"),
    }
    server = NameServer(build(NamesrvConfig, values | own), tls=values)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


async def ok(client: Caller, port: int, code: int, body: bytes = b"", **fields: object) -> Command:
    """Make a request that succeeds."""
    answer = await client.ask(port, code, body, **fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return answer


async def make_user(client: Caller, port: int, keys: Credentials) -> None:
    """Create a user."""
    info = json.dumps({"username": keys.access_key, "password": keys.secret_key}).encode()
    await ok(client, port, Code.AUTH_CREATE_USER, info, username=keys.access_key)


async def allow(
    client: Caller,
    port: int,
    keys: Credentials,
    resource: str,
    *actions: str,
    sources: Sequence[str] = (),
) -> None:
    """Create a rule."""
    entry = {
        "resource": resource, "actions": actions, "decision": "Allow", "sourceIps": sources
    }  # fmt: skip
    subject = f"User:{keys.access_key}"
    body = json.dumps({"subject": subject, "policies": [{"entries": [entry]}]}).encode()
    await ok(client, port, Code.AUTH_CREATE_ACL, body, subject=subject)


class Caller:
    """A client that signs, over TLS if it trusts an authority.

    Args:
        keys: The keys to sign with; None to sign nothing.
        trusted: File of the authority; empty for plain connections.
        own: The client's certificate, if it has one.
    """

    def __init__(
        self,
        keys: Credentials | None = ROOT,
        trusted: str = "",
        own: KeyPair | None = None,
    ) -> None:
        own = own or KeyPair(certificate="")
        tls = ClientTls(trusted=trusted, certificate=own.certificate, key=own.key)
        self._connector = Connector(
            on_request=lambda connection, command: None,
            sign=keys.sign if keys is not None else None,
            tls=ClientContext(tls) if trusted else None,
        )

    async def ask(self, port: int, code: int, body: bytes = b"", **fields: object) -> Command:
        """Make a request and return the answer, whatever its code."""
        connection = await self._connector.connect(f"127.0.0.1:{port}")
        texts = {name: str(value) for name, value in fields.items()}
        return await connection.request(code, fields=texts, body=body, timeout=30)

    async def send(self, port: int, body: bytes, topic: str = "T") -> Command:
        """Send a message."""
        return await self.ask(
            port, Code.SEND_MESSAGE, body, producerGroup="P", topic=topic, defaultTopic="TBW102",
            defaultTopicQueueNums=1, queueId=0, sysFlag=0, bornTimestamp=1, flag=0,
        )  # fmt: skip

    async def close(self) -> None:
        """Close the connections."""
        await self._connector.close()


@contextlib.asynccontextmanager
async def caller(
    keys: Credentials | None = ROOT, trusted: str = "", own: KeyPair | None = None
) -> AsyncIterator[Caller]:
    """Return a client that is closed in the end."""
    made = Caller(keys, trusted, own)
    try:
        yield made
    finally:
        await made.close()
