"""The certificates of a server, replaced while it runs when their files change.

A connection keeps the certificate with which it began. The next one gets the new certificate as
soon as it and its key are both there and belong together. Until then, the old one serves.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rocketpost.errors import ConfigError
from rocketpost.server.secure.authority import Authority
from rocketpost.server.settings.tls import TlsSettings, tls_settings_blocking
from rocketpost.transport.entrance import EntranceRules
from rocketpost.transport.listener import Listener
from rocketpost.transport.tls_contexts import (
    ClientContext,
    KeyPair,
    ServerTls,
    signature_blocking,
)

logger = logging.getLogger(__name__)


class ServerCertificates:
    """The certificate of a server in use. Belongs to the event loop.

    Args:
        settings: The settings.
        tls: The files.
        context: The context made from them.
    """

    def __init__(self, settings: TlsSettings, tls: ServerTls, context: ssl.SSLContext) -> None:
        self._settings = settings
        self._tls = tls
        self._context = context
        self._seen = signature_blocking(tls.files)
        self.reload_count = 0
        """Times that new files were taken into use."""
        self.problem = ""
        """The reason why the files as they are now are not in use; empty if they are."""

    @property
    def server_context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        return self._context

    def find_user(self, tls: ssl.SSLObject) -> str:
        """Return the user that a peer's certificate stands for; empty if it stands for no user.

        Raises:
            RemoteProtocolError: The certificate stands for several users.
        """
        users = self._settings.users
        if not users:
            return ""
        certificate: Mapping[str, Any] | None = tls.getpeercert()
        return users.find(certificate) if certificate else ""

    async def watch(self) -> None:
        """Look at the files regularly, and reload them when they have changed."""
        while True:
            await asyncio.sleep(self._settings.reload_seconds)
            await self.reload()

    async def reload(self) -> bool:
        """Take the files into use if they have changed; tells whether it did."""
        seen = await asyncio.to_thread(signature_blocking, self._tls.files)
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._context = await asyncio.to_thread(self._tls.make_context_blocking)
        except ConfigError as error:
            if self.problem != str(error):
                self.problem = text = str(error)
                # Not the error itself: who keeps the record would keep the context that failed.
                logger.error("certificate not reloaded, the old one serves: reason=%s", text)
            return False
        self.problem = ""
        self.reload_count += 1
        logger.info("certificate reloaded: file=%s", self._tls.keys.certificate)
        return True


class PortSecurity:
    """TLS and PROXY headers of a server's ports, and TLS of its own connections.

    Belongs to the event loop.

    Args:
        settings: The settings; None if TLS is disabled.
        certificates: The certificate of its ports; None if TLS is disabled.
    """

    def __init__(
        self,
        settings: TlsSettings | None = None,
        certificates: ServerCertificates | None = None,
    ) -> None:
        self.settings = settings = settings or TlsSettings()
        self.certificates = certificates
        self.entrance = EntranceRules(
            mode=settings.mode,
            certificates=certificates,
            proxies=settings.proxies,
            certifies_clients=settings.certifies_clients,
        )
        self.client = ClientContext(settings.client) if settings.client is not None else None
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch the files."""
        if self.certificates is not None and not self.settings.is_test and self._watch is None:
            self._watch = asyncio.create_task(self.certificates.watch(), name="certificates")

    async def stop(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait((self._watch,))
            self._watch = None


async def secure_ports(values: Mapping[str, str], *listeners: Listener) -> PortSecurity:
    """Read all certificates of a server, and have its ports use them once they are bound.

    Raises:
        ConfigError: One is missing or cannot be used.
    """
    security = await asyncio.to_thread(open_security_blocking, values)
    for listener in listeners:
        listener.use_entrance(security.entrance)
    return security


def open_security_blocking(values: Mapping[str, str]) -> PortSecurity:
    """Read all certificates that a server's properties name.

    Raises:
        ConfigError: One is missing or cannot be used.
    """
    settings = tls_settings_blocking(values)
    if settings.client is not None:
        settings.client.make_context_blocking()  # refuse now what would fail at the first call
    if settings.is_test:
        with tempfile.TemporaryDirectory(prefix="rocketpost-") as directory:
            return _with_test_certificate(settings, Path(directory))
    if settings.server is None:
        return PortSecurity(settings)
    context = settings.server.make_context_blocking()
    return PortSecurity(settings, ServerCertificates(settings, settings.server, context))


def _with_test_certificate(settings: TlsSettings, directory: Path) -> PortSecurity:
    """Use a certificate that is made now and that clients cannot check."""
    logger.warning("a test certificate is in use: clients cannot check who answers them")
    certificate, key = directory / "test.pem", directory / "test.key"
    issued = Authority.make("rocketpost test").issue("localhost", hosts=("localhost", "127.0.0.1"))
    issued.write_blocking(certificate, key)
    tls = ServerTls(keys=KeyPair(certificate=str(certificate), key=str(key)))
    return PortSecurity(settings, ServerCertificates(settings, tls, tls.make_context_blocking()))
