"""``rocketpost up``: a name server and a broker in one process, for a laptop or a test.

With several brokers, each has a process of its own, and this one has the name server.
"""

from __future__ import annotations

import abc
import asyncio
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocketpost.errors import ConfigError, StoreError
from rocketpost.server.broker import BrokerServer
from rocketpost.server.fleet.fleet import Fleet, fleet_ready, make_fleet
from rocketpost.server.fleet.group_plan import (
    group_sizes_blocking,
    plan_group_blocking,
    warn_of_group_stores,
    warn_of_single_store,
)
from rocketpost.server.fleet.plan import BrokerPlan, plan_brokers
from rocketpost.server.main import broker_ready, namesrv_ready, warn_of_fleet
from rocketpost.server.namesrv.process import NameServer, NamesrvConfig
from rocketpost.server.process import run
from rocketpost.server.proxy.broker import ProxiedBroker, settings_for_up
from rocketpost.server.settings.access import AccessConfig
from rocketpost.server.settings.broker import (
    broker_settings,
    name_of,
    read_properties,
    setting_notes,
    with_new_spellings,
    without_blanks,
)
from rocketpost.server.settings.up import (
    OF_OPTIONS,
    SEGMENT,
    file_notes,
    namesrv_directory,
    parse_size,
    sizes_blocking,
    store_directory,
)
from rocketpost.settings import build, keys_of
from rocketpost.transport.host import local_ip

if TYPE_CHECKING:
    from rocketpost.proxy.settings import ProxyConfig

_LEADER_SECONDS: Final = 60


class Node(abc.ABC):
    """A name server, and the settings of the brokers that register with it.

    Args:
        data: The directory of messages and settings.
        host: The address to listen on, which clients get as well. If it stands for all
            addresses, they get the one that this host uses for outgoing connections.
        namesrv_port: The name server's port; 0 for a free one.
        broker_port: The broker's port; 0 for a free one.
        sync_flush: Whether to acknowledge only messages on disk; None leaves it to ``settings``.
        settings: Properties of the broker by RocketMQ's keys; missing sizes of files are those of
            an existing store, else small ones.
        accept_missing: Whether to start although files of the commit log are missing.
    """

    def __init__(
        self,
        data: Path,
        *,
        host: str = "127.0.0.1",
        namesrv_port: int = 0,
        broker_port: int = 0,
        sync_flush: bool | None = None,
        settings: Mapping[str, str] | None = None,
        accept_missing: bool = False,
    ) -> None:
        self._accept_missing = accept_missing
        self._settings = with_new_spellings(settings or {})
        self._data = data.absolute()
        self._host = host
        self.public = local_ip() if host in ("", "0.0.0.0") else host
        """The address that clients get."""
        self._broker_port = broker_port
        self._sync_flush = sync_flush
        self.name_server = NameServer(self._namesrv_config(namesrv_port), tls=self._settings)

    def _namesrv_config(self, port: int) -> NamesrvConfig:
        """Return the name server's settings: access control is that of the broker."""
        shared = {
            key: self._settings[key] for key in keys_of(AccessConfig) if key in self._settings
        }
        if "brokerClusterName" in self._settings:
            shared["clusterName"] = self._settings["brokerClusterName"]
        home = namesrv_directory(self._data)
        return build(
            NamesrvConfig,
            {
                **shared,
                "listenPort": str(port),
                "bindAddress": self._host,
                "kvConfigPath": f"{home}/kvConfig.json",
                "authConfigPath": home,
            },
        )

    @property
    def address(self) -> str:
        """The name server's address, as clients use it."""
        return f"{self.public}:{self.name_server.port}"

    @property
    def directory(self) -> str:
        """The directory of the store."""
        return store_directory(self._data)

    async def start(self) -> None:
        """Return when the servers serve requests."""
        try:
            await self.name_server.start()
        except ConfigError as error:
            raise _with_option(error, "--namesrv-port") from error
        try:
            await self.start_brokers()
        except ConfigError as error:
            await self.name_server.stop()
            raise _with_option(error, "--broker-port") from error
        except StoreError as error:
            await self.name_server.stop()
            raise StoreError(str(error).replace(SEGMENT, "--segment-size")) from error
        except BaseException:
            await self.name_server.stop()
            raise

    @abc.abstractmethod
    async def start_brokers(self) -> None:
        """Return when the brokers serve requests."""

    def values(self) -> dict[str, str]:
        """Return the broker's properties, without sizes that neither file nor options give."""
        values = (
            {"brokerName": "broker-a"}
            | self._settings
            | {
                "listenPort": str(self._broker_port),
                "bindAddress": self._host,
                "brokerIP1": self.public,
                "namesrvAddr": self.address,
                "storePathRootDir": self.directory,
            }
        )
        if self._sync_flush is not None:
            values["flushDiskType"] = "SYNC_FLUSH" if self._sync_flush else "ASYNC_FLUSH"
        return values


