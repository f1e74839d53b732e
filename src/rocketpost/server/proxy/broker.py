"""A broker that also serves clients of the 5.x protocol, in its own process."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rocketpost.errors import ConfigError
from rocketpost.proxy.gathering import Gathering
from rocketpost.server.broker import BrokerServer
from rocketpost.server.secure.exposure import find_exposure
from rocketpost.transport.entrance import TlsMode

if TYPE_CHECKING:
    from rocketpost.client.session import Session
    from rocketpost.proxy.cluster.backend import ClusterBackend
    from rocketpost.proxy.proxy import GrpcProxy
    from rocketpost.proxy.settings import ProxyConfig

logger = logging.getLogger(__name__)

NOT_INSTALLED = "gRPC is not installed: pip install 'rocketpost[grpc]'"


def read_settings(text: str) -> tuple[ProxyConfig, list[str]]:
    """Read the settings of the proxy; return them, and notes for the user.

    Raises:
        ConfigError: A setting is wrong, or the gRPC library is not installed.
    """
    try:
        import grpc  # noqa: F401

        from rocketpost.proxy.settings import read_proxy_settings
    except ImportError:
        raise ConfigError(NOT_INSTALLED) from None
    return read_proxy_settings(text)


def settings_for_up(port: int | None, host: str) -> ProxyConfig | None:
    """Return the settings of the gRPC port of ``rocketpost up``; None for no such port.

    Args:
        port: The wanted port; None for the usual one, if it is free and gRPC is installed.
        host: The address to listen on.

    Raises:
        ConfigError: A port is wanted, but the gRPC library is not installed.
    """
    try:
        config, _ = read_settings("")
    except ConfigError:
        if port is None:
            return None
        raise
    if port is None and not _is_free(host, config.port):
        print(
            f"note: port {config.port} is in use, so clients of RocketMQ 5 (gRPC) are not served; "
            "choose another with --grpc-port",
            file=sys.stderr,
        )
        return None
    return replace(config, bind_address=host, port=config.port if port is None else port)


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


class ProxiedBroker(BrokerServer):
    """One broker with a gRPC port. Belongs to the event loop.

    Args:
        values: As in ``BrokerServer``, which has the other arguments too.
        proxy: The settings of the gRPC port.
    """

    def __init__(self, values: Mapping[str, str], *, proxy: ProxyConfig, **options: Any) -> None:
        super().__init__(values, **options)
        self._proxy_config = proxy
        self._proxy: GrpcProxy | None = None
        self._session: Session | None = None

    @property
    def grpc_port(self) -> int:
        """The bound gRPC port."""
        assert self._proxy is not None
        return self._proxy.port

    async def start(self) -> None:
        """Return when requests and calls are served.

        Raises:
            ConfigError: An address is invalid or cannot be bound.
            StoreError: The store cannot be opened.
        """
        await super().start()
        try:
            self._proxy = await self._make_proxy()
            await self._proxy.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop serving calls, then stop the broker."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            await proxy.stop()
        session, self._session = self._session, None
        if session is not None:
            await session.stop()
        await super().stop()

    async def _make_proxy(self) -> GrpcProxy:
        from rocketpost.proxy.proxy import GrpcProxy
        from rocketpost.proxy.services.routes import endpoints_for
        from rocketpost.server.proxy.guard import LocalGuard
        from rocketpost.server.proxy.keys import with_broker_tls
        from rocketpost.server.proxy.local import LocalBackend

        config = self._proxy_config
        gate = self._context.access.gate
        if config.authentication_enabled and gate is None:
            raise ConfigError(
                "authenticationEnabled=true in the settings of the proxy has no effect in a "
                "broker's process: set it in the settings of the broker"
            )
        if config.remoting_port:
            raise ConfigError(
                f"remotingListenPort={config.remoting_port} is not supported in a broker's "
                "process: the broker's own port serves these clients; set it to 0, or run mqproxy"
            )
        if not config.bind_address:
            config = replace(config, bind_address=self._broker.bind_address)
        config, keys = await asyncio.to_thread(
            with_broker_tls, config, self._security.settings, self._ip
        )
        self._warn_of_exposure(config)

        def endpoints_of(broker: object, asked: Any) -> Any:
            return endpoints_for(asked, config, host=self._ip, port=self.grpc_port)

        guard = LocalGuard(lambda: self._context.access.gate)
        if self._group_config is None:
            gathering = Gathering()
            backend = LocalBackend(
                self._listener, lambda: self._context, lambda: self.is_leader, gathering
            )
            return GrpcProxy(
                backend,
                config,
                guard=guard,
                endpoints_of=endpoints_of,
                keys=keys,
                gathering=gathering,
            )
        cluster = await self._open_cluster(config)
        proxy = GrpcProxy(cluster, config, guard=guard, endpoints_of=endpoints_of, keys=keys)
        cluster.serve(proxy.broker_requests.serve_for(None))
        return proxy

    async def _open_cluster(self, config: ProxyConfig) -> ClusterBackend:
        """Return the backend for the leader of this broker's group and for the other brokers.

        Another member leads most of the time, so the port of a member is that of a whole cluster.

        Raises:
            ConfigError: No name server is known.
        """
        from rocketpost.proxy.cluster.backend import ClusterBackend
        from rocketpost.proxy.cluster.masters import Masters
        from rocketpost.server.proxy.process import make_session

        if not self.name_servers:
            raise ConfigError("--enable-proxy in a group of brokers needs namesrvAddr")
        config = replace(config, name_servers=self.name_servers)
        login = self._broker.inner_login
        self._session = make_session(config, login=login, tls=self._security.settings.client)
        await self._session.start()
        return ClusterBackend(self._session, Masters(self._session), config)

    def _warn_of_exposure(self, config: ProxyConfig) -> None:
        """Log that everybody can use the gRPC port, unless the broker's own warning covers it."""
        authenticates = self._context.access.gate is not None
        rules = self._security.entrance
        is_lent = not config.tls_certificate and config.tls_mode is TlsMode.ENFORCING
        exposure = find_exposure(
            config.bind_address, authenticates=authenticates, rules=rules if is_lent else None
        )
        if exposure and not find_exposure(
            self._broker.bind_address, authenticates=authenticates, rules=rules
        ):
            logger.warning("gRPC port is open to everybody: reason=%s", exposure)
