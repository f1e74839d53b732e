"""The broker process: opens the store, binds the ports, keeps house, stops in order.

What serves the requests is put together in ``server.services``.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from rocketpost.errors import ConfigError, StoreError
from rocketpost.model.ids import Position
from rocketpost.model.names import topic_problem
from rocketpost.server.broker_tables import Identity, load_tables_blocking
from rocketpost.server.clock import BrokerClock
from rocketpost.server.dispatch import Dispatcher
from rocketpost.server.features.dedup_recovery import recover_blocking
from rocketpost.server.features.timer import open_timers_blocking
from rocketpost.server.name_servers.address_server import AddressServer
from rocketpost.server.name_servers.registration import (
    Announcement,
    Registration,
    parse_name_servers,
)
from rocketpost.server.services import Services
from rocketpost.server.settings.broker import BrokerConfig, broker_settings, with_new_spellings
from rocketpost.server.settings.live_config import (
    OVERRIDES_FILE,
    LiveConfig,
    Override,
    apply_overrides,
    decode_overrides,
)
from rocketpost.settings import adjustments
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Arrival
from rocketpost.store.files import RealFiles
from rocketpost.store.heritage import is_foreign_blocking
from rocketpost.store.layout import Layout
from rocketpost.store.message_store import MessageStore
from rocketpost.store.retention import CleanPlan, check_levels
from rocketpost.store.tables import TableFile
from rocketpost.store.timer.store import TimerStore
from rocketpost.transport.connection import Connection
from rocketpost.transport.host import local_ip
from rocketpost.transport.listener import Listener, room_of_process

logger = logging.getLogger(__name__)

VIP_STEP: Final = 2
"""Old Java clients send to the port this much below the broker's."""

_TICK_SECONDS: Final = 1.0
_EXPIRY_TICKS: Final = 10


