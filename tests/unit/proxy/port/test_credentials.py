"""Certificates of the gRPC port. A fake library notes what it is given, and asks as the real one.

The last test gives the same to the real library, which refuses what it cannot read.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from rocketpost.errors import ConfigError
from rocketpost.proxy.port import credentials
from rocketpost.proxy.port.credentials import CertificateFiles, Pem
from rocketpost.testing.secure.certificates import CertificateFolder
from rocketpost.transport.tls_contexts import ClientCertificates, KeyPair, ServerTls

PASSWORD = "port-secret"


class Configuration(NamedTuple):
    """Key and certificate as the library takes them, and the roots of clients' certificates."""

    pairs: list[tuple[bytes, bytes]]
    roots: bytes | None


class Dynamic(NamedTuple):
    """Credentials that may change with each connection."""

    first: Configuration
    reread: Callable[[], Configuration | None]
    needs_client: bool


class FakeLibrary:
    """The functions of ``grpc`` that make credentials."""

    def ssl_server_credentials(self, pairs: list[tuple[bytes, bytes]]) -> Configuration:
        return Configuration(pairs, None)

    def ssl_server_certificate_configuration(
        self, pairs: list[tuple[bytes, bytes]], roots: bytes | None
    ) -> Configuration:
        return Configuration(pairs, roots)

    def dynamic_ssl_server_credentials(
        self,
        first: Configuration,
        reread: Callable[[], Configuration | None],
        needs_client: bool,
    ) -> Dynamic:
        return Dynamic(first, reread, needs_client)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    return CertificateFolder(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeLibrary:
    library = FakeLibrary()
    monkeypatch.setattr(credentials, "grpc", library)
    return library


def read(keys: KeyPair) -> tuple[bytes, bytes]:
    """Return the key and the certificate of a pair of files."""
    return Path(keys.key).read_bytes(), Path(keys.certificate).read_bytes()


def made(tls: ServerTls) -> Dynamic:
    found: Any = CertificateFiles(tls).make_blocking()
    assert isinstance(found, Dynamic)
    return found


def encrypted(key: bytes) -> bytes:
    return load_pem_private_key(key, None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD.encode())
    )


def numbers(key: bytes) -> object:
    """Return the numbers of a key without a password."""
    private: Any = load_pem_private_key(key, None)
    return private.private_numbers()


def test_a_certificate_in_memory_is_given_as_it_is(library: FakeLibrary) -> None:
    found: Any = Pem(b"key", b"certificate").make_blocking()
    assert found == Configuration([(b"key", b"certificate")], None)


@pytest.mark.parametrize("wanted", ClientCertificates)
def test_clients_need_a_certificate_only_if_it_is_required(
    library: FakeLibrary, folder: CertificateFolder, wanted: ClientCertificates
) -> None:
    keys = folder.issue()
    found = made(ServerTls(keys=keys, client_certificates=wanted, trusted=folder.root))
    is_required = wanted is ClientCertificates.REQUIRE
    assert found.first.pairs == [read(keys)]
    assert found.first.roots == (Path(folder.root).read_bytes() if is_required else None)
    assert found.needs_client is is_required


def test_files_are_read_again_when_they_change(
    library: FakeLibrary, folder: CertificateFolder, caplog: pytest.LogCaptureFixture
) -> None:
    keys = folder.issue()
    found = made(ServerTls(keys=keys))
    assert found.reread() is None
    before = read(keys)
    folder.replace(keys)
    assert read(keys) != before
    with caplog.at_level(logging.INFO):
        assert found.reread() == Configuration([read(keys)], None)
    assert f"certificate reloaded: file={keys.certificate}" in caplog.text
    assert found.reread() is None


def test_the_old_certificate_serves_until_the_files_fit_together(
    library: FakeLibrary, folder: CertificateFolder, caplog: pytest.LogCaptureFixture
) -> None:
    keys, other = folder.issue(), folder.issue()
    found = made(ServerTls(keys=keys))
    Path(other.certificate).replace(keys.certificate)
    assert found.reread() is None
    assert "not reloaded, the old one serves: reason=" in caplog.text
    assert "the key is not that of the certificate" in caplog.text
    caplog.clear()
    assert found.reread() is None
    assert caplog.text == ""  # the same files are complained of once
    Path(other.key).replace(keys.key)
    assert found.reread() == Configuration([read(keys)], None)


def test_the_library_gets_a_key_without_its_password(
    library: FakeLibrary, folder: CertificateFolder, tmp_path: Path
) -> None:
    keys = folder.issue()
    key, certificate = read(keys)
    path = tmp_path / "encrypted.key"
    path.write_bytes(encrypted(key))
    locked = KeyPair(certificate=keys.certificate, key=str(path), password=PASSWORD)
    [(given, beside)] = made(ServerTls(keys=locked)).first.pairs
    assert b"ENCRYPTED" not in given
    assert (numbers(given), beside) == (numbers(key), certificate)


@pytest.mark.parametrize("has_password", [False, True])
def test_a_key_may_be_in_the_file_of_its_certificate(
    library: FakeLibrary, folder: CertificateFolder, tmp_path: Path, has_password: bool
) -> None:
    key, certificate = read(folder.issue())
    path = tmp_path / "both.pem"
    path.write_bytes(certificate + (encrypted(key) if has_password else key))
    keys = KeyPair(certificate=str(path), password=PASSWORD if has_password else "")
    [(given, beside)] = made(ServerTls(keys=keys)).first.pairs
    assert beside == path.read_bytes()
    assert numbers(given) == numbers(key)


def test_the_password_of_a_key_that_needs_none_is_ignored(
    library: FakeLibrary, folder: CertificateFolder
) -> None:
    keys = folder.issue()
    named = KeyPair(certificate=keys.certificate, key=keys.key, password=PASSWORD)
    assert made(ServerTls(keys=named)).first.pairs == [read(keys)]


def test_files_that_cannot_be_used_are_explained(
    library: FakeLibrary, folder: CertificateFolder, tmp_path: Path
) -> None:
    keys = folder.issue()
    absent = str(tmp_path / "absent.pem")
    with pytest.raises(ConfigError, match=r"cannot read .*absent\.pem"):
        made(ServerTls(keys=KeyPair(certificate=absent, key=keys.key)))
    mixed = KeyPair(certificate=keys.certificate, key=folder.issue().key)
    with pytest.raises(ConfigError, match="the key is not that of the certificate"):
        made(ServerTls(keys=mixed))


def test_a_password_needs_the_package_that_reads_it(
    library: FakeLibrary,
    folder: CertificateFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = folder.issue()
    path = tmp_path / "encrypted.key"
    path.write_bytes(encrypted(read(keys)[0]))
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    locked = KeyPair(certificate=keys.certificate, key=str(path), password=PASSWORD)
    with pytest.raises(ConfigError, match=r"pip install 'rocketpost\[secure\]'"):
        made(ServerTls(keys=locked))


def test_the_real_library_takes_the_same(folder: CertificateFolder) -> None:
    keys = folder.issue()
    require = ClientCertificates.REQUIRE
    files = ServerTls(keys=keys, client_certificates=require, trusted=folder.root)
    assert isinstance(CertificateFiles(files).make_blocking(), credentials.grpc.ServerCredentials)
    assert isinstance(Pem(*read(keys)).make_blocking(), credentials.grpc.ServerCredentials)
