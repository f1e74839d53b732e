"""Users by certificate, and the names of brokers at a name server that checks users."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.client.credentials import Credentials
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.server.broker import BrokerServer
from rocketpost.testing.secure.certificates import CertificateFolder

from .secured import (
    GUARDED,
    ROOT,
    allow,
    broker_values,
    caller,
    make_user,
    name_server,
    ok,
    running,
)

NORM = Credentials("norm", "norm-secret")
DENIED = ResponseCode.NO_PERMISSION


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


def mutual_tls(folder: CertificateFolder, need: str) -> dict[str, str]:
    """Return settings by which the common name of a certificate is a user."""
    keys = folder.issue("servers", "localhost", "127.0.0.1")
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": keys.certificate,
        "tls.server.keyPath": keys.key,
        "tls.server.need.client.auth": need,
        "tls.server.trustCertPath": folder.root,
        "tls.server.userRules": "CN",
        "tls.client.trustCertPath": folder.root,
        "tls.client.certPath": keys.certificate,
        "tls.client.keyPath": keys.key,
    }


@pytest.mark.parametrize("need", ["require", "optional"])
async def test_a_certificate_is_a_login(
    folder: CertificateFolder, tmp_path: Path, need: str
) -> None:
    values = GUARDED | mutual_tls(folder, need)
    of_norm, of_root, of_ghost = (
        folder.issue(name, is_server=False) for name in ("norm", "root", "ghost")
    )
    async with (
        name_server(tmp_path, values) as names,
        caller(None, folder.root, of_root) as root,
        caller(None, folder.root, of_norm) as norm,
        caller(NORM, folder.root, of_norm) as signing,
        caller(None, folder.root, of_ghost) as ghost,
        caller(ROOT, folder.root, of_norm) as liar,
        caller(Credentials("norm", "guessed"), folder.root, of_norm) as guessing,
    ):
        server = BrokerServer(broker_values(tmp_path, namesrvAddr=names, **values))
        async with running(server):
            assert not server.unregistered, "the broker has registered by its own certificate"
            port = server.port
            assert (await norm.send(port, b"no such user yet")).code == DENIED
            await make_user(root, port, NORM)
            assert (await norm.send(port, b"no right yet")).code == DENIED
            await allow(root, port, NORM, "Topic:T", "Pub")
            for client in (norm, signing):
                assert (await client.send(port, b"allowed")).code == ResponseCode.SUCCESS
                assert (await client.send(port, b"x", topic="Other")).code == DENIED
            for client in (ghost, liar, guessing):
                refused = await client.send(port, b"refused")
                assert refused.code == DENIED
                assert "check signature failed" in (refused.remark or "")
            disable = b'{"userStatus":"disable"}'
            await ok(root, port, Code.AUTH_UPDATE_USER, disable, username="norm")
            assert (await norm.send(port, b"disabled")).code == DENIED


async def test_without_a_certificate_a_signature_counts(
    folder: CertificateFolder, tmp_path: Path
) -> None:
    values = GUARDED | mutual_tls(folder, "optional")
    async with caller(ROOT, folder.root) as root, caller(None, folder.root) as nobody:
        server = BrokerServer(broker_values(tmp_path, **values))
        async with running(server):
            assert (await root.send(server.port, b"signed")).code == ResponseCode.SUCCESS
            assert (await nobody.send(server.port, b"neither")).code == DENIED


async def test_a_broker_name_belongs_to_the_user_that_registered_it(tmp_path: Path) -> None:
    ours, theirs = Credentials("ours", "our-secret"), Credentials("theirs", "their-secret")

    def login(keys: Credentials) -> dict[str, str]:
        text = f'{{"accessKey":"{keys.access_key}","secretKey":"{keys.secret_key}"}}'
        return {"innerClientAuthenticationCredentials": text}

    async with name_server(tmp_path, GUARDED) as names, caller() as root:
        at = int(names.rpartition(":")[2])
        for keys in (ours, theirs):
            await make_user(root, at, keys)
            await allow(root, at, keys, "Cluster:DefaultCluster", "Update")
        first = BrokerServer(broker_values(tmp_path / "a", namesrvAddr=names, **login(ours)))
        own = {"namesrvAddr": names, "brokerId": 1, "brokerRole": "SLAVE"}
        second = BrokerServer(broker_values(tmp_path / "b", **own, **login(theirs)))
        other = BrokerServer(
            broker_values(tmp_path / "c", namesrvAddr=names, **login(theirs), brokerName="other")
        )
        async with running(first, other):
            assert not first.unregistered
            assert not other.unregistered
            async with running(second):
                assert second.unregistered == [names]
                info = bytes((await ok(root, at, Code.GET_BROKER_CLUSTER_INFO)).body)
                assert first.address.encode() in info
                assert second.address.encode() not in info
