"""The proxy process: serves gRPC clients in front of the brokers of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import Any

from rocketpost.client.config import ClientConfig
from rocketpost.client.credentials import Credentials
from rocketpost.client.session import Session
from rocketpost.errors import ConfigError
from rocketpost.proxy.cluster.backend import ClusterBackend
from rocketpost.proxy.cluster.masters import Masters
from rocketpost.proxy.proxy import GrpcProxy
from rocketpost.proxy.remoting.port import RemotingPort
from rocketpost.proxy.rights import Guard, NoGuard
from rocketpost.proxy.services.routes import endpoints_for
from rocketpost.proxy.settings import REMOTING_PORT, ProxyConfig
from rocketpost.server.proxy.guard import LocalGuard
from rocketpost.server.proxy.keys import choose_keys_blocking
from rocketpost.server.proxy.remote_access import RemoteAccess
from rocketpost.server.routes.dispatch import admit
from rocketpost.server.secure.certificates import PortSecurity, secure_ports
from rocketpost.server.secure.exposure import find_exposure
from rocketpost.server.settings.access import Login
from rocketpost.transport.entrance import TlsMode
from rocketpost.transport.host import local_ip
from rocketpost.transport.tls_contexts import ClientTls

logger = logging.getLogger(__name__)


def make_session(config: ProxyConfig, *, login: Login | None, tls: ClientTls | None) -> Session:
    """Return the connections of a proxy to name servers and brokers, to be started.

    Args:
        config: The settings, which name the name servers.
        login: The user as whom it sends requests; None if they are not signed.
        tls: TLS of the connections; None if they are plain.
    """
    client = ClientConfig(
        name_servers=config.name_servers or None,
        route_seconds=config.route_seconds,
        heartbeat_seconds=config.heartbeat_seconds,
        credentials=None if login is None else Credentials(login.name, login.secret),
        tls=tls,
    )
    if config.address_server:
        client = replace(
            client,
            address_server=config.address_server,
            address_group=config.address_group or client.address_group,
        )
    return Session(client)


class ProxyServer:
    """One proxy. Belongs to the event loop. It keeps nothing that a restart would lose.

    Args:
        config: The settings.
        login: The user as whom it sends requests to brokers; None if they are not signed.
        tls: TLS of its connections to brokers and name servers; None if they are plain.
    """

    def __init__(
        self, config: ProxyConfig, *, login: Login | None = None, tls: ClientTls | None = None
    ) -> None:
        self._config = config
        self._session = make_session(config, login=login, tls=tls)
        self._proxy: GrpcProxy | None = None
        self._remoting: RemotingPort | None = None
        self._security: PortSecurity | None = None
        self._access: RemoteAccess | None = None
        self._following: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """The address of the gRPC port."""
        assert self._proxy is not None
        return f"{self._host}:{self._proxy.port}"

    @property
    def remoting_address(self) -> str:
        """The address of the port for remoting clients; empty if there is none."""
        return self._remoting.address if self._remoting is not None else ""

    @property
    def name_servers(self) -> str:
        """The name servers that it asks for routes."""
        return ";".join(self._session.name_servers.addresses)

    async def start(self) -> None:
        """Return when calls are served.

        Raises:
            ConfigError: The port cannot be bound, or the settings contradict each other.
            NoNameServer: No address of a name server is known.
        """
        keys = await asyncio.to_thread(choose_keys_blocking, self._config, self._host)
        await self._session.start()
        masters = Masters(self._session)
        backend = ClusterBackend(self._session, masters, self._config)
        try:
            guard = await self._make_guard()
            await self._start_remoting(masters)
            proxy = GrpcProxy(
                backend,
                self._config,
                guard=guard,
                endpoints_of=self._endpoints_of,
                keys=keys,
            )
            backend.serve(proxy.broker_requests.serve_for(None))
            await proxy.start()
        except BaseException:
            await self._stop_remoting()
            await self._stop_following()
            await self._session.stop()
            raise
        self._proxy = proxy
        config = self._config
        exposure = find_exposure(config.bind_address, authenticates=config.authentication_enabled)
        if exposure:
            logger.warning("proxy is open to everybody: reason=%s", exposure)

    async def stop(self) -> None:
        """Return when no call is served any more."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.stop()
            await self._stop_remoting()
            await self._stop_following()
            await self._session.stop()

    async def wait_failed(self) -> str:
        """Wait for ever: a proxy serves as long as its process runs."""
        await asyncio.Event().wait()
        raise AssertionError

    async def _start_remoting(self, masters: Masters) -> None:
        """Open the port for remoting clients: the usual one if it is free, or the one named."""
        config = self._config
        port = REMOTING_PORT if config.remoting_port is None else config.remoting_port
        if port == 0:
            return
        access = self._access
        remoting = RemotingPort(
            self._session,
            masters,
            host=config.remoting_host or self._host,
            admit=None if access is None else lambda *request: admit(access.gate, *request),
        )
        self._security = await secure_ports(_tls_values(config), remoting.listener)
        try:
            await remoting.start(config.bind_address, port)
        except ConfigError as error:
            await self._security.stop()
            if config.remoting_port is not None:
                raise
            logger.warning("remoting clients are not served: reason=%s", error)
            return
        self._security.start()
        self._remoting = remoting

    async def _stop_remoting(self) -> None:
        remoting, self._remoting = self._remoting, None
        if remoting is not None:
            await remoting.stop()
        if self._security is not None:
            await self._security.stop()

    async def _make_guard(self) -> Guard:
        """Return the check of calls by the users and rules of the cluster."""
        config = self._config
        if not config.authentication_enabled:
            if config.inner_credentials:
                logger.warning(
                    "authenticationEnabled is false: brokers take every client for the user in "
                    "innerClientAuthenticationCredentials"
                )
            return NoGuard()
        access = self._access = RemoteAccess(self._session, config)
        await access.refresh()
        self._following = asyncio.create_task(access.run(), name="users and rules")
        return LocalGuard(lambda: access.gate)

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following

    @property
    def _host(self) -> str:
        config = self._config
        bound = config.bind_address
        return config.public_address or (local_ip() if bound in ("", "0.0.0.0", "::") else bound)

    def _endpoints_of(self, broker: object, asked: Any) -> Any:
        assert self._proxy is not None
        return endpoints_for(asked, self._config, host=self._host, port=self._proxy.port)


def _tls_values(config: ProxyConfig) -> dict[str, str]:
    """Return the TLS settings of the remoting port, which are those of the gRPC port."""
    is_made_up = not config.tls_certificate and config.tls_mode is not TlsMode.DISABLED
    return {
        "tls.server.mode": config.tls_mode.value,
        "tls.server.certPath": config.tls_certificate,
        "tls.server.keyPath": config.tls_key,
        "tls.server.keyPassword": config.tls_key_password,
        "tls.test.mode.enable": "true" if is_made_up and config.tls_test_mode else "false",
        "tls.enable": "false",
    }
