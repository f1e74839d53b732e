"""Settings of TLS and of PROXY headers, by RocketMQ's keys, for brokers and name servers alike.

RocketMQ reads these keys from properties of the JVM and from the file that ``tls.config.file``
names, where the file counts. Here they stand in ``broker.conf`` or ``namesrv.conf``, or in that
file. RocketMQ is careless in three cases, and this code is not: an unknown mode does not mean
permissive, no certificate is invented unless ``tls.test.mode.enable`` asks for it, and client
certificates that are asked for are checked (ADR 0171).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketpost.client.tls import DEFAULT_FILE, TlsClientKeys, split_names
from rocketpost.errors import ConfigError
from rocketpost.server.settings.certificate_users import NOBODY, CertificateUsers, parse_user_rules
from rocketpost.server.settings.networks import parse_networks
from rocketpost.settings import build, keys_of, option, parse_properties, reject_unknown
from rocketpost.transport.entrance import Network, TlsMode
from rocketpost.transport.tls_contexts import (
    ClientCertificates,
    ClientTls,
    KeyPair,
    ServerTls,
    TlsRules,
)

_FILE_KEY: Final = "tls.config.file"
_NOT_IN_FILE: Final = (_FILE_KEY, "tls.server.mode", "tls.enable", "proxyProtocolTrusted")
_RELOAD_MS_MAX: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig(TlsClientKeys):
    """Settings of TLS and PROXY headers, as a properties file has them."""

    mode: str = option("tls.server.mode", "", important=True)
    file: str = option(_FILE_KEY, "")
    server_key: str = option("tls.server.keyPath", "")
    server_key_password: str = option("tls.server.keyPassword", "", secret=True)
    server_certificate: str = option("tls.server.certPath", "", important=True)
    need_client_auth: str = option("tls.server.need.client.auth", "none")
    auth_client: bool = option("tls.server.authClient", True)
    server_trusted: str = option("tls.server.trustCertPath", "")
    user_rules: str = option("tls.server.userRules", "")
    enable: bool | None = option("tls.enable", None)
    reload_ms: int = option("tls.reload.interval", 1000)
    proxies: str = option("proxyProtocolTrusted", "")

    def __post_init__(self) -> None:
        if not 0 < self.reload_ms <= _RELOAD_MS_MAX:
            raise ConfigError(
                f"tls.reload.interval={self.reload_ms} must be between 1 and {_RELOAD_MS_MAX}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of a server, checked.

    Attributes:
        mode: The kinds of connections that it accepts.
        server: Its certificate; None if TLS is disabled, or if it is a test certificate.
        is_test: Whether it makes a certificate for tests.
        users: The rules by which certificates of clients stand for users.
        client: TLS of its own connections to other servers; None if they are plain.
        reload_seconds: Time between two looks at the files.
        proxies: Networks that must send PROXY headers.
    """

    mode: TlsMode = TlsMode.DISABLED
    server: ServerTls | None = None
    is_test: bool = False
    users: CertificateUsers = NOBODY
    client: ClientTls | None = None
    reload_seconds: float = 1.0
    proxies: tuple[Network, ...] = ()

    @property
    def certifies_clients(self) -> bool:
        """Whether only clients with a certificate of a trusted authority get in."""
        return (
            self.mode is TlsMode.ENFORCING
            and self.server is not None
            and self.server.client_certificates is ClientCertificates.REQUIRE
        )


def tls_settings_blocking(values: Mapping[str, str]) -> TlsSettings:
    """Return the settings in a server's properties and in the file that these name.

    Keys of other classes are ignored.

    Raises:
        ConfigError: A value cannot be honoured; the text names its key.
    """
    config = build(TlsConfig, with_file_blocking(values))
    mode = _mode(config)
    server = _server(config) if config.server_certificate else None
    if mode is not TlsMode.DISABLED and server is None and not config.test_mode:
        raise ConfigError(
            f"tls.server.mode={mode.value} needs a certificate: set tls.server.certPath and "
            "tls.server.keyPath; `rocketpost secure init` makes both"
        )
    if config.test_mode and server is not None:
        raise ConfigError(
            "tls.test.mode.enable=true invents a certificate, but tls.server.certPath names one: "
            "remove one of the two"
        )
    users = CertificateUsers(parse_user_rules(config.user_rules))
    if users and (server is None or server.client_certificates is ClientCertificates.NONE):
        raise ConfigError(
            "tls.server.userRules has no effect without client certificates: set "
            "tls.server.need.client.auth to optional or require, and tls.server.trustCertPath"
        )
    is_client = mode is TlsMode.ENFORCING if config.enable is None else config.enable
    return TlsSettings(
        mode=mode,
        server=server,
        is_test=config.test_mode and mode is not TlsMode.DISABLED,
        users=users,
        client=config.client_tls if is_client else None,
        reload_seconds=config.reload_ms / 1000,
        proxies=parse_networks("proxyProtocolTrusted", config.proxies),
    )


def with_file_blocking(values: Mapping[str, str]) -> dict[str, str]:
    """Return properties with those of the file that ``tls.config.file`` names, which count more.

    Raises:
        ConfigError: The file cannot be read, or has other keys.
    """
    named = values.get(_FILE_KEY, "").strip()
    path = os.path.expanduser(named or DEFAULT_FILE)
    try:
        with open(path, encoding="utf-8-sig") as file:
            found = parse_properties(file.read())
    except FileNotFoundError:
        if named:
            raise ConfigError(f"{_FILE_KEY}={path} does not exist") from None
        return dict(values)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    for key in sorted(set(found) & set(_NOT_IN_FILE)):
        raise ConfigError(f"{path} has {key}, which belongs in the server's own settings")
    try:
        reject_unknown(found, keys_of(TlsConfig))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    return {**values, **found}


def _mode(config: TlsConfig) -> TlsMode:
    if not config.mode:
        has_keys = bool(config.server_certificate) or config.test_mode
        return TlsMode.PERMISSIVE if has_keys else TlsMode.DISABLED
    try:
        return TlsMode(config.mode)
    except ValueError:
        names = ", ".join(mode.value for mode in TlsMode)
        raise ConfigError(
            f"tls.server.mode={config.mode} is not valid: it must be {names}"
        ) from None


def _server(config: TlsConfig) -> ServerTls:
    wanted = config.need_client_auth.lower()
    try:
        clients = ClientCertificates(wanted)
    except ValueError:
        raise ConfigError(
            f"tls.server.need.client.auth={config.need_client_auth} is not valid: it must be none, "
            "optional or require"
        ) from None
    if clients is not ClientCertificates.NONE and not config.auth_client:
        raise ConfigError(
            f"tls.server.need.client.auth={wanted} with tls.server.authClient=false would accept "
            "every certificate, also one that a stranger made: remove tls.server.authClient"
        )
    if clients is not ClientCertificates.NONE and not config.server_trusted:
        raise ConfigError(
            f"tls.server.need.client.auth={wanted} needs tls.server.trustCertPath: the roots of "
            "the certificates that clients may have"
        )
    return ServerTls(
        keys=KeyPair(
            certificate=_path(config.server_certificate),
            key=_path(config.server_key),
            password=config.server_key_password,
        ),
        client_certificates=clients,
        trusted=_path(config.server_trusted),
        rules=TlsRules(
            ciphers=":".join(split_names(config.ciphers)), versions=split_names(config.protocols)
        ),
    )


def _path(text: str) -> str:
    return os.path.expanduser(text)
