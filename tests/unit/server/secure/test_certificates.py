"""Certificates of a server, tried by handshakes in memory: every setting changes an outcome."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.command import ONEWAY, encode_command
from rocketpost.errors import ConfigError
from rocketpost.server.secure.certificates import PortSecurity, open_security_blocking
from rocketpost.server.settings import tls
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.testing.secure.memory_transport import MemoryTransport, exchange
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import until
from rocketpost.transport.connection import Connection
from rocketpost.transport.entrance import Entrance
from rocketpost.transport.tls_contexts import ClientTls
from rocketpost.transport.tls_layer import CipherInbox, TlsLayer

FRAME = encode_command(10, opaque=7, flag=ONEWAY, body_bytes=5) + b"hello"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def _no_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "DEFAULT_FILE", str(tmp_path / "absent"))


@pytest.fixture
def keys(folder: CertificateFolder) -> dict[str, str]:
    pair = folder.issue()
    return {"tls.server.certPath": pair.certificate, "tls.server.keyPath": pair.key}


class Visit:
    """One client at a port, and the requests of it that were served."""

    def __init__(
        self, security: PortSecurity, client: ClientTls | None, *, host: str = "10.0.0.7"
    ) -> None:
        self.made: list[Connection] = []
        self.served = 0
        self.failures: list[str] = []
        entrance = Entrance(
            security.entrance,
            lambda: Connection(on_request=self._serve, on_made=self.made.append),
        )
        self._server = MemoryTransport(entrance.admit(), peer=(host, 1)).connect()
        if client is None:
            self._server.deliver(FRAME)
            return
        connection = Connection(on_request=lambda connection, command: None)
        self.layer = TlsLayer(
            client.make_context_blocking(),
            connection,
            inbox=CipherInbox(4096),
            server_side=False,
            server_name=client.server_name("127.0.0.1"),
            on_secure=lambda layer: None,
            on_failed=lambda layer, reason: self.failures.append(reason),
        )
        transport = MemoryTransport(self.layer).connect()
        exchange(transport, self._server)
        if connection.is_open:
            connection.send_at_once([FRAME])
            exchange(transport, self._server)

    def _serve(self, connection: Connection, command: object) -> None:
        self.served += 1

    @property
    def serial(self) -> str:
        certificate: Any = self.layer.tls.getpeercert()
        return str(certificate["serialNumber"])


def visit(values: dict[str, str], client: ClientTls | None, host: str = "10.0.0.7") -> Visit:
    return Visit(open_security_blocking(values), client, host=host)


async def test_the_mode_decides_who_is_served(
    folder: CertificateFolder, keys: dict[str, str]
) -> None:
    client = ClientTls(trusted=folder.root)
    assert visit(keys, client).served == visit(keys, None).served == 1
    enforcing = keys | {"tls.server.mode": "enforcing"}
    assert visit(enforcing, client).served == 1
    assert visit(enforcing, None).served == 0
    assert not open_security_blocking(keys | {"tls.server.mode": "disabled"}).entrance.are_needed


async def test_settings_may_stand_in_a_file(
    folder: CertificateFolder, keys: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
    assert visit({"tls.config.file": str(file)}, ClientTls(trusted=folder.root)).served == 1


async def test_a_test_certificate_is_made_when_asked_for(folder: CertificateFolder) -> None:
    values = {"tls.test.mode.enable": "true"}
    assert visit(values, ClientTls(check_server=False)).served == 1
    assert visit(values, ClientTls(trusted=folder.root)).served == 0


def encrypt_key(path: str, password: str) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    Path(path).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(password.encode()),
        )
    )


async def test_a_key_may_have_a_password(folder: CertificateFolder, keys: dict[str, str]) -> None:
    encrypt_key(keys["tls.server.keyPath"], "secret")
    right = keys | {"tls.server.keyPassword": "secret"}
    assert visit(right, ClientTls(trusted=folder.root)).served == 1
    for password in ("", "wrong"):
        with pytest.raises(ConfigError, match="password is wrong or missing"):
            open_security_blocking(keys | {"tls.server.keyPassword": password})


async def test_missing_and_wrong_files_stop_the_start(
    folder: CertificateFolder, keys: dict[str, str], tmp_path: Path
) -> None:
    other = folder.issue()
    rubbish = tmp_path / "rubbish.pem"
    rubbish.write_text("no certificate")
    for change, reason in (
        ({"tls.server.keyPath": other.key}, "the key is not that of the certificate"),
        ({"tls.server.keyPath": "/nowhere.key"}, "cannot read /nowhere.key: No such file"),
        ({"tls.server.certPath": str(rubbish)}, "cannot be used"),
        ({"tls.server.keyPath": ""}, "cannot be used"),
        (
            {"tls.server.need.client.auth": "require", "tls.server.trustCertPath": str(rubbish)},
            "cannot be read",
        ),
        ({"tls.enable": "true", "tls.client.trustCertPath": "/nowhere.pem"}, "cannot read"),
        ({"tls.ciphers": "NO-SUCH-CIPHER"}, r"tls\.ciphers"),
        ({"tls.protocols": "TLSv1.1"}, r"tls\.protocols"),
    ):
        with pytest.raises(ConfigError, match=reason):
            open_security_blocking(keys | change)


async def test_ciphers_and_protocols(folder: CertificateFolder, keys: dict[str, str]) -> None:
    client = ClientTls(trusted=folder.root)
    assert visit(keys, client).layer.tls.version() == "TLSv1.3"
    old = keys | {"tls.protocols": "TLSv1.2", "tls.ciphers": "ECDHE-ECDSA-AES256-GCM-SHA384"}
    found = visit(old, client).layer.tls
    assert found.version() == "TLSv1.2"
    cipher = found.cipher()
    assert cipher is not None
    assert cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


async def test_clients_prove_who_they_are(
    folder: CertificateFolder, keys: dict[str, str], tmp_path: Path
) -> None:
    own = folder.issue("orders", is_server=False)
    client = ClientTls(trusted=folder.root, certificate=own.certificate, key=own.key)
    strange = CertificateFolder(tmp_path).issue("orders", is_server=False)
    stranger = ClientTls(trusted=folder.root, certificate=strange.certificate, key=strange.key)
    nobody = ClientTls(trusted=folder.root)
    asked = keys | {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": folder.root,
        "tls.server.userRules": "CN",
    }
    served = visit(asked, client)
    assert served.served == 1
    assert served.made[0].certificate_user == "orders"
    assert visit(asked, stranger).served == visit(asked, nobody).served == 0
    optional = asked | {"tls.server.need.client.auth": "optional"}
    assert visit(optional, nobody).made[0].certificate_user == ""
    assert visit(optional, stranger).served == 0
    unnamed = {key: value for key, value in asked.items() if key != "tls.server.userRules"}
    assert visit(unnamed, client).made[0].certificate_user == ""


async def test_own_connections(folder: CertificateFolder, keys: dict[str, str]) -> None:
    """Servers connect to each other with the keys of clients."""
    pair = folder.issue("broker", is_server=False)
    encrypt_key(pair.key, "secret")
    own = {
        "tls.enable": "true",
        "tls.client.certPath": pair.certificate,
        "tls.client.keyPath": pair.key,
        "tls.client.keyPassword": "secret",
        "tls.client.trustCertPath": folder.root,
    }
    asked = keys | {
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": folder.root,
    }

    def client_of(values: dict[str, str]) -> ClientTls:
        found = open_security_blocking(values).client
        assert found is not None
        return found.config

    assert visit(asked, client_of(own)).served == 1
    assert open_security_blocking(own | {"tls.enable": "false"}).client is None
    elsewhere = folder.issue("x", "other.host")
    other = keys | {
        "tls.server.certPath": elsewhere.certificate,
        "tls.server.keyPath": elsewhere.key,
    }
    assert visit(other, client_of(own)).served == 0
    assert visit(other, client_of(own | {"tls.client.checkHostName": "false"})).served == 1
    untrusted = own | {"tls.client.trustCertPath": ""}
    assert visit(keys, client_of(untrusted)).served == 0
    assert visit(keys, client_of(untrusted | {"tls.client.authServer": "false"})).served == 1


async def test_load_balancers_are_listed(keys: dict[str, str]) -> None:
    trusting = {"proxyProtocolTrusted": "10.0.0.0/24"}
    assert visit(trusting, None, "10.0.0.7").served == 0  # it sent no header
    assert visit(trusting, None, "10.0.1.7").served == 1


async def test_new_files_serve_the_next_connection(
    folder: CertificateFolder, keys: dict[str, str]
) -> None:
    security = open_security_blocking(keys)
    assert security.certificates is not None
    client = ClientTls(trusted=folder.root)
    serials = {Visit(security, client).serial}
    assert not await security.certificates.reload()
    fresh = folder.issue()
    for name, key in (("certificate", "certPath"), ("key", "keyPath")):
        assert len(serials) == 1  # until both are there, the old ones serve
        os.replace(getattr(fresh, name), keys[f"tls.server.{key}"])
        await security.certificates.reload()
        found = Visit(security, client)
        assert found.served == 1
        serials.add(found.serial)
        assert bool(security.certificates.problem) is (name == "certificate")
    assert len(serials) == 2
    assert security.certificates.reload_count == 1


async def test_files_are_watched(folder: CertificateFolder, keys: dict[str, str]) -> None:
    security = open_security_blocking(keys | {"tls.reload.interval": "1"})
    certificates = security.certificates
    assert certificates is not None
    security.start()
    fresh = folder.issue()
    os.replace(fresh.certificate, keys["tls.server.certPath"])
    os.replace(fresh.key, keys["tls.server.keyPath"])
    await until(lambda: certificates.reload_count >= 1)
    await security.stop()


@in_virtual_time
async def test_the_interval_of_looks_is_a_setting(keys: dict[str, str]) -> None:
    security = open_security_blocking(keys | {"tls.reload.interval": "5000"})
    certificates = security.certificates
    assert certificates is not None
    looks: list[float] = []

    async def look() -> bool:
        looks.append(asyncio.get_running_loop().time())
        return False

    certificates.reload = look  # type: ignore[method-assign]
    security.start()
    await asyncio.sleep(11)
    await security.stop()
    assert looks == [5.0, 10.0]
