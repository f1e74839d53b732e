"""The broker process: binds the ports, opens the store, begins a term, stops in order.

``server.startup`` opens the state that the process keeps. A term of office (``server.term``) does
the work of a leader or a follower with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

from rocketpost.kernel import FORM
from rocketpost.server.acting_term import ActingTerm
from rocketpost.server.clock import BrokerClock
from rocketpost.server.context import BrokerContext
from rocketpost.server.features.access import guard
from rocketpost.server.follower_term import FollowerTerm
from rocketpost.server.group.broker import GroupBroker
from rocketpost.server.group.member import GroupMember
from rocketpost.server.metrics.monitor import Monitor
from rocketpost.server.name_servers.address_server import AddressServer
from rocketpost.server.name_servers.registration import parse_name_servers
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.follower_refusals import refusing_routes
from rocketpost.server.routes.pools import PoolKind
from rocketpost.server.secure.certificates import PortSecurity, secure_ports
from rocketpost.server.settings.broker import (
    BrokerConfig,
    broker_settings,
    name_of,
    with_new_spellings,
)
from rocketpost.server.settings.group import group_settings, with_group_defaults
from rocketpost.server.settings.live_config import LiveConfig, Override
from rocketpost.server.startup import (
    apply_settings,
    load_settings,
    open_context,
    open_store,
    resolve_ip_blocking,
)
from rocketpost.server.tables.broker_tables import Identity
from rocketpost.server.term import LeaderTerm, Term, unsaved_files_logged
from rocketpost.server.vip import listen_vip
from rocketpost.store.config import StoreConfig
from rocketpost.store.files import FileSystem, RealFiles
from rocketpost.store.layout import Layout
from rocketpost.store.member.member_store import MemberStore
from rocketpost.store.origin import is_foreign_blocking
from rocketpost.store.retention import check_levels
from rocketpost.store.tables import TableFile
from rocketpost.transport.listener import Listener, room_of_process

logger = logging.getLogger(__name__)


class BrokerServer:
    """One broker. Belongs to the event loop; any number may run in one process.

    Args:
        values: Properties by RocketMQ's keys, as a ``broker.conf`` holds them.
        accept_missing: Whether to start although files of the commit log are missing.
        sharers: Number of brokers that share the memory of this machine.
        clock: The clock, if not the machine's clock.
        files: The file system, if not the machine's.

    Raises:
        ConfigError: A setting is unknown, malformed or cannot be honoured.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        *,
        accept_missing: bool = False,
        sharers: int = 1,
        clock: BrokerClock | None = None,
        files: FileSystem | None = None,
    ) -> None:
        self._accept_missing = accept_missing
        self._files = files if files is not None else RealFiles()
        self._group_config = group_settings(values)
        self._group: GroupBroker | None = None
        given = with_group_defaults(with_new_spellings(values))
        self._values = {"storePathRootDir": str(Path.home() / "store")} | given
        self._broker, self._store_config = broker_settings(self._values)
        self._clock = clock or BrokerClock()
        self._dispatcher = Dispatcher()
        self._room = room = room_of_process(
            unwritten_bytes_max=self._broker.unwritten_bytes_max, sharers=sharers
        )
        self._listener, self._vip = (
            Listener(
                on_request=self._dispatcher.handle,
                on_lost=lambda lost: self._term.connection_lost(lost),
                idle_seconds=self._broker.idle_seconds,
                room=room,
                express=self._dispatcher.take,
            )
            for _ in range(2)
        )
        self._security = PortSecurity()
        self._name_servers: list[str] = []
        self._context: BrokerContext
        self._term = Term()
        self._term_number = 0
        self._changing = asyncio.Lock()
        self._failure: asyncio.Future[str] | None = None
        self._work: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self.monitor = Monitor(
            self._broker,
            term=lambda: self._term,
            name_servers=lambda: self._name_servers,
            dispatcher=self._dispatcher,
            room=room,
        )

    @property
    def name(self) -> str:
        """The broker's name."""
        return name_of(self._broker)

    @property
    def address(self) -> str:
        """Address at which clients reach it."""
        return f"{self._ip}:{self._listener.port}"

    @property
    def port(self) -> int:
        """The bound port, which differs from the configured port if that is 0."""
        return self._listener.port

    @property
    def name_servers(self) -> str:
        """The name servers that it registers with."""
        configured = self._broker.name_servers or os.environ.get("NAMESRV_ADDR", "")
        return configured or ";".join(self._name_servers)

    @property
    def unregistered(self) -> list[str]:
        """The name servers that do not know this broker."""
        return [each for each in self._name_servers if each not in self._term.registered]

    @property
    def is_leader(self) -> bool:
        """Whether it serves as a master, or as the leader of its group."""
        return isinstance(self._term, LeaderTerm)

    @property
    def held_count(self) -> int:
        """Number of requests that wait for something to happen before they are answered."""
        return self._term.features.held

    @property
    def directory(self) -> str:
        """Directory of its data."""
        return self._store_config.root

    async def start(self) -> None:
        """Return when requests are served and the name servers know this broker.

        Raises:
            ConfigError: An address is invalid or cannot be bound.
            StoreError: The store cannot be opened.
        """
        level = logging.WARNING if FORM.is_unusable else logging.INFO
        logger.log(level, "broker starts: kernel=%s reason=%s", FORM.word, FORM.reason)
        live, overrides_file = await self._load_settings()
        self._security = await secure_ports(self._values, self._listener, self._vip)
        self._ip = await asyncio.to_thread(resolve_ip_blocking, self._broker.public_ip)
        address_server = self._address_server()
        self._name_servers = parse_name_servers(self.name_servers)
        if address_server is not None:
            self._name_servers = await address_server.fetch() or []
        await self._listener.bind(self._broker.bind_address, self._broker.listen_port)
        try:
            await self.monitor.start()
            await self._open(live, overrides_file)
        except BaseException:
            await self._listener.stop()
            await self.monitor.stop()
            raise
        await self._listener.accept()
        await listen_vip(self._vip, self._broker.bind_address, self._listener.port)
        self._failure = asyncio.get_running_loop().create_future()
        self._security.start()
        self._work = asyncio.create_task(self._run(address_server), name="broker")
        self._work.add_done_callback(self._on_task_end)
        self._begin_term(self._term)
        await self._term.register()
        self._begin_work()

    def _begin_work(self) -> None:
        """Save tables, and take part in the group, until the store is closed."""
        self._saving = asyncio.create_task(self._context.persistence.run(), name="persistence")
        self._saving.add_done_callback(self._on_task_end)
        if self._group is not None:
            self._group.start().add_done_callback(self._on_task_end)

    @property
    def group(self) -> GroupMember | None:
        """This broker's part in its group; None if it is in none."""
        return self._group.member if self._group is not None else None

    async def become_leader(self) -> None:
        """End the current term and begin one as the leader.

        Raises:
            StoreError: The files of a feature cannot be read; the broker cannot continue.
        """
        await self._change_term(self._open_leader)

    async def become_follower(self, broker_id: int) -> None:
        """End the current term and begin one as a follower.

        Args:
            broker_id: The id under which it registers with name servers, 1 or more.

        Raises:
            StoreError: The files of a feature cannot be read; the broker cannot continue.
        """
        await self._change_term(lambda: self._open_follower(broker_id))

    async def stop(self) -> None:
        """Unregister, answer waiting requests, save everything, close.

        The leader of a group hands over first, while it serves.
        """
        work, failure = self._work, self._failure
        if work is None or failure is None:
            return
        if self._group is not None:
            await self._group.hand_over()
        async with self._changing:
            self._work = None
            try:
                await self._end_term("the broker is shutting down")
            finally:
                await self._listener.stop()
                await self._vip.stop()
                await self.monitor.stop()
                await self._security.stop()
                work.cancel()
                await asyncio.wait((work,))
                await self._close_store()
        if not failure.done():
            failure.set_result("it was stopped")

    async def _close_store(self) -> None:
        """Leave the group, save the tables, and close the store, unless that is done."""
        saving, self._saving = self._saving, None
        if saving is None:
            return
        try:
            if self._group is not None:
                await self._group.stop()
            saving.cancel()
            await asyncio.wait((saving,))
            await self._context.persistence.close()
        finally:
            await self._context.access.close()
            await asyncio.to_thread(self._context.store.close_blocking)

    async def _begin_again(self, change_blocking: Callable[[], None]) -> None:
        """Close the store, have its files changed, and open it again; refuse requests meanwhile.

        Raises:
            StoreError: That failed, and the broker cannot continue; its next start finishes the
            change.
        """
        async with self._changing:
            if self._work is None:
                return  # it is stopping
            try:
                with unsaved_files_logged():  # the new log has a copy of all tables
                    await self._end_term("the broker gets a new log; try again")
                with unsaved_files_logged():
                    await self._close_store()
                await asyncio.to_thread(change_blocking)
                await self._open(*await self._load_settings())
            except BaseException as error:
                self._fail(f"the log of the group could not be taken over: {error}")
                raise
            self._begin_term(self._term)
            self._announce_later(self._term, Term())
            self._begin_work()

    async def wait_failed(self) -> str:
        """Wait until the broker cannot continue, and return the reason."""
        assert self._failure is not None
        return await asyncio.shield(self._failure)

    # Terms.

    async def _change_term(
        self, open_term: Callable[[], Awaitable[Term]], *, stays_known: bool = False
    ) -> None:
        """End the current term and begin another.

        Args:
            open_term: Opens it.
            stays_known: Whether name servers know the broker in its old role until they know it in
                the new one; it then registers in the background.
        """
        async with self._changing:
            assert self._work is not None, "the broker does not run"
            before = self._term
            with unsaved_files_logged():
                await self._end_term(
                    "the broker is changing its role; try again", stays_known=stays_known
                )
            between = self._term
            try:
                self._term = await open_term()
            except BaseException as error:
                self._fail(f"no new term could begin: {error!r}")
                raise
            for connection in between.lost:
                self._term.connection_lost(connection)
            self._dispatcher.use(self._term.routes(), self._term.lanes)
            self._begin_term(self._term)
            if stays_known:
                self._announce_later(self._term, before)
            else:
                await self._term.register()

    def _announce_later(self, term: Term, before: Term) -> None:
        """Register a new term, then close the connections of the one before."""

        async def announce() -> None:
            try:
                await term.register()
            finally:
                await before.forget_registration()

        self._announcing = asyncio.create_task(announce(), name="registration of a new role")

    async def _open_leader(self, *, is_first: bool = False, is_foreign: bool = False) -> Term:
        self._term_number += 1
        return await LeaderTerm.open(
            self._context, number=self._term_number, is_first=is_first, is_foreign=is_foreign
        )

    async def _open_follower(self, broker_id: int) -> Term:
        kind = ActingTerm if self._broker.acting_master else FollowerTerm
        return await kind.open(self._context, broker_id=broker_id)

    def _begin_term(self, term: Term) -> None:
        term.on_routes_changed = lambda: self._dispatcher.use(term.routes(), term.lanes)
        term.begin().add_done_callback(self._on_task_end)

    async def _end_term(self, reason: str, *, stays_known: bool = False) -> None:
        """End the term; requests are refused from then on.

        Args:
            reason: The reason in the answer to refused requests.
            stays_known: Whether the name servers are not told.

        Raises:
            StoreError: A file could not be saved; the file saved before is still there.
        """
        term, announcing, self._announcing = self._term, self._announcing, None
        if announcing is not None:
            announcing.cancel()
            await asyncio.wait((announcing,))
        if stays_known:
            await term.pause_registration()
        else:
            await term.unregister()
        between = refusing_routes(self._dispatcher.routes.values(), reason)
        if self._group is not None and stays_known:
            between = self._group.replace_between_terms(between)
        self._dispatcher.use(between)
        await term.close(reason)
        await self._dispatcher.stop(but=(PoolKind.LEADER,) if stays_known else ())
        try:
            await term.save()
        finally:
            self._term = Term()

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            logger.error("a background task ended", exc_info=task.exception())
            self._fail(f"a background task ended: {task.exception()!r}")

    def _fail(self, reason: str) -> None:
        if self._failure is not None and not self._failure.done():
            self._failure.set_result(reason)

    # Start.

    async def _load_settings(self) -> tuple[LiveConfig, TableFile[dict[str, Override]]]:
        live, file = await load_settings(
            self._values, root=self.directory, clock=self._clock, files=self._files
        )
        self._broker, self._store_config = live.section(BrokerConfig), live.section(StoreConfig)
        return live, file

    async def _open(self, live: LiveConfig, overrides_file: TableFile[dict[str, Override]]) -> None:
        layout = Layout(self._store_config.root, self._store_config.commit_log_path)
        is_foreign = await asyncio.to_thread(is_foreign_blocking, layout, self._files)
        store, member = await open_store(
            self._store_config,
            clock=self._clock,
            files=self._files,
            is_member=self._group_config is not None,
            accept_missing=self._accept_missing,
        )
        try:
            context = self._context = await open_context(
                store,
                identity=Identity(
                    cluster=self._broker.cluster_name,
                    name=self.name,
                    ip=self._ip,
                    port=self._listener.port,
                ),
                clock=self._clock,
                settings=live,
                overrides_file=overrides_file,
                turns=self._room.turns,
                name_servers=lambda: self._name_servers,
                is_member=member is not None,
            )
            context.peers.use_tls(self._security)
            apply_settings(context)
            guard(self._dispatcher, context, lambda: self._term.features)
            self._listener.note_users(self._dispatcher.gate is not None)
            if member is not None:
                self._group = await self._join_group(member)
                self._term = await self._group.open_follower()
            elif self._broker.is_slave:
                self._term = await self._open_follower(self._broker.broker_id)
            else:
                self._term = await self._open_leader(is_first=True, is_foreign=is_foreign)
        except BaseException:
            if self._group is not None:
                await self._group.stop()
            await asyncio.to_thread(store.close_blocking)
            raise
        live.watch(BrokerConfig, self._on_broker_change)
        live.watch(StoreConfig, self._on_store_change)
        live.guard(StoreConfig, self._check_store)
        self._dispatcher.use(self._term.routes(), self._term.lanes)
        self.monitor.use(self._context)

    async def _join_group(self, member: MemberStore) -> GroupBroker:
        assert self._group_config is not None
        return await GroupBroker.open(
            self._group_config,
            member,
            context=self._context,
            change_term=partial(self._change_term, stays_known=True),
            begin_again=self._begin_again,
            dispatcher=self._dispatcher,
        )

    async def _run(self, address_server: AddressServer | None) -> None:
        async with asyncio.TaskGroup() as group:
            if address_server is not None:
                group.create_task(self._follow(address_server), name="address server")
            if self.monitor.is_on:
                group.create_task(self.monitor.run(), name="monitor")
            await asyncio.Event().wait()

    def _address_server(self) -> AddressServer | None:
        """Return the address server to poll for name servers, or None if they are configured."""
        is_wanted = self._broker.ask_address_server and not self.name_servers
        return AddressServer(self._broker) if is_wanted else None

    async def _follow(self, address_server: AddressServer) -> None:
        """Register with new name servers when the list of the address server changes."""
        while True:
            pause = self._broker.address_server_poll_ms / 1000
            self._name_servers = await address_server.wait_change(self._name_servers, pause=pause)
            await self._term.features.name_servers_changed(self._name_servers)

    def _on_broker_change(self, config: BrokerConfig) -> None:
        before, self._broker = self._broker, config
        self._configure()
        if before.permission != config.permission:
            self._context.tables.topics.touch()

    def _check_store(self, wanted: StoreConfig) -> None:
        check_levels(wanted, self._store_config, ratio=self._context.store.cleaning.disk_ratio)

    def _on_store_change(self, config: StoreConfig) -> None:
        self._store_config = config
        self._configure()

    def _configure(self) -> None:
        apply_settings(self._context)
        self._term.features.configure(self._broker, self._store_config)