class BrokerServer:
    """One broker. Belongs to the event loop; any number may run in one process.

    Args:
        values: Properties by RocketMQ's keys, as a ``broker.conf`` holds them.
        accept_missing: Whether to start although files of the commit log are missing.
        clock: The clock, if not that of the machine.

    Raises:
        ConfigError: A setting is unknown, malformed or cannot be honoured.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        *,
        accept_missing: bool = False,
        clock: BrokerClock | None = None,
    ) -> None:
        self._accept_missing = accept_missing
        given = with_new_spellings(values)
        self._values = {"storePathRootDir": str(Path.home() / "store")} | given
        self._broker, self._store_config = broker_settings(self._values)
        self._clock = clock or BrokerClock()
        self._dispatcher = Dispatcher()
        room = room_of_process(unwritten_bytes_max=self._broker.unwritten_bytes_max)
        self._turns = room.turns
        self._listener, self._vip = (
            Listener(
                on_request=self._dispatcher.handle,
                on_lost=self._lost,
                idle_seconds=self._broker.idle_seconds,
                room=room,
            )
            for _ in range(2)
        )
        self._name_servers: list[str] = []
        self._cleaning = asyncio.Lock()
        self._order_topics: dict[str, frozenset[str]] = {}
        self._registration: Registration | None = None
        self._services: Services | None = None
        self._work: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The broker's name."""
        return self._broker.broker_name or _host_name()

    @property
    def address(self) -> str:
        """Address at which clients reach it."""
        return f"{self._ip}:{self._listener.port}"

    @property
    def port(self) -> int:
        """The bound port, which differs from the wished one if that was 0."""
        return self._listener.port

    @property
    def name_servers(self) -> str:
        """The name servers that it registers with."""
        configured = self._broker.name_servers or os.environ.get("NAMESRV_ADDR", "")
        return configured or ";".join(self._name_servers)

    @property
    def unregistered(self) -> list[str]:
        """The name servers that do not know of it."""
        registered = self._registration.registered if self._registration else frozenset()
        return [address for address in self._name_servers if address not in registered]

    @property
    def directory(self) -> str:
        """Directory of its data."""
        return self._store_config.root

    async def start(self) -> None:
        """Return when requests are served and the name servers know of it.

        Raises:
            ConfigError: An address cannot be bound or is none.
            StoreError: The store cannot be opened.
        """
        live, overrides_file = await self._load_settings()
        self._ip = await asyncio.to_thread(_public_ip, self._broker.public_ip)
        address_server = self._address_server()
        self._name_servers = parse_name_servers(self.name_servers)
        if address_server is not None:
            self._name_servers = await address_server.fetch() or []
        await self._listener.bind(self._broker.bind_address, self._broker.listen_port)
        try:
            services = await self._open(live, overrides_file)
        except BaseException:
            await self._listener.stop()
            raise
        self._services = services
        self._registration = Registration(
            name_servers=self._name_servers,
            announce=self._announcement,
            period_ms=self._broker.register_period_ms,
            timeout_ms=self._broker.register_timeout_ms,
            on_order_topics=self._take_order_topics,
        )
        await self._listener.accept()
        await self._listen_vip()
        self._work = asyncio.create_task(self._run(services, address_server), name="broker")
        await self._registration.start()

    async def stop(self) -> None:
        """Take leave of the name servers, answer who waits, save everything, close."""
        services, registration, work = self._services, self._registration, self._work
        if services is None or registration is None or work is None:
            return
        await registration.stop()
        work.cancel()
        await asyncio.wait((work,))
        await services.announcing.close()
        services.sends.commit()
        # What senders still wait for is made durable, so that a planned stop refuses nothing.
        with contextlib.suppress(StoreError, OSError):
            await asyncio.to_thread(services.store.save_blocking)
        await asyncio.sleep(0)
        services.close()
        await self._listener.stop()
        await self._vip.stop()
        await self._dispatcher.stop()
        try:
            await services.save()
        finally:
            await asyncio.to_thread(services.store.close_blocking)
        self._services = None

    async def failed(self) -> str:
        """Return, if ever, why the broker cannot go on."""
        assert self._work is not None
        await asyncio.wait((self._work,))
        if self._work.cancelled():
            return "it was stopped"
        logger.error("a background task ended", exc_info=self._work.exception())
        return f"a background task ended: {self._work.exception()!r}"

    # Start.

    async def _load_settings(self) -> tuple[LiveConfig, TableFile[dict[str, Override]]]:
        layout = Layout(self._store_config.root)
        file: TableFile[dict[str, Override]] = TableFile(
            f"{layout.config}/{OVERRIDES_FILE}",
            files=RealFiles(),
            decode=decode_overrides,
            empty=dict,
            is_guarded=True,
        )
        overrides = await asyncio.to_thread(file.load_blocking)
        values, kept = apply_overrides(
            self._values,
            overrides,
            (BrokerConfig, StoreConfig),
            now_ms=self._clock.now_ms(),
        )
        self._broker, self._store_config = broker_settings(values)
        for section in (self._broker, self._store_config):
            for note in adjustments(section, values):
                logger.warning("setting adjusted: %s", note)
        live = LiveConfig(
            self._broker,
            self._store_config,
            clock=self._clock,
            from_file=self._values,
            overrides=kept,
        )
        live.watch(BrokerConfig, self._broker_changed)
        live.watch(StoreConfig, self._store_changed)
        live.guard(StoreConfig, self._check_store)
        return live, file

    async def _open(
        self, live: LiveConfig, overrides_file: TableFile[dict[str, Override]]
    ) -> Services:
        layout = Layout(self._store_config.root, self._store_config.commit_log_path)
        is_foreign = await asyncio.to_thread(is_foreign_blocking, layout, RealFiles())
        store = await asyncio.to_thread(
            MessageStore.open_blocking,
            self._store_config,
            clock=self._clock,
            accept_missing=self._accept_missing,
            on_durable=self._durable_from_thread,
            on_broken=self._broken_from_thread,
            on_arrivals=self._arrived,
        )
        timers: TimerStore | None = None
        try:
            identity = Identity(
                cluster=self._broker.cluster_name,
                name=self.name,
                ip=self._ip,
                port=self._listener.port,
            )
            tables = await asyncio.to_thread(
                load_tables_blocking,
                store.layout,
                identity=identity,
                config=self._broker,
                clock=self._clock,
                timed=self._store_config.timer_enabled,
            )
            known = await asyncio.to_thread(
                recover_blocking,
                store,
                topics=tables.topics,
                config=self._broker,
                clock=self._clock,
                is_foreign=is_foreign,
            )
            timers = await asyncio.to_thread(
                open_timers_blocking, store, clock=self._clock, topics=list(tables.topics.configs)
            )
            services = Services(
                store=store,
                tables=tables,
                known=known,
                timers=timers,
                identity=identity,
                clock=self._clock,
                live=live,
                overrides_file=overrides_file,
                name_servers=self._name_servers,
                clean=self._clean_asked,
                on_topic_change=self._topics_changed,
                wait_registered=self._wait_registered,
                registration_values=self._registration_values,
                turns=self._turns,
            )
            self._dispatcher.use(services.routes())
        except BaseException:
            if timers is not None:
                timers.close()
            await asyncio.to_thread(store.close_blocking)
            raise
        return services

    async def _listen_vip(self) -> None:
        port = self._listener.port - VIP_STEP
        if port <= 0:
            return
        try:
            await self._vip.start(self._broker.bind_address, port)
        except ConfigError as error:
            logger.warning("no port for old clients: port=%s reason=%s", port, error)

    # While it runs.

    async def _run(self, services: Services, address_server: AddressServer | None) -> None:
        async with asyncio.TaskGroup() as group:
            if address_server is not None:
                group.create_task(self._follow(address_server), name="address server")
            group.create_task(services.persistence.run(), name="persistence")
            for feature in services.features:
                group.create_task(feature.run(), name=type(feature).__name__)
            group.create_task(self._tick(services), name="ticker")
            group.create_task(self._clean_regularly(services.store), name="cleaner")

    def _address_server(self) -> AddressServer | None:
        """Return who is asked for name servers, if it is needed."""
        wanted = self._broker.ask_address_server and not self.name_servers
        return AddressServer(self._broker) if wanted else None

    async def _follow(self, address_server: AddressServer) -> None:
        """Register with the name servers that are listed, whenever others are."""
        while True:
            await asyncio.sleep(self._broker.address_server_poll_ms / 1000)
            listed = await address_server.fetch()
            if listed is None or set(listed) == set(self._name_servers):
                continue
            assert self._services is not None
            assert self._registration is not None
            logger.info("name servers changed: addresses=%s", ";".join(listed))
            for gone in set(self._name_servers) - set(listed):
                self._order_topics.pop(gone, None)
            self._name_servers = listed
            self._services.assignment.use_name_servers(listed)
            await self._registration.use(listed)

    async def _tick(self, services: Services) -> None:
        ticks = 0
        # Who is to be forgotten sooner is looked for more often.
        every = min(_EXPIRY_TICKS, max(1, self._broker.member_expiry_ms // 12_000))
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            ticks += 1
            services.stats.sample()
            if ticks % every == 0:
                services.clients.expire()

    async def _clean_regularly(self, store: MessageStore) -> None:
        while True:
            await asyncio.sleep(self._store_config.clean_interval_ms / 1000)
            await self._clean(store, is_asked=False)

    async def _clean_asked(self) -> int:
        assert self._services is not None
        return await self._clean(self._services.store, is_asked=True)

    async def _clean(self, store: MessageStore, *, is_asked: bool) -> int:
        """Delete what has expired; return how many files went."""
        cleaning = store.cleaning
        async with self._cleaning:
            now_ms = self._clock.wall_ms()  # as the times of files are
            hour = datetime.fromtimestamp(now_ms / 1000).hour
            try:
                services = self._services
                plan = await asyncio.to_thread(
                    cleaning.plan_blocking,
                    now_ms=now_ms,
                    hour=hour,
                    is_asked=is_asked,
                    held=services.holds.position() if services is not None else None,
                    needed=services.oldest_needed_position() if services is not None else None,
                )
                if services is not None:
                    plan = await self._vacate(services, plan)
                cleaning.forget(plan)
                while cleaning.trim_queues():  # noqa: ASYNC110 - lets requests in between
                    await asyncio.sleep(0)
                return await asyncio.to_thread(cleaning.unlink_blocking)
            except Exception:
                logger.exception("cleaning failed, will be tried again")
                return 0

    async def _vacate(self, services: Services, plan: CleanPlan) -> CleanPlan:
        """Have what is needed moved out of the segments of a plan; return what may go now."""
        segment_bytes = self._store_config.segment_bytes
        try:
            if plan.gone:
                await services.move_messages_before(plan.gone[-1] + segment_bytes)
        except StoreError as error:
            why_kept = str(error)
        else:
            return plan
        gone: list[Position] = []
        with contextlib.suppress(StoreError):
            for start in plan.gone:
                await services.move_messages_before(start + segment_bytes)
                gone.append(start)
        return plan._replace(gone=tuple(gone), why_kept=why_kept)

    def _arrived(self, messages: list[Arrival]) -> None:
        if self._services is not None:
            self._services.arrived(messages)

    def _lost(self, connection: Connection) -> None:
        if self._services is not None:
            self._services.connection_lost(connection)

    def _durable_from_thread(self, position: Position) -> None:
        if self._services is not None:
            self._services.sends.gate.advance_from_thread(position)

    def _broken_from_thread(self, reason: str) -> None:
        if self._services is not None:
            self._services.sends.fail_from_thread(reason)

    def _topics_changed(self) -> None:
        if self._registration is not None:
            self._registration.changed()

    def _take_order_topics(self, address: str, table: Mapping[str, str]) -> None:
        # Name servers may differ, when one missed a change: ordered is what any of them says.
        self._order_topics[address] = frozenset(table)
        if self._services is not None:
            self._services.topics.mark_ordered(frozenset().union(*self._order_topics.values()))

    def _registration_values(self) -> dict[str, str]:
        if self._registration is None:
            return {}
        problems = [f"{where}: {why}" for where, why in self._registration.problems.items()]
        return {
            "nameServersRegistered": ";".join(sorted(self._registration.registered)),
            "nameServerProblems": "; ".join(problems),
        }

    async def _wait_registered(self) -> None:
        if self._registration is not None:
            await self._registration.wait_registered()

    def _broker_changed(self, config: BrokerConfig) -> None:
        self._broker = config
        if self._services is not None:
            self._services.configure(config, self._store_config)

    def _check_store(self, wanted: StoreConfig) -> None:
        if self._services is not None:
            ratio = self._services.store.cleaning.disk_ratio
            check_levels(wanted, self._store_config, ratio=ratio)

    def _store_changed(self, config: StoreConfig) -> None:
        self._store_config = config
        if self._services is not None:
            self._services.configure(self._broker, config)

    def _announcement(self) -> Announcement:
        assert self._services is not None
        topics = self._services.topics
        return Announcement(
            cluster=self._broker.cluster_name,
            name=self.name,
            address=self.address,
            ha_address=self.address,
            data_version=topics.version,
            topics=topics.configs,
            permission=self._broker.permission,
        )


def _host_name() -> str:
    name = re.sub(r"[^a-zA-Z0-9_-]", "-", socket.gethostname())
    return name if name and topic_problem(name) is None else "broker"


def _public_ip(wished: str) -> str:
    """Return the address that clients are told; records carry it, so a name is resolved here."""
    if not wished:
        return local_ip()
    try:
        return str(ipaddress.ip_address(wished))
    except ValueError:
        try:
            return socket.gethostbyname(wished)
        except OSError as error:
            raise ConfigError(f"brokerIP1={wished!r} is no address: {error}") from None
