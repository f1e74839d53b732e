"""Contexts of TLS: the certificates and rules of a server and of a client, from files.

Both ends speak TLS 1.2 and 1.3. A client checks the server's chain and host name unless its
settings forbid it. Sessions are not resumed with TLS 1.3, so every connection proves its
certificate.
"""

from __future__ import annotations

import enum
import ipaddress
import logging
import os
import ssl
from dataclasses import dataclass, field
from typing import Final

from rocketpost.errors import ConfigError
from rocketpost.transport.tls_layer import explain

logger = logging.getLogger(__name__)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class ClientCertificates(enum.Enum):
    """The certificates that a server wants from its clients."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate and its key, in PEM.

    Attributes:
        certificate: File of the certificate, followed by those between it and the root.
        key: File of the key; the file of the certificate if empty.
        password: Password of the key; empty if it has none.
    """

    certificate: str
    key: str = ""
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsRules:
    """Limits of both ends.

    Attributes:
        ciphers: Ciphers of TLS 1.2 in OpenSSL's syntax; OpenSSL's choice if empty.
        versions: Versions of TLS; all from 1.2 on if empty.
    """

    ciphers: str = ""
    versions: tuple[str, ...] = ()

    def apply(self, context: ssl.SSLContext) -> None:
        """Set the limits.

        Raises:
            ConfigError: A name is unknown.
        """
        unknown = sorted(set(self.versions) - set(_VERSIONS))
        if unknown:
            raise ConfigError(
                f"tls.protocols has {', '.join(unknown)}; it may have {', '.join(_VERSIONS)}"
            )
        chosen = [_VERSIONS[name] for name in self.versions] or list(_VERSIONS.values())
        context.minimum_version, context.maximum_version = min(chosen), max(chosen)
        if self.ciphers:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError:
                raise ConfigError(
                    f"tls.ciphers={self.ciphers} names no cipher of TLS 1.2; use OpenSSL's names, "
                    "such as ECDHE-RSA-AES128-GCM-SHA256. Those of TLS 1.3 are always on"
                ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """TLS of a server.

    Attributes:
        keys: Its certificate.
        client_certificates: The certificates that it wants from clients.
        trusted: File of the roots that those lead to; those of the system if empty.
        rules: Limits.
    """

    keys: KeyPair
    client_certificates: ClientCertificates = ClientCertificates.NONE
    trusted: str = ""
    rules: TlsRules = TlsRules()

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are read."""
        files = (self.keys.certificate, self.keys.key, self.trusted)
        return tuple(filter(None, files))

    def make_context_blocking(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ConfigError: A file cannot be read, or the key is not that of the certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.num_tickets = 0
        self.rules.apply(context)
        _load_keys(context, self.keys)
        if self.client_certificates is not ClientCertificates.NONE:
            _load_trusted(context, self.trusted, ssl.Purpose.CLIENT_AUTH)
            is_required = self.client_certificates is ClientCertificates.REQUIRE
            context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """TLS of a client: the servers that it trusts, and its own certificate.

    Attributes:
        trusted: File of the roots that servers' certificates lead to; those of the system if empty.
        certificate: File of the client's certificate, if servers want one.
        key: File of its key; the file of the certificate if empty.
        key_password: Password of the key.
        check_server: Whether the server's certificate is checked at all. RocketMQ's Java client
            does not by default; anyone between client and server can then read everything.
        check_host: Whether the certificate must have the name or address that the client connects
            to.
        ciphers: Ciphers of TLS 1.2 in OpenSSL's syntax; OpenSSL's choice if empty.
        versions: Versions of TLS; all from 1.2 on if empty.
    """

    trusted: str = ""
    certificate: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    check_server: bool = True
    check_host: bool = True
    ciphers: str = ""
    versions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.key and not self.certificate:
            raise ConfigError("a client's key needs its certificate")

    @property
    def files(self) -> tuple[str, ...]:
        """All files that are read."""
        return tuple(filter(None, (self.certificate, self.key, self.trusted)))

    def make_context_blocking(self) -> ssl.SSLContext:
        """Read the files.

        Raises:
            ConfigError: A file cannot be read, or the key is not that of the certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.options |= ssl.OP_NO_RENEGOTIATION
        TlsRules(ciphers=self.ciphers, versions=self.versions).apply(context)
        context.check_hostname = self.check_server and self.check_host
        if self.check_server:
            _load_trusted(context, self.trusted, ssl.Purpose.SERVER_AUTH)
        else:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            _load_keys(
                context,
                KeyPair(certificate=self.certificate, key=self.key, password=self.key_password),
            )
        return context

    def server_name(self, host: str) -> str | None:
        """Return the name to check a server's certificate by; None if it is not checked."""
        if self.check_server and self.check_host:
            return host
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host  # it is only told to the server
        return None


class ClientContext:
    """The context of a client, which is made again whenever a file has changed.

    Belongs to the event loop. The files are small; they are looked at when a connection is opened.

    Raises:
        ConfigError: A file cannot be read, or the key is not that of the certificate.
    """

    def __init__(self, config: ClientTls) -> None:
        self.config = config
        self._seen = signature_blocking(config.files)
        self._context = config.make_context_blocking()

    def current(self) -> ssl.SSLContext:
        """Return the context for the next connection: that of the files which last were whole."""
        seen = signature_blocking(self.config.files)
        if seen != self._seen:
            self._seen = seen
            try:
                self._context = self.config.make_context_blocking()
            except ConfigError as error:
                logger.error("certificate not reloaded, the old one serves: reason=%s", error)
        return self._context


def signature_blocking(files: tuple[str, ...]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return a value that changes when one of the files is replaced or written."""
    return tuple(_signature_of(path) for path in files)


def _signature_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # of the target of a link, which Kubernetes replaces
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load_keys(context: ssl.SSLContext, keys: KeyPair) -> None:
    for path in filter(None, (keys.certificate, keys.key)):
        _check_readable(path)
    try:
        # Never without a password: OpenSSL would ask for it on the terminal.
        context.load_cert_chain(keys.certificate, keys.key or None, password=keys.password)
    except ssl.SSLError as error:
        raise ConfigError(
            f"the certificate {keys.certificate} and the key {keys.key or 'in it'} cannot be used: "
            f"{_key_problem(error, keys.key or keys.certificate)}"
        ) from None


def _key_problem(error: ssl.SSLError, path: str) -> str:
    """Return the problem of a certificate or key; OpenSSL says little about it."""
    if error.reason and "MISMATCH" in error.reason:
        return "the key is not that of the certificate"
    with open(path, "rb") as file:
        text = file.read()
    if b"ENCRYPTED" in text:
        return "the key's password is wrong or missing"
    if b"PRIVATE KEY-----" not in text:
        return f"{path} has no key in PEM"
    return f"no certificate or key in PEM ({explain(error)})"


def _load_trusted(context: ssl.SSLContext, path: str, purpose: ssl.Purpose) -> None:
    if not path:
        context.load_default_certs(purpose)
        return
    _check_readable(path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(
            f"the trusted certificates {path} cannot be read: {explain(error)}"
        ) from None


def _check_readable(path: str) -> None:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
