"""Access control of the proxy's port for remoting clients."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from integration.secured import (
    GUARDED,
    INNER,
    ROOT,
    broker_values,
    caller,
    name_server,
    ok,
    tls_values,
)
from rocketpost.client import ClientTls
from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.proxy.settings import read_proxy_settings
from rocketpost.server.broker import BrokerServer
from rocketpost.server.proxy.process import ProxyServer
from rocketpost.server.settings.access import Login
from rocketpost.testing.process import free_port
from rocketpost.testing.secure.certificates import CertificateFolder

pytestmark = pytest.mark.slow

DENIED = ResponseCode.NO_PERMISSION
STRANGERS = {
    "anonymous": None,
    "wrong secret": Credentials("root", "guessed"),
    "user of the proxy's certificate": Credentials("servers", "guessed"),
}


@contextlib.asynccontextmanager
async def proxied(root: Path, *, checks: bool) -> AsyncIterator[tuple[BrokerServer, int]]:
    """Run a cluster with TLS, client certificates and access control, and a proxy in front.

    Args:
        root: The directory for everything.
        checks: Whether the proxy checks users itself.
    """
    folder = CertificateFolder(root / "certificates")
    own = folder.issue("servers", is_server=False)
    tls = {
        **tls_values(folder),
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": folder.root,
        "tls.server.userRules": "CN",
        "tls.client.certPath": own.certificate,
        "tls.client.keyPath": own.key,
    }
    port = free_port()
    settings = {
        "grpcServerPort": 0,
        "remotingListenPort": port,
        "bindAddress": "127.0.0.1",
        "tlsServerMode": "disabled",
        "authenticationEnabled": checks,
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": INNER.access_key, "secretKey": INNER.secret_key}
        ),
    }
    async with name_server(root, {**GUARDED, **tls}) as names:
        broker = BrokerServer(broker_values(root, namesrvAddr=names, **GUARDED, **tls))
        await broker.start()
        settings["namesrvAddr"] = names
        login = Login(INNER.access_key, INNER.secret_key)
        certificate = ClientTls(trusted=folder.root, certificate=own.certificate, key=own.key)
        config = read_proxy_settings(json.dumps(settings))[0]
        proxy = ProxyServer(config, login=login, tls=certificate)
        await proxy.start()
        try:
            yield broker, port
        finally:
            await proxy.stop()
            await broker.stop()


@pytest.mark.parametrize("checks", [True, False])
async def test_nobody_is_taken_for_the_proxy(tmp_path: Path, checks: bool) -> None:
    async with proxied(tmp_path, checks=checks) as (broker, port):
        for kind, keys in STRANGERS.items():
            async with caller(keys) as client:
                for code in (
                    Code.GET_BROKER_CONFIG,
                    Code.AUTH_LIST_USER,
                    Code.GET_ROUTEINFO_BY_TOPIC,
                ):
                    answer = await client.ask(port, code, topic="T", bname="broker-a")
                    assert answer.code == DENIED, (kind, code, answer.remark)
        assert broker._context.access.table.user("evil") is None


async def test_users_who_sign_are_judged_by_the_broker(tmp_path: Path) -> None:
    async with proxied(tmp_path, checks=True) as (_, port), caller(INNER) as client:
        await ok(client, port, Code.GET_BROKER_CONFIG, bname="broker-a")
        async with caller(ROOT) as other:
            # The certificate of the proxy stands for another user.
            refused = await other.ask(port, Code.GET_BROKER_CONFIG, bname="broker-a")
            assert refused.code == DENIED
