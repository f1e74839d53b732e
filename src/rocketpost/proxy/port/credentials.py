"""The certificate of the gRPC port, as the library takes it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import NamedTuple, Protocol

import grpc

from rocketpost.errors import ConfigError
from rocketpost.transport.tls_contexts import (
    ClientCertificates,
    ServerTls,
    signature_blocking,
)

logger = logging.getLogger(__name__)


class CredentialSource(Protocol):
    """Makes the library's form of a certificate."""

    def make_blocking(self) -> grpc.ServerCredentials:
        """Return it.

        Raises:
            ConfigError: A file cannot be used.
        """
        ...


class Pem(NamedTuple):
    """A certificate and its key that are in no file."""

    key: bytes
    certificate: bytes

    def make_blocking(self) -> grpc.ServerCredentials:
        """Return the library's form."""
        return grpc.ssl_server_credentials([(self.key, self.certificate)])


class CertificateFiles:
    """A certificate in files, which are read again when they change.

    A connection keeps the certificate with which it began.

    Args:
        tls: The files, and whether clients need certificates. Optional ones are not asked for: the
            library does not know them.
    """

    def __init__(self, tls: ServerTls) -> None:
        self._tls = tls
        self._seen: object = None
        self._lock = threading.Lock()
        self._needs_client = tls.client_certificates is ClientCertificates.REQUIRE

    def make_blocking(self) -> grpc.ServerCredentials:
        """Return the library's form.

        Raises:
            ConfigError: A file cannot be used.
        """
        self._seen = signature_blocking(self._tls.files)
        return grpc.dynamic_ssl_server_credentials(
            self._read_blocking(), self._reread_blocking, self._needs_client
        )

    def _reread_blocking(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the files if they have changed; called by a thread of the library."""
        with self._lock:
            seen = signature_blocking(self._tls.files)
            if seen == self._seen:
                return None
            self._seen = seen
            try:
                found = self._read_blocking()
            except ConfigError as error:
                logger.error("certificate not reloaded, the old one serves: reason=%s", error)
                return None
            logger.info("certificate reloaded: file=%s", self._tls.keys.certificate)
            return found

    def _read_blocking(self) -> grpc.ServerCertificateConfiguration:
        self._tls.make_context_blocking()  # explains what is wrong, as the library would not
        keys = self._tls.keys
        certificate = Path(keys.certificate).read_bytes()
        key = Path(keys.key or keys.certificate).read_bytes()
        if keys.password:
            key = _decrypted(key, keys.password)
        trusted = Path(self._tls.trusted).read_bytes() if self._needs_client else None
        return grpc.ssl_server_certificate_configuration([(key, certificate)], trusted)


def _decrypted(key: bytes, password: str) -> bytes:
    """Return a key without its password; OpenSSL ignores the password of a key that has none."""
    if b"ENCRYPTED" not in key:
        return key
    try:
        from cryptography.hazmat.primitives.serialization import (
            Encoding,
            NoEncryption,
            PrivateFormat,
            load_pem_private_key,
        )
    except ImportError:
        raise ConfigError(
            "a key with a password needs the package cryptography: pip install 'rocketpost[secure]'"
        ) from None
    private = load_pem_private_key(key, password.encode())
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
