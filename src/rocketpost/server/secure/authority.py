"""Certificates made here: an authority, and the certificates that it signs.

They serve ``rocketpost secure init`` and ``tls.test.mode.enable``. The package ``cryptography``
makes them, which is an extra: a server with certificates from elsewhere does not need it (ADR
0172). Keys are of the curve P-256, whose handshakes cost a server a tenth of those of RSA.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocketpost.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 397
"""The longest time that browsers and auditors accept for a server's certificate."""
_CLOCK_SKEW: Final = datetime.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)

    def write_blocking(self, certificate: Path, key: Path) -> None:
        """Write both files; only the owner may read the key."""
        write_private_blocking(key, self.key)
        certificate.write_bytes(self.certificate)


class Authority:
    """A certificate authority for one cluster.

    Args:
        certificate: Its certificate.
        key: Its key.
    """

    def __init__(self, certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def make(cls, name: str, *, days: int = AUTHORITY_DAYS) -> Authority:
        """Return a new authority.

        Raises:
            ConfigError: The package ``cryptography`` is not installed.
        """
        _require_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(name, name, key.public_key(), days).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        builder = builder.add_extension(_usage(signs=True), critical=True)
        return cls(_sign(builder, key), key)

    @classmethod
    def load_blocking(cls, certificate: Path, key: Path) -> Authority:
        """Read an authority that was made before.

        Raises:
            ConfigError: The files cannot be read, or ``cryptography`` is not installed.
        """
        _require_cryptography()
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
            private = serialization.load_pem_private_key(key.read_bytes(), password=None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"the authority in {certificate} cannot be used: {error}") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ConfigError(f"the key {key} is not of an authority made by rocketpost")
        return cls(found, private)

    @property
    def pem(self) -> Issued:
        """Its own certificate and key."""
        return _issued(self._certificate, self._key)

    def issue(
        self,
        name: str,
        *,
        hosts: Iterable[str] = (),
        days: int = CERTIFICATE_DAYS,
        is_server: bool = True,
    ) -> Issued:
        """Return a new certificate for a server, which is also one for a client, or for a client.

        Args:
            name: The common name.
            hosts: Names and addresses at which a server is reached.
            days: Time that it is valid.
            is_server: Whether it may be used by a server.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._certificate.subject
        builder = _builder(name, issuer, key.public_key(), days)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH] if is_server else []
        uses.append(ExtendedKeyUsageOID.CLIENT_AUTH)
        for extension, is_critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_usage(signs=False), True),
            (x509.ExtendedKeyUsage(uses), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False),
        ):
            builder = builder.add_extension(extension, critical=is_critical)
        names = [_general_name(host) for host in hosts]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return _issued(_sign(builder, self._key), key)


def write_private_blocking(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # an older file keeps its mode
        file.write(data)


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ImportError:
        raise ConfigError(
            "certificates are made by the package cryptography, which is not installed: "
            "pip install 'rocketpost[secure]'"
        ) from None


def _builder(
    name: str, issuer: x509.Name | str, public: object, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    def make_name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(
        subject_name=make_name(name),
        issuer_name=make_name(issuer) if isinstance(issuer, str) else issuer,
        public_key=public,  # type: ignore[arg-type]
        serial_number=x509.random_serial_number(),
        not_valid_before=now - _CLOCK_SKEW,
        not_valid_after=now + datetime.timedelta(days=days),
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)  # type: ignore[arg-type]
    return builder.add_extension(identifier, critical=False)


def _usage(*, signs: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: x509.CertificateBuilder, key: EllipticCurvePrivateKey) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _issued(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> Issued:
    from cryptography.hazmat.primitives import serialization

    return Issued(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
