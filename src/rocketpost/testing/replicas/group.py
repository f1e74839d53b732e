"""A master and its slaves as real processes, with a name server."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rocketpost.settings import format_properties
from rocketpost.testing.cluster import BROKER_READY, NAMESRV_READY, SMALL_STORE
from rocketpost.testing.process import PROGRAM, ServerProcess, free_port

MASTER_ID = 0
_QUICK: Mapping[str, str] = {"haSendHeartbeatInterval": "500", "haHousekeepingInterval": "3000"}


class Replica:
    """One broker of a group, by the settings in its file.

    Args:
        home: The directory of its file and its data.
        values: Its properties by RocketMQ's keys.
        program: The arguments of ``python`` that run servers.
    """

    def __init__(
        self, home: Path, values: Mapping[str, str], *, program: Sequence[str] = PROGRAM
    ) -> None:
        self.home = home
        self.values = dict(values)
        self.process = ServerProcess(
            ["mqbroker", "-c", str(home / "broker.conf")], ready=BROKER_READY, program=program
        )

    @property
    def address(self) -> str:
        """The address at which it serves clients."""
        return f"127.0.0.1:{self.values['listenPort']}"

    @property
    def store(self) -> Path:
        """The directory of its data."""
        return self.home / "store"

    def launch(self, **changes: str) -> None:
        """Start it with changed settings, without waiting until it is ready."""
        self.values |= changes
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "broker.conf").write_text(format_properties(self.values))
        self.process.launch()

    def start(self, **changes: str) -> None:
        """Start it with changed settings."""
        self.launch(**changes)
        self.process.wait_ready()

    def lose_disk(self) -> None:
        """Delete the data of a broker that does not run."""
        assert not self.process.is_running
        shutil.rmtree(self.store, ignore_errors=True)

    def log_bytes(self) -> bytes:
        """Return its commit log; the zeros after its end are cut off."""
        log = self.store / "commitlog"
        whole = b"".join(path.read_bytes() for path in sorted(log.iterdir()) if path.is_file())
        return whole.rstrip(b"\0")


class ReplicaGroup:
    """A name server, a master and its slaves. Use as a context manager; starts everything.

    Args:
        directory: The directory for configuration and data.
        slaves: Number of slaves.
        settings: Properties of every broker, by RocketMQ's keys.
        master: More properties of the master.
        slave: More properties of the slaves.
        program: Returns the arguments of ``python`` that run a broker with this directory.
        name_server: More properties of the name server.
    """

    def __init__(
        self,
        directory: Path,
        *,
        slaves: int = 1,
        settings: Mapping[str, str] | None = None,
        master: Mapping[str, str] | None = None,
        slave: Mapping[str, str] | None = None,
        program: Callable[[Path], Sequence[str]] = lambda home: PROGRAM,
        name_server: Mapping[str, str] | None = None,
    ) -> None:
        self._directory = directory
        self._program = program
        self._port = free_port()
        self.name_server = self._name_server(name_server or {})
        common = {**_QUICK, **SMALL_STORE, **(settings or {})}
        self.master = self._replica(MASTER_ID, common | dict(master or {}))
        self.slaves = [
            self._replica(number, common | {"brokerRole": "SLAVE"} | dict(slave or {}))
            for number in range(1, slaves + 1)
        ]

    def __enter__(self) -> ReplicaGroup:
        with contextlib.ExitStack() as stack:
            stack.callback(self.name_server.kill)
            self.name_server.start()
            for replica in (self.master, *self.slaves):
                stack.callback(replica.process.kill)
                replica.launch()
            for replica in (self.master, *self.slaves):
                replica.process.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> str:
        """The address of the name server, for clients."""
        return f"127.0.0.1:{self._port}"

    def promote(self, slave: Replica) -> None:
        """Make a slave the master, and the master a slave, from their next starts on."""
        old = self.master
        roles = ("brokerRole", "brokerId")
        ours, theirs = ({key: each.values[key] for key in roles} for each in (slave, old))
        old.values |= ours
        slave.values |= theirs
        self.slaves[self.slaves.index(slave)] = old
        self.master = slave

    def _name_server(self, settings: Mapping[str, str]) -> ServerProcess:
        home = self._directory / "namesrv"
        home.mkdir(parents=True, exist_ok=True)
        path = home / "namesrv.conf"
        values = {
            "listenPort": str(self._port),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(home / "kvConfig.json"),
            **settings,
        }
        path.write_text(format_properties(values))
        return ServerProcess(["mqnamesrv", "-c", str(path)], ready=NAMESRV_READY)

    def _replica(self, number: int, settings: Mapping[str, str]) -> Replica:
        home = self._directory / f"replica-{number}"
        values = {
            "listenPort": str(free_port()),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "group",
            "brokerId": str(number),
            "brokerRole": "ASYNC_MASTER",
            "namesrvAddr": self.addresses,
            "storePathRootDir": str(home / "store"),
            **settings,
        }
        return Replica(home, values, program=self._program(home))
