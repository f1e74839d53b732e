"""The name server process: its listener, route tables and key-value file.

Name servers do not know each other: every broker registers with each of them. A broker is removed
when it unregisters, when its connection is lost, or when it was silent for longer than announced.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence

from rocketpost.model.clock import Clock
from rocketpost.model.route import MASTER_ID
from rocketpost.namesrv.min_broker import MinBrokerChange
from rocketpost.namesrv.report import BrokerIdentity
from rocketpost.namesrv.route_table import RouteLimits, RouteTable
from rocketpost.server.access.control import own_signature
from rocketpost.server.access.handlers import AccessHandlers
from rocketpost.server.logs.output import apply_levels
from rocketpost.server.namesrv.access_file import NamesrvAccess
from rocketpost.server.namesrv.handlers import NamesrvHandlers
from rocketpost.server.namesrv.kv_file import KvFile
from rocketpost.server.namesrv.min_broker_notices import MinBrokerNotices
from rocketpost.server.namesrv.name_owners import NameOwners
from rocketpost.server.peers import Peers
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.route import Route
from rocketpost.server.secure.certificates import PortSecurity, secure_ports
from rocketpost.server.secure.exposure import find_exposure
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.store.files import FileSystem
from rocketpost.transport.connection import Connection
from rocketpost.transport.listener import Listener

__all__ = ["NameServer", "NamesrvConfig"]

logger = logging.getLogger(__name__)


class SteadyClock:
    """A clock that never goes back: a corrected wall clock must not make brokers expire."""

    def now_ms(self) -> int:
        """Return the milliseconds since some moment in the past."""
        return time.monotonic_ns() // 1_000_000


class NameServer:
    """One name server. Belongs to the event loop; any number may run in one process.

    Args:
        config: The settings; port 0 takes a free port.
        clock: Measures the silence of brokers.
        tls: Properties of TLS and PROXY headers by RocketMQ's keys; others are ignored.
        files: The file system, if not the machine's.
    """

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        *,
        clock: Clock | None = None,
        tls: Mapping[str, str] | None = None,
        files: FileSystem | None = None,
    ) -> None:
        config = config or NamesrvConfig()
        self._tls_values = tls or {}
        self._security = PortSecurity()
        self._clock = clock or SteadyClock()
        limits = RouteLimits(
            brokers_max=config.brokers_max,
            brokers_a_host_max=config.brokers_a_host_max,
            entries_max=config.route_entries_max,
        )
        self._table = RouteTable(limits, on_min_change=self._tell_min_change)
        self._notices: MinBrokerNotices | None = None
        self._kv = KvFile(config.kv_config_path, files=files)
        self._handlers = NamesrvHandlers(
            config=config,
            table=self._table,
            kv=self._kv,
            clock=self._clock,
            on_registered=self._note_registered,
            on_config=self._config_changed,
        )
        self._access = NamesrvAccess(config)
        self._dispatcher = Dispatcher()
        self._listener = Listener(
            on_request=self._dispatcher.handle,
            on_lost=self._connection_lost,
            idle_seconds=config.idle_seconds,
        )
        self._next_scan: asyncio.TimerHandle | None = None
        self._stopping = asyncio.Event()
        self._registered = asyncio.Event()

    @property
    def config(self) -> NamesrvConfig:
        """The settings as they are now."""
        return self._handlers.config

    @property
    def port(self) -> int:
        """The bound port, which differs from the configured port if that is 0."""
        return self._listener.port

    @property
    def address(self) -> str:
        """Address on which it listens, as ``host:port``."""
        return f"{self.config.bind_address}:{self.port}"

    async def start(self) -> None:
        """Return when requests are served.

        Raises:
            ConfigError: The address cannot be bound, or a file cannot be read.
            StoreError: The key-value file, or that of users and rules, is damaged.
        """
        await asyncio.to_thread(self._kv.load_blocking)
        self._security = await secure_ports(self._tls_values, self._listener)
        await self._access.open()
        self._dispatcher.gate = self._access.control.gate
        self._listener.note_users(self._dispatcher.gate is not None)
        self._dispatcher.use([*self._routes(), *self._access_routes()])
        self._handlers.note_start()
        self._stopping.clear()
        peers = Peers(own_signature(self.config))
        peers.use_tls(self._security)
        self._notices = MinBrokerNotices(peers)
        await self._listener.start(self.config.bind_address, self.config.listen_port)
        self._security.start()
        self._schedule_scan()
        logger.info("name server started: address=%s", self.address)
        exposure = find_exposure(
            self.config.bind_address,
            authenticates=self.config.authentication_enabled,
            rules=self._security.entrance,
        )
        if exposure:
            logger.warning("name server is open to everybody: reason=%s", exposure)

    async def stop(self) -> None:
        """Return when every connection is closed and every accepted change is on disk."""
        self._stopping.set()
        if self._next_scan is not None:
            self._next_scan.cancel()
            self._next_scan = None
        await self._listener.stop()
        await self._security.stop()
        if self._notices is not None:
            await self._notices.close()
        await self._kv.settle()
        await self._dispatcher.stop()
        await self._access.close()

    def _routes(self) -> Sequence[Route]:
        """Return the routes of brokers and clients; with access control, names have owners."""
        gate, routes = self._access.control.gate, self._handlers.routes()
        if gate is None:
            return routes
        owners = NameOwners(
            gate, lambda cluster, name: self._table.member_group(cluster, name).broker_addrs
        )
        return owners.guard(routes)

    def _access_routes(self) -> Sequence[Route]:
        control = self._access.control
        return AccessHandlers(
            table=control.table, gate=control.gate, audit=control.audit, save=self._access.save
        ).routes()

    async def run(self) -> None:
        """Start, serve until :meth:`stop` is called or this is cancelled, and stop."""
        await self.start()
        try:
            await self._stopping.wait()
        finally:
            await self.stop()

    async def wait_master(self, cluster: str, name: str) -> str:
        """Wait until a broker of a name is registered as master, and return its address."""
        while True:
            found = self._table.member_group(cluster, name).broker_addrs.get(MASTER_ID)
            if found is not None:
                return found
            await self._registered.wait()

    def _note_registered(self, identity: BrokerIdentity) -> None:
        _log_registered(identity)
        registered, self._registered = self._registered, asyncio.Event()
        registered.set()

    async def wait_failed(self) -> str:
        """Wait forever: no failure stops a name server."""
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    def scan(self) -> None:
        """Remove a broker that was silent for too long, and close its connection; then the next.

        A broker may have a hundred thousand topics, so requests are served in between.
        """
        late = self._table.expire(self._clock.now_ms(), count_max=1)
        if late and not self._stopping.is_set():
            asyncio.get_running_loop().call_soon(self.scan)
        for identity, owner in late:
            _log_gone(identity, "silent for too long")
            if isinstance(owner, Connection):
                logger.warning(
                    "connection dropped: peer=%s reason=its broker %s was silent for too long",
                    owner.peer_text,
                    identity.name,
                )
                owner.close()

    def _config_changed(self) -> None:
        apply_levels(self.config.log_level)
        self._schedule_scan()

    def _schedule_scan(self) -> None:
        if self._next_scan is not None:
            self._next_scan.cancel()
        loop = asyncio.get_running_loop()
        self._next_scan = loop.call_later(self.config.scan_interval_ms / 1000, self._scan_and_go_on)

    def _scan_and_go_on(self) -> None:
        self._schedule_scan()
        self.scan()

    def _tell_min_change(self, change: MinBrokerChange) -> None:
        if self.config.notify_min_broker and not self._stopping.is_set():
            assert self._notices is not None, "brokers register after the start"
            self._notices.tell(change)

    def _connection_lost(self, connection: Connection) -> None:
        lost = self._table.remove_lost(connection, count_max=1)
        if lost:  # as in a scan, there may be more
            asyncio.get_running_loop().call_soon(self._connection_lost, connection)
        for identity in lost:
            if not self._stopping.is_set():
                _log_gone(identity, "connection lost")


def _log_registered(identity: BrokerIdentity) -> None:
    logger.info(
        "broker registered: cluster=%s name=%s id=%s address=%s",
        identity.cluster,
        identity.name,
        identity.id,
        identity.address,
    )


def _log_gone(identity: BrokerIdentity, reason: str) -> None:
    logger.warning(
        "broker gone: cluster=%s name=%s id=%s address=%s reason=%s",
        identity.cluster,
        identity.name,
        identity.id,
        identity.address,
        reason,
    )
