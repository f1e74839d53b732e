from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.secure.certificates import open_security_blocking
from rocketpost.server.secure.first_cluster import issue_client_blocking, make_cluster_blocking
from rocketpost.settings import parse_properties
from rocketpost.transport.entrance import TlsMode
from rocketpost.transport.tls_contexts import ClientCertificates


def test_all_files_fit_together(tmp_path: Path) -> None:
    paths = make_cluster_blocking(tmp_path / "made", hosts=["broker.shop", "10.0.0.5"])
    for name in ("broker.conf", "namesrv.conf"):
        values = parse_properties((tmp_path / "made" / name).read_text())
        security = open_security_blocking(values)
        assert security.settings.mode is TlsMode.ENFORCING
        assert security.settings.server is not None
        assert security.settings.server.client_certificates is ClientCertificates.REQUIRE
        assert security.client is not None
    for path in paths:
        if path.suffix != ".pem":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_authority_is_never_replaced(tmp_path: Path) -> None:
    make_cluster_blocking(tmp_path)
    before = (tmp_path / "ca.key").read_bytes()
    with pytest.raises(ConfigError, match="has an authority already"):
        make_cluster_blocking(tmp_path)
    assert (tmp_path / "ca.key").read_bytes() == before


@pytest.mark.parametrize("host", ["", "a b", "a/b", "*.shop"])
def test_other_texts_are_no_hosts(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="is not a host name"):
        make_cluster_blocking(tmp_path / "none", hosts=[host])
    assert not (tmp_path / "none").exists()


def test_a_client_gets_a_certificate_of_its_own(tmp_path: Path) -> None:
    make_cluster_blocking(tmp_path)
    certificate, key = issue_client_blocking(tmp_path, "orders")
    assert (certificate.name, key.name) == ("orders.pem", "orders.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for taken in ("orders", "ca", "server"):
        with pytest.raises(ConfigError, match="exists already"):
            issue_client_blocking(tmp_path, taken)
    for name in ("", "../x", "a b"):
        with pytest.raises(ConfigError, match="is not the name of a user"):
            issue_client_blocking(tmp_path, name)
    with pytest.raises(ConfigError, match="authority"):
        issue_client_blocking(tmp_path / "nowhere", "orders")
