from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.client import tls
from rocketpost.client.tls import environment_tls_blocking, read_tls_file_blocking
from rocketpost.errors import ConfigError
from rocketpost.transport.tls_contexts import ClientTls


@pytest.fixture(autouse=True)
def _no_default_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "DEFAULT_FILE", str(tmp_path / "absent"))
    monkeypatch.delenv("ROCKETMQ_TLS_ENABLE", raising=False)
    monkeypatch.delenv("ROCKETMQ_TLS_CONFIG_FILE", raising=False)


def test_a_file_with_rocketmqs_keys(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text(
        "tls.server.certPath=/ignored.pem\n"
        "tls.client.trustCertPath=/ca.pem\ntls.client.certPath=/me.pem\n"
        "tls.client.keyPath=/me.key\ntls.client.keyPassword=secret\n"
        "tls.client.checkHostName=false\ntls.protocols=TLSv1.2, TLSv1.3\ntls.ciphers=A,B\n"
    )
    found = read_tls_file_blocking(str(file))
    assert found == ClientTls(
        trusted="/ca.pem",
        certificate="/me.pem",
        key="/me.key",
        key_password="secret",
        check_host=False,
        versions=("TLSv1.2", "TLSv1.3"),
        ciphers="A:B",
    )
    assert "secret" not in repr(found)


def test_the_environment_turns_tls_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment_tls_blocking() is None
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "false")
    assert environment_tls_blocking() is None
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "true")
    assert environment_tls_blocking() == ClientTls()
    file = tmp_path / "tls.properties"
    file.write_text("tls.client.authServer=false\n")
    monkeypatch.setenv("ROCKETMQ_TLS_CONFIG_FILE", str(file))
    assert environment_tls_blocking() == ClientTls(check_server=False)
    monkeypatch.setenv("ROCKETMQ_TLS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ConfigError, match="cannot read the TLS settings /nowhere"):
        environment_tls_blocking()
    monkeypatch.setenv("ROCKETMQ_TLS_ENABLE", "yes")
    with pytest.raises(ConfigError, match="true or false"):
        environment_tls_blocking()


def test_a_key_needs_its_certificate() -> None:
    with pytest.raises(ConfigError, match="needs its certificate"):
        ClientTls(key="/me.key")


def test_names_are_told_and_checked() -> None:
    assert ClientTls().server_name("10.0.0.1") == "10.0.0.1"
    assert ClientTls(check_host=False).server_name("10.0.0.1") is None
    assert ClientTls(check_host=False).server_name("broker") == "broker"