class SingleNode(Node):
    """A name server and a broker that share an event loop.

    Args:
        data: As in ``Node``, which has the other arguments too.
        grpc: The settings of the gRPC port; None for no such port.
    """

    broker: BrokerServer | None = None

    def __init__(self, data: Path, *, grpc: ProxyConfig | None = None, **options: Any) -> None:
        super().__init__(data, **options)
        self._grpc = grpc

    async def start_brokers(self) -> None:
        """Return when the broker serves requests."""
        values = self.values()
        values |= await asyncio.to_thread(sizes_blocking, self.directory, values)
        accept_missing = self._accept_missing
        if self._grpc is None:
            self.broker = BrokerServer(values, accept_missing=accept_missing)
        else:
            grpc = self._grpc
            self.broker = ProxiedBroker(values, proxy=grpc, accept_missing=accept_missing)
        await self.broker.start()

    async def stop(self) -> None:
        """Return when both are closed and saved."""
        if self.broker is not None:
            await self.broker.stop()
        await self.name_server.stop()

    async def wait_failed(self) -> str:
        """Wait until the broker cannot continue, and return the reason."""
        assert self.broker is not None
        return await self.broker.wait_failed()


class FleetNode(Node):
    """A name server, and several brokers in processes of their own.

    Args:
        data: As in ``Node``, which has the other arguments too.
        count: Number of brokers.
    """

    def __init__(self, data: Path, *, count: int, **options: Any) -> None:
        super().__init__(data, **options)
        self.count = count
        self.fleet: Fleet | None = None

    async def start_brokers(self) -> None:
        """Return when all brokers serve requests."""
        plans = await asyncio.to_thread(self.plan_blocking)
        self.fleet = make_fleet(plans, accept_missing=self._accept_missing)
        await self.fleet.start()

    def plan_blocking(self) -> list[BrokerPlan]:
        """Return the brokers of the command, with sizes of files for those that lack them."""
        plans = plan_brokers(self.values(), self.count)
        for plan in plans:
            plan.values.update(sizes_blocking(plan.values["storePathRootDir"], plan.values))
        return plans

    async def stop(self) -> None:
        """Return when all servers are closed and saved."""
        try:
            if self.fleet is not None:
                await self.fleet.stop()
        finally:
            await self.name_server.stop()

    async def wait_failed(self) -> str:
        """Wait until brokers can no longer be kept running, and return the reason."""
        assert self.fleet is not None
        return await self.fleet.wait_failed()


class GroupNode(FleetNode):
    """A name server, and the members of a group in processes of their own.

    Arguments are those of ``FleetNode``.
    """

    leader = ""
    """Address of the first leader."""

    async def start_brokers(self) -> None:
        """Return when the group has a leader that serves requests.

        Raises:
            StoreError: No leader was elected in time.
        """
        await super().start_brokers()
        assert self.fleet is not None
        broker, _ = broker_settings(self.values())
        try:
            async with asyncio.timeout(_LEADER_SECONDS):
                self.leader = await self.name_server.wait_master(
                    broker.cluster_name, name_of(broker)
                )
        except TimeoutError:
            await self.fleet.stop()
            raise StoreError(
                f"the {self.count} members elected no leader within {_LEADER_SECONDS} s; their "
                "log says why"
            ) from None

    def plan_blocking(self) -> list[BrokerPlan]:
        """Return the members of the group, with sizes of files if they lack them."""
        plans = plan_group_blocking(self.values(), self.count, host=self.public)
        sizes = group_sizes_blocking(plans)
        for plan in plans:
            plan.values.update(sizes)
        return plans


