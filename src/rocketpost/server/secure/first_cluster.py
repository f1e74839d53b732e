"""The files of a small cluster with TLS, made by one command.

    ca.pem, ca.key           the authority; keep the key elsewhere once all certificates are made
    server.pem, server.key   the certificate of all servers, which also use it as clients
    client.pem, client.key   a certificate for clients and tools
    broker.conf              TLS of a broker; ``rocketpost up -c`` and ``mqbroker -c`` read it
    namesrv.conf             the same for a name server of its own
    tls.properties           TLS of clients, for ``ROCKETMQ_TLS_CONFIG_FILE``

Every server requires TLS and a certificate of the authority, so nobody else can use the cluster.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.server.secure.authority import Authority, write_private_blocking
from rocketpost.settings import format_properties

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
CLIENT_NAME: Final = "admin"
_AUTHORITY: Final = "ca"
_SERVER: Final = "server"
_CLIENT: Final = "client"


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
        _SERVER: authority.issue(_SERVER, hosts=dict.fromkeys((*LOOPBACK, *hosts))),
        _CLIENT: authority.issue(CLIENT_NAME, is_server=False),
    }
    paths = []
    for stem, each in issued.items():
        certificate, key = directory / f"{stem}.pem", directory / f"{stem}.key"
        each.write_blocking(certificate, key)
        paths += [certificate, key]
    for file, values in _settings(directory).items():
        write_private_blocking(directory / file, format_properties(values).encode())
        paths.append(directory / file)
    return paths


def _settings(directory: Path) -> dict[str, dict[str, str]]:
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
    }
    return {"broker.conf": server, "namesrv.conf": server, "tls.properties": client_of(_CLIENT)}


def _check_host(host: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        labels = host.split(".")
        if not all(label and label.replace("-", "").isalnum() for label in labels):
            raise ConfigError(f"{host!r} is not a host name or an address") from None
