"""A master and a slave as real processes, whose roles can be exchanged."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rocketpost.settings import format_properties
from rocketpost.testing.campaign import TINY_STORE
from rocketpost.testing.cluster import BROKER_READY, NAMESRV_READY
from rocketpost.testing.process import ServerProcess, free_port

BROKER_NAME: Final = "pair"
QUICK: Final[Mapping[str, str]] = {
    "haSendHeartbeatInterval": "300",
    "haHousekeepingInterval": "2000",
    "slaveTimeout": "1000",
}
"""Settings with which a lost peer is noticed soon."""


class PairNode:
    """One broker of a pair: its directory, its port, its process and its role.

    Args:
        directory: The directory for its settings and its store.
        name_servers: Addresses of the name servers.
        settings: More properties, by RocketMQ's keys.
    """

    def __init__(self, directory: Path, *, name_servers: str, settings: Mapping[str, str]) -> None:
        self.directory = directory
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self._values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "brokerName": BROKER_NAME,
            "namesrvAddr": name_servers,
            "storePathRootDir": str(directory / "store"),
            **TINY_STORE,
            **QUICK,
            **settings,
        }
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "broker.conf"
        self.process = ServerProcess(["mqbroker", "-c", str(path)], ready=BROKER_READY)

    def assign(self, role: str, broker_id: int, **settings: str) -> None:
        """Write the settings file for a role; it holds from the next start on."""
        values = {**self._values, "brokerRole": role, "brokerId": str(broker_id), **settings}
        (self.directory / "broker.conf").write_text(format_properties(values))

    def lose_disk(self) -> None:
        """Delete the store of a broker that does not run."""
        assert not self.process.is_running
        shutil.rmtree(self.directory / "store", ignore_errors=True)

    def log(self) -> bytes:
        """Return the bytes of all segments, from the first one that is kept."""
        folder = self.directory / "store" / "commitlog"
        segments = sorted(path for path in folder.iterdir() if path.name.isdecimal())
        return b"".join(path.read_bytes() for path in segments)


class BrokerPair:
    """A name server, a master and slaves. Use as a context manager; nothing is started by itself.

    Args:
        directory: The directory of everything.
        slaves: Number of slaves.
        role: Role of the master.
        settings: Properties for every broker.
    """

    def __init__(
        self,
        directory: Path,
        *,
        slaves: int = 1,
        role: str = "SYNC_MASTER",
        settings: Mapping[str, str] | None = None,
    ) -> None:
        port = free_port()
        path = directory / "namesrv.conf"
        directory.mkdir(parents=True, exist_ok=True)
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(directory / "kvConfig.json"),
        }
        path.write_text(format_properties(values))
        self.name_server = ServerProcess(["mqnamesrv", "-c", str(path)], ready=NAMESRV_READY)
        self.name_servers = f"127.0.0.1:{port}"
        self._role = role
        self.nodes = [
            PairNode(
                directory / f"node-{number}",
                name_servers=self.name_servers,
                settings=settings or {},
            )
            for number in range(slaves + 1)
        ]
        self.appoint(self.nodes[0])

    def __enter__(self) -> BrokerPair:
        self.name_server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for process in (*(node.process for node in self.nodes), self.name_server):
            process.kill()

    @property
    def master(self) -> PairNode:
        """The node that is the master, running or not."""
        return self._master

    @property
    def slaves(self) -> Sequence[PairNode]:
        """The other nodes."""
        return [node for node in self.nodes if node is not self._master]

    def appoint(self, master: PairNode) -> None:
        """Make a node the master and all others its slaves, from their next start on."""
        self._master = master
        master.assign(self._role, 0)
        for node in self.slaves:
            node.assign("SLAVE", self.nodes.index(node) + 1)