def run_up(
    *,
    data: Path,
    host: str,
    namesrv_port: int,
    broker_port: int,
    sync_flush: bool | None,
    config: Path | None = None,
    segment_size: str | None = None,
    accept_missing: bool = False,
    count: int = 1,
    nodes: int = 0,
    grpc_port: int | None = None,
    on_ready: Callable[[str], None] = lambda address: None,
) -> int:
    """Run until Ctrl-C; return the exit code.

    ``nodes`` is the number of members of a group that elects its leader; 0 for no group.
    ``grpc_port`` is the port for clients of RocketMQ 5; None for the usual one, if possible.
    ``on_ready`` is called with the name server's address when clients are served.
    """

    def serving(describe: Callable[[Any], str]) -> Callable[[Any], str]:
        def tell(node: Node) -> str:
            on_ready(node.address)
            return describe(node)

        return tell

    options: dict[str, Any] = {
        "host": host,
        "namesrv_port": namesrv_port,
        "broker_port": broker_port,
        "sync_flush": sync_flush,
        "accept_missing": accept_missing,
    }
    try:
        options["settings"] = settings = settings_of(config, segment_size)
        root = {"storePathRootDir": store_directory(data)}
        planned = {**settings, **root, "listenPort": str(broker_port)}
        log, _ = broker_settings(planned)
        if nodes and count > 1:
            raise ConfigError("--nodes and --brokers exclude each other")
        if nodes:
            plan_group_blocking(planned, nodes, host="127.0.0.1")
        else:
            plan_brokers(planned, count)
        if grpc_port is not None and (nodes or count > 1):
            raise ConfigError("--grpc-port serves one broker; run mqproxy beside several of them")
        grpc = None if nodes or count > 1 else settings_for_up(grpc_port, host)
    except ConfigError as error:
        error = _with_option(error, "--broker-port")
        print(f"error: {error}", file=sys.stderr)
        return 2
    if nodes:
        warn_of_single_store({**settings, **root})
        return run(
            lambda: GroupNode(data, count=nodes, **options), ready=serving(_group_ready), log=log
        )
    warn_of_fleet({**settings, **root}, count)
    warn_of_group_stores({**settings, **root})
    if count > 1:
        return run(
            lambda: FleetNode(data, count=count, **options), ready=serving(_fleet_ready), log=log
        )
    return run(lambda: SingleNode(data, grpc=grpc, **options), ready=serving(_ready), log=log)


def settings_of(config: Path | None, segment_size: str | None) -> dict[str, str]:
    """Return the broker's properties from a file and an option; print notes to stderr.

    Raises:
        ConfigError: The file or one of its settings cannot be used.
    """
    given = {} if config is None else with_new_spellings(without_blanks(read_properties(config)))
    for note in [*file_notes(given, config), *setting_notes(given)]:
        print(f"note: {note}", file=sys.stderr)
    settings = {key: value for key, value in given.items() if key not in OF_OPTIONS}
    if segment_size is not None:
        settings[SEGMENT] = str(parse_size(segment_size))
    return settings


def _ready(node: SingleNode) -> str:
    assert node.broker is not None
    grpc = ""
    if isinstance(node.broker, ProxiedBroker):
        grpc = f"Clients of RocketMQ 5 (gRPC) connect to {node.public}:{node.broker.grpc_port}. "
    return (
        f"{namesrv_ready(node.name_server)}\n{broker_ready(node.broker)}\n"
        f"Clients connect to {node.address}. {grpc}"
        f"Data is in {node.broker.directory}. Ctrl-C stops."
    )


def _fleet_ready(node: FleetNode) -> str:
    assert node.fleet is not None
    return (
        f"{namesrv_ready(node.name_server)}\n{fleet_ready(node.fleet)}\n"
        f"Clients connect to {node.address}. Data is in {node.directory}. Ctrl-C stops."
    )


def _group_ready(node: GroupNode) -> str:
    return f"{_fleet_ready(node)}\n{node.leader} leads the group. {takeover_text(node.count)}"


def takeover_text(count: int) -> str:
    """Return what happens to a group of some members if its leader is lost."""
    if count > 2:
        return "Kill the process of the leader: another member leads then."
    if count == 1:
        why = "It is the only member, so the group stops with it."
    else:
        why = "A leader needs both members, so the group stops if one is lost."
    return f"{why} --nodes 3 survives the loss of a member."


def _with_option(error: ConfigError, option: str) -> ConfigError:
    """Name the option of ``rocketpost up`` where a server's error names its file's key."""
    text = str(error).replace("Set listenPort to", f"Set {option} to")
    return ConfigError(text.replace("listenPort=", f"{option} "))
