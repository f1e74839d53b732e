"""Certificates for tests: an authority, and files that it signs."""

from __future__ import annotations

import itertools
from pathlib import Path

from rocketpost.server.secure.authority import Authority
from rocketpost.transport.tls_contexts import KeyPair


class CertificateFolder:
    """A folder with an authority of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._authority = Authority.make("test authority")
        self.root = str(folder / "ca.pem")
        Path(self.root).write_bytes(self._authority.pem.certificate)
        self._numbers = itertools.count()

    def issue(
        self, name: str = "localhost", *hosts: str, is_server: bool = True, days: int = 30
    ) -> KeyPair:
        """Write a new certificate and its key, and return their files."""
        number = next(self._numbers)
        certificate, key = self.folder / f"{number}.pem", self.folder / f"{number}.key"
        names = hosts or (("localhost", "127.0.0.1") if is_server else ())
        self._authority.issue(name, hosts=names, is_server=is_server, days=days).write_blocking(
            certificate, key
        )
        return KeyPair(certificate=str(certificate), key=str(key))

    def replace(self, pair: KeyPair, name: str = "localhost", *hosts: str) -> None:
        """Replace the files of a certificate with those of a new one, one after the other."""
        fresh = self.issue(name, *hosts)
        Path(fresh.certificate).replace(pair.certificate)
        Path(fresh.key).replace(pair.key)
