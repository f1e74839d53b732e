"""The files of a small cluster with TLS and access control, made by one command.

    ca.pem, ca.key           the authority; keep the key elsewhere once all certificates are made
    server.pem, server.key   the certificate of all servers, which also use it as clients
    client.pem, client.key   a certificate of the user ``admin``, for tools
    secret.key               encrypts the passwords of users in the files of servers
    broker.conf              settings of a broker; ``rocketpost up -c`` and ``mqbroker -c`` read it
    namesrv.conf             the same for a name server of its own
    tls.properties           TLS of clients, for ``ROCKETMQ_TLS_CONFIG_FILE``
    conf/tools.yml           name and password of ``admin``, for ``ROCKETMQ_HOME`` of ``mqadmin``

Every server requires TLS, a certificate of the authority, and a user. The first one is ``admin``, a
super user with a password that was made up for it. Servers log in to each other as ``servers``.
Only the owner can read the files, but for certificates. No password is printed.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from rocketpost.errors import ConfigError
from rocketpost.server.secure.authority import Authority, write_private_blocking
from rocketpost.settings import format_properties

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
ADMIN: Final = "admin"
"""The first user, for whom the client's certificate stands."""
SERVERS: Final = "servers"
"""The user of servers, for whom their certificate stands."""
_PASSWORD_BYTES: Final = 24
_KEY_BYTES: Final = 32
_AUTHORITY: Final = "ca"
_SERVER: Final = "server"
_CLIENT: Final = "client"
_SECRET_KEY: Final = "secret.key"
_TOOLS: Final = "conf/tools.yml"


def make_cluster_blocking(
    directory: Path, *, hosts: Sequence[str] = (), name: str = "rocketpost"
) -> list[Path]:
    """Write all files of a cluster; return their paths.

    Args:
        directory: The directory, which must not have an authority yet.
        hosts: Names and addresses at which servers are reached, besides those of this machine only.
        name: The name of the authority.

    Raises:
        ConfigError: The directory cannot be used, or has an authority already.
    """
    for host in hosts:
        _check_host(host)
    directory = directory.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"cannot make {directory}: {error.strerror}") from None
    if (directory / f"{_AUTHORITY}.key").exists():
        raise ConfigError(
            f"{directory} has an authority already: choose another directory, or remove this one "
            "and every certificate of it"
        )
    authority = Authority.make(name)
    issued = {
        _AUTHORITY: authority.pem,
        _SERVER: authority.issue(SERVERS, hosts=dict.fromkeys((*LOOPBACK, *hosts))),
        _CLIENT: authority.issue(ADMIN, is_server=False),
    }
    paths = []
    for stem, each in issued.items():
        certificate, key = directory / f"{stem}.pem", directory / f"{stem}.key"
        each.write_blocking(certificate, key)
        paths += [certificate, key]
    password = secrets.token_urlsafe(_PASSWORD_BYTES)
    texts = {
        _SECRET_KEY: f"{secrets.token_hex(_KEY_BYTES)}\n",
        **{file: format_properties(each) for file, each in _settings(directory, password).items()},
        _TOOLS: f"accessKey: {ADMIN}\nsecretKey: {password}\n",
    }
    for file, text in texts.items():
        path = directory / file
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_private_blocking(path, text.encode())
        paths.append(path)
    return paths


def issue_client_blocking(directory: Path, user: str) -> list[Path]:
    """Write a certificate that stands for a user, and its key; return their paths.

    Raises:
        ConfigError: The directory has no authority, or has a file of this name already.
    """
    if not user.replace("-", "").replace("_", "").replace(".", "").isalnum():
        raise ConfigError(f"{user!r} is not the name of a user and of a file")
    authority = Authority.load_blocking(
        directory / f"{_AUTHORITY}.pem", directory / f"{_AUTHORITY}.key"
    )
    certificate, key = directory / f"{user}.pem", directory / f"{user}.key"
    for path in (certificate, key):
        if path.exists():
            raise ConfigError(f"{path} exists already: remove it, or choose another user")
    authority.issue(user, is_server=False).write_blocking(certificate, key)
    return [certificate, key]


def _settings(directory: Path, password: str) -> dict[str, dict[str, str]]:
    """Return the properties of each settings file."""
    root = str(directory / f"{_AUTHORITY}.pem")

    def client_of(stem: str) -> dict[str, str]:
        return {
            "tls.client.trustCertPath": root,
            "tls.client.certPath": str(directory / f"{stem}.pem"),
            "tls.client.keyPath": str(directory / f"{stem}.key"),
        }

    server = {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": str(directory / f"{_SERVER}.pem"),
        "tls.server.keyPath": str(directory / f"{_SERVER}.key"),
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": root,
        "tls.server.userRules": "CN",
        **client_of(_SERVER),
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": _json(username=ADMIN, password=password),
        "innerClientAuthenticationCredentials": _json(
            accessKey=SERVERS, secretKey=secrets.token_urlsafe(_PASSWORD_BYTES)
        ),
        "authSecretKeyFile": str(directory / _SECRET_KEY),
    }
    return {"broker.conf": server, "namesrv.conf": server, "tls.properties": client_of(_CLIENT)}


def _json(**members: str) -> str:
    return msgspec.json.encode(members).decode()


def _check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.split(".")
        if not all(label and label.replace("-", "").isalnum() for label in labels):
            raise ConfigError(f"{host!r} is not a host name or an address") from None
