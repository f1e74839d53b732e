"""A small cluster of real processes for tests: name servers and brokers on free ports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from rocketpost.settings import format_properties
from rocketpost.testing.process import ServerProcess, free_port

NAMESRV_READY = r"The Name Server boot success"
BROKER_READY = r"The broker\[(?P<name>[^,]+), (?P<address>[^\]]+)\] boot success"

SMALL_STORE: Mapping[str, str] = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 30_000),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
"""Store settings that keep a test's disk use small."""


class Cluster:
    """Name servers and brokers as real processes. Use as a context manager.

    Args:
        directory: The directory for configuration and data.
        brokers: Number of brokers.
        name_servers: Number of name servers.
        settings: Properties for every broker, by RocketMQ's keys.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        name_servers: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.name_server_ports = [free_port() for _ in range(name_servers)]
        self.name_servers = [self._name_server(port) for port in self.name_server_ports]
        ports = [free_port() for _ in range(brokers)]
        self.broker_addresses = [f"127.0.0.1:{port}" for port in ports]
        self.brokers = [
            self._broker(index, port, dict(settings or {})) for index, port in enumerate(ports)
        ]

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as stack:
            for servers in (self.name_servers, self.brokers):  # brokers register as they start
                for server in servers:
                    stack.callback(server.kill)
                    server.launch()
                for server in servers:
                    server.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def addresses(self) -> str:
        """The addresses of the name servers, in the form that clients accept."""
        return ";".join(f"127.0.0.1:{port}" for port in self.name_server_ports)

    def broker_directory(self, index: int = 0) -> Path:
        """Return the data directory of a broker."""
        return self.directory / f"broker-{index}"

    def _name_server(self, port: int) -> ServerProcess:
        home = self.directory / f"namesrv-{port}"
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(home / "kvConfig.json"),
        }
        path = self._write(home, "namesrv.conf", values)
        return ServerProcess(["mqnamesrv", "-c", path], ready=NAMESRV_READY)

    def _broker(self, index: int, port: int, settings: dict[str, str]) -> ServerProcess:
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": f"broker-{index}",
            "namesrvAddr": self.addresses,
            "storePathRootDir": str(self.broker_directory(index) / "store"),
            **SMALL_STORE,
            **settings,
        }
        path = self._write(self.broker_directory(index), "broker.conf", values)
        return ServerProcess(["mqbroker", "-c", path], ready=BROKER_READY)

    def _write(self, home: Path, name: str, values: Mapping[str, str]) -> str:
        home.mkdir(parents=True, exist_ok=True)
        path = home / name
        path.write_text(format_properties(values))
        return str(path)
