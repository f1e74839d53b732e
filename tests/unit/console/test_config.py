"""A console that others can reach must protect its users."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.console.config import ConsoleConfig, is_loopback
from rocketpost.errors import ConfigError

NS = ("127.0.0.1:9876",)


def test_elsewhere_needs_tls_and_a_user() -> None:
    with pytest.raises(ConfigError, match="in the clear"):
        ConsoleConfig(clusters=NS, host="0.0.0.0").check_reachable(has_users=True)
    proxied = ConsoleConfig(clusters=NS, host="10.0.0.1", proxy_url="https://mq.example")
    with pytest.raises(ConfigError, match="no user yet"):
        proxied.check_reachable(has_users=False)
    proxied.check_reachable(has_users=True)
    assert proxied.is_encrypted
    assert proxied.session_cookie.startswith("__Host-")
    ConsoleConfig(clusters=NS).check_reachable(has_users=False)


def test_settings_that_do_not_fit_are_refused() -> None:
    for options in (
        {"clusters": ()},
        {"clusters": (" ",)},
        {"clusters": NS, "certificate": Path("cert.pem")},
        {"clusters": NS, "proxy_url": "mq.example"},
        {"clusters": NS, "masks": ("Orders",)},
    ):
        with pytest.raises(ConfigError):
            ConsoleConfig(**options)


def test_only_known_names_of_the_host_are_served() -> None:
    config = ConsoleConfig(clusters=NS, proxy_url="https://MQ.example/x", allowed_hosts=("mq",))
    names = config.host_names(8088)
    assert {"127.0.0.1:8088", "localhost:8088", "[::1]:8088", "mq.example", "mq"} <= names
    assert "evil.example:8088" not in names
    assert "localhost" in ConsoleConfig(clusters=NS).host_names(80)


def test_loopback_is_recognized() -> None:
    assert is_loopback("localhost")
    assert is_loopback("127.1.2.3")
    assert not is_loopback("10.0.0.1")
    assert not is_loopback("example.org")


def test_the_address_to_open() -> None:
    assert ConsoleConfig(clusters=NS).url(1) == "http://127.0.0.1:1"
    assert ConsoleConfig(clusters=NS, host="::1").url(1) == "http://[::1]:1"
    assert ConsoleConfig(clusters=NS, proxy_url="https://a/b/").url(1) == "https://a/b"
