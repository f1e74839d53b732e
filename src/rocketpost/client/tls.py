"""TLS of clients and tools from a file with RocketMQ's keys, or from the environment.

``ROCKETMQ_TLS_ENABLE=true`` turns TLS on, as ``-Dtls.enable=true`` does for Java, and
``ROCKETMQ_TLS_CONFIG_FILE`` names the file, as ``-Dtls.config.file`` does. Unlike Java's client,
this one checks the server's chain and host name unless the file says otherwise.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketpost.client.config import ClientConfig
from rocketpost.errors import ConfigError
from rocketpost.settings import build, option, parse_properties
from rocketpost.transport.tls_contexts import ClientContext, ClientTls

ENABLE: Final = "ROCKETMQ_TLS_ENABLE"
FILE: Final = "ROCKETMQ_TLS_CONFIG_FILE"
DEFAULT_FILE: Final = "/etc/rocketmq/tls.properties"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsClientKeys:
    """The keys of a client in a properties file."""

    test_mode: bool = option("tls.test.mode.enable", False)
    client_key: str = option("tls.client.keyPath", "")
    client_key_password: str = option("tls.client.keyPassword", "", secret=True)
    client_certificate: str = option("tls.client.certPath", "")
    auth_server: bool = option("tls.client.authServer", True)
    check_host: bool = option("tls.client.checkHostName", True)
    client_trusted: str = option("tls.client.trustCertPath", "")
    ciphers: str = option("tls.ciphers", "")
    protocols: str = option("tls.protocols", "")

    @property
    def client_tls(self) -> ClientTls:
        """The TLS of a client with these keys."""
        return ClientTls(
            trusted=os.path.expanduser(self.client_trusted),
            certificate=os.path.expanduser(self.client_certificate),
            key=os.path.expanduser(self.client_key),
            key_password=self.client_key_password,
            check_server=self.auth_server and not self.test_mode,
            check_host=self.check_host,
            ciphers=":".join(split_names(self.ciphers)),
            versions=split_names(self.protocols),
        )


def client_context(config: ClientConfig) -> ClientContext | None:
    """Return the TLS of a client's connections; None for plain ones.

    Raises:
        ConfigError: A file of its settings cannot be used.
    """
    return ClientContext(config.tls) if config.tls is not None else None


def split_names(text: str) -> tuple[str, ...]:
    """Return the names in a list with commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def read_tls_file_blocking(path: str) -> ClientTls:
    """Return the TLS of a client from a file with RocketMQ's keys; those of servers are ignored.

    Raises:
        ConfigError: The file cannot be read, or a value is wrong.
    """
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the TLS settings {path}: {error}") from None
    return build(TlsClientKeys, parse_properties(text)).client_tls


def environment_tls_blocking() -> ClientTls | None:
    """Return the TLS that the environment asks for; None for plain connections.

    Raises:
        ConfigError: A variable or its file is wrong.
    """
    text = os.environ.get(ENABLE, "").strip().lower()
    if text not in ("", "true", "false"):
        raise ConfigError(f"{ENABLE}={text} is not valid: it must be true or false")
    if text != "true":
        return None
    path = environment_tls_file()
    return read_tls_file_blocking(path) if path else ClientTls()


def environment_tls_file() -> str:
    """Return the file with the TLS of clients, if there is one; else an empty text."""
    named = os.environ.get(FILE, "").strip()
    return named or (DEFAULT_FILE if os.path.exists(DEFAULT_FILE) else "")
