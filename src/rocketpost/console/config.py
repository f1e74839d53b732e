"""Settings of the console, and the conditions under which it may be reached from elsewhere."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from rocketpost.errors import ConfigError

PORT: Final = 8088
_LOCAL_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """Settings of a console.

    Attributes:
        clusters: The name servers of each cluster, ``host:port;host:port``.
        host: The address to listen on.
        port: The port; 0 for a free one.
        state: The directory of users and of the audit log.
        certificate: A file with the certificate for TLS.
        key: A file with its private key.
        proxy_url: The address at which users reach a proxy in front of the console.
        allowed_hosts: More names by which browsers may call the console.
        read_only: Whether nothing can be changed, even by administrators.
        masks: Rules ``topic:field.field`` of JSON members of bodies that are not shown.
    """

    clusters: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = PORT
    state: Path = field(default_factory=lambda: default_state())
    certificate: Path | None = None
    key: Path | None = None
    proxy_url: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    read_only: bool = False
    masks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.clusters or not all(each.strip(" ;") for each in self.clusters):
            raise ConfigError("no name server is known: pass -n host:port or set NAMESRV_ADDR")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--tls-cert and --tls-key must be given together")
        if self.proxy_url is not None and urlsplit(self.proxy_url).scheme not in ("http", "https"):
            raise ConfigError(
                "--behind-proxy takes the URL that users open, such as https://mq.example"
            )
        for rule in self.masks:
            topic, _, path = rule.partition(":")
            if not topic or not path:
                raise ConfigError(f"--mask {rule}: a rule is TOPIC:FIELD or TOPIC:FIELD.FIELD")

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine can reach the console."""
        return is_loopback(self.host)

    @property
    def is_encrypted(self) -> bool:
        """Whether browsers reach the console by https."""
        proxy = self.proxy_url is not None and urlsplit(self.proxy_url).scheme == "https"
        return self.certificate is not None or proxy

    @property
    def session_cookie(self) -> str:
        """Name of the session's cookie; browsers bind ``__Host-`` to this host and to https."""
        return "__Host-rocketpost" if self.is_encrypted else "rocketpost_session"

    def check_reachable(self, *, has_users: bool) -> None:
        """Check that a console that others can reach protects its users.

        Raises:
            ConfigError: It would not protect them; the text says what is missing.
        """
        if self.is_local:
            return
        if self.certificate is None and self.proxy_url is None:
            raise ConfigError(
                f"passwords would cross the network in the clear: to listen on {self.host}, pass "
                "--tls-cert and --tls-key, or --behind-proxy URL if a proxy does TLS"
            )
        if not has_users:
            raise ConfigError(
                f"there is no user yet, so the first caller on {self.host} could become one: start "
                "the console on 127.0.0.1 once and make the first user"
            )

    def host_names(self, port: int) -> frozenset[str]:
        """Return the values of ``Host`` that are served; others may be tricks of foreign pages."""
        names = {f"{_bracket(name)}:{port}" for name in {*_LOCAL_NAMES, self.host}}
        if port in (80, 443):
            names |= {_bracket(name) for name in _LOCAL_NAMES}
        if self.proxy_url is not None:
            names.add(urlsplit(self.proxy_url).netloc)
        for name in self.allowed_hosts:
            names |= {name, f"{name}:{port}"}
        return frozenset(each.lower() for each in names)

    def url(self, port: int) -> str:
        """Return the address to open."""
        if self.proxy_url is not None:
            return self.proxy_url.rstrip("/")
        host = "localhost" if self.host in ("0.0.0.0", "::") else self.host
        return f"{'https' if self.certificate else 'http'}://{_bracket(host)}:{port}"


def default_state() -> Path:
    """Return the directory for a user's own state, by the XDG convention."""
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "rocketpost" / "console"


def is_loopback(host: str) -> bool:
    """Tell whether an address stands for this machine."""
    if host in _LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host
