from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from rocketpost.errors import ConfigError
from rocketpost.server.settings import tls
from rocketpost.server.settings.tls import TlsSettings, tls_settings_blocking
from rocketpost.transport.entrance import TlsMode

KEYS = {"tls.server.certPath": "/c.pem", "tls.server.keyPath": "/k.pem"}


@pytest.fixture(autouse=True)
def _no_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "DEFAULT_FILE", str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        ({}, TlsMode.DISABLED),
        (KEYS, TlsMode.PERMISSIVE),
        ({"tls.test.mode.enable": "true"}, TlsMode.PERMISSIVE),
        (KEYS | {"tls.server.mode": "disabled"}, TlsMode.DISABLED),
        (KEYS | {"tls.server.mode": "enforcing"}, TlsMode.ENFORCING),
    ],
)
def test_modes(values: dict[str, str], mode: TlsMode) -> None:
    assert tls_settings_blocking(values).mode is mode


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tls.server.mode": "ENFORCING"} | KEYS, "it must be disabled, permissive, enforcing"),
        ({"tls.server.mode": "enforced"} | KEYS, "it must be disabled, permissive, enforcing"),
        ({"tls.server.mode": "permissive"}, "needs a certificate"),
        ({"tls.server.mode": "enforcing"}, "needs a certificate"),
        (KEYS | {"tls.test.mode.enable": "true"}, "remove one of the two"),
        (KEYS | {"tls.server.need.client.auth": "required"}, "none, optional or require"),
        (KEYS | {"tls.server.need.client.auth": "require"}, "needs tls.server.trustCertPath"),
        (
            KEYS | {"tls.server.need.client.auth": "require", "tls.server.authClient": "false"},
            "would accept every certificate",
        ),
        (KEYS | {"tls.server.userRules": "CN"}, "has no effect without client certificates"),
        (KEYS | {"tls.reload.interval": "0"}, "must be between"),
        ({"proxyProtocolTrusted": "10.0.0.1/8"}, "is not an address or a network"),
        ({"tls.config.file": "/nowhere/tls.properties"}, "does not exist"),
    ],
)
def test_settings_that_would_not_protect_are_refused(values: dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        tls_settings_blocking(values)


def test_own_connections_use_tls_as_the_port_does() -> None:
    assert tls_settings_blocking(KEYS).client is None
    enforcing = tls_settings_blocking(KEYS | {"tls.server.mode": "enforcing"})
    assert enforcing.client is not None
    assert enforcing.client.check_server
    off = KEYS | {"tls.server.mode": "enforcing", "tls.enable": "false"}
    assert tls_settings_blocking(off).client is None
    assert tls_settings_blocking({"tls.enable": "true"}).client is not None


def test_the_file_counts_more(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("tls.server.certPath=/new.pem\ntls.client.authServer=false\n")
    found = tls_settings_blocking(KEYS | {"tls.config.file": str(file), "tls.enable": "true"})
    assert found.server is not None
    assert found.server.keys.certificate == "/new.pem"
    assert found.server.keys.key == "/k.pem"
    assert found.client is not None
    assert not found.client.check_server


@pytest.mark.parametrize("line", ["tls.server.mode=enforcing", "tls.enable=true", "tls.sever.x=1"])
def test_the_file_has_only_its_own_keys(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(line)
    with pytest.raises(ConfigError, match="tls"):
        tls_settings_blocking({"tls.config.file": str(file)})


def test_networks_of_load_balancers() -> None:
    found = tls_settings_blocking({"proxyProtocolTrusted": "10.0.0.0/8; 192.0.2.1,2001:db8::/32"})
    assert found.proxies == (
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_network("192.0.2.1"),
        ipaddress.ip_network("2001:db8::/32"),
    )


def test_passwords_are_not_shown() -> None:
    values = KEYS | {"tls.server.keyPassword": "hunter2", "tls.client.keyPassword": "hunter2"}
    found = tls_settings_blocking(values | {"tls.enable": "true"})
    assert isinstance(found, TlsSettings)
    assert "hunter2" not in repr(found)
