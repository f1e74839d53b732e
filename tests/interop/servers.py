"""A name server and a broker to test with: ours, or Apache's as the yardstick.

Both kinds are started from the same properties files and print the same ready lines, so a test need
not know which one it talks to.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from interop.capture import take_frames
from interop.jvm import QUICK_START, RESOURCES, classpath, java_command
from interop.process import Server
from rocketpost.testing.process import free_port

Maker = Literal["apache", "rocketpost"]
MAKERS: Final[tuple[Maker, ...]] = ("apache", "rocketpost")

NAMESRV_READY: Final = r"The Name Server boot success"
BROKER_READY: Final = r"The broker\[.*\] boot success"
REGISTERED_SECONDS_MAX: Final = 45.0
SERVER_PROFILE: Final = "server-5.3"

# Small files, so that a store fits in memory; the defaults work as well, their files being sparse.
SMALL_STORE: Final = {
    "mappedFileSizeCommitLog": "16777216",
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
}


@dataclass(frozen=True)
class Jvm:
    """The heap and the options of a Java server."""

    heap: str = "512m"
    options: tuple[str, ...] = QUICK_START


@dataclass
class Cluster(AbstractContextManager["Cluster"]):
    """One name server and one broker of the given makers, below one directory.

    The broker can be stopped and started again, by another maker too: port, name and store stay.
    """

    directory: Path
    maker: Maker
    broker_name: str = "broker-a"
    settings: Mapping[str, str] = field(default_factory=dict)
    namesrv_settings: Mapping[str, str] = field(default_factory=dict)
    namesrv_maker: Maker | None = None
    namesrv_port: int = field(default_factory=free_port)
    broker_port: int = field(default_factory=free_port)
    broker_jvm: Jvm = field(default_factory=Jvm)
    namesrv_jvm: Jvm = field(default_factory=Jvm)
    is_closed_to_strangers: bool = False
    """Whether the name server answers nobody without keys; ours registers before it is ready."""

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.namesrv_server: Server | None = None
        self.broker_server: Server | None = None

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def broker(self) -> str:
        return f"127.0.0.1:{self.broker_port}"

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def __enter__(self) -> Cluster:
        try:
            self.start_namesrv()
            self.start_broker()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start_namesrv(self) -> None:
        config = self.directory / "namesrv.properties"
        settings = {"listenPort": str(self.namesrv_port), **self.namesrv_settings}
        config.write_text(_properties(settings))
        start = _START[self.namesrv_maker or self.maker]
        self.namesrv_server = start.namesrv(config, self.directory, self.namesrv_jvm)

    def start_broker(self, maker: Maker | None = None) -> None:
        """Start the broker on this cluster's store; ``maker`` replaces the one it had."""
        assert self.broker_server is None or not self.broker_server.running
        self.maker = maker or self.maker
        config = self.directory / f"broker-{self.maker}.properties"
        config.write_text(_properties(self._broker_settings()))
        start = _START[self.maker].broker
        self.broker_server = start(config, self.directory, self.namesrv, self.broker_jvm)
        if not self.is_closed_to_strangers:
            self._wait_registered()

    def stop_broker(self) -> None:
        assert self.broker_server is not None
        self.broker_server.stop()

    def kill_broker(self) -> None:
        assert self.broker_server is not None
        self.broker_server.kill()

    def close(self) -> None:
        for server in (self.broker_server, self.namesrv_server):
            if server is not None and server.running:
                server.kill()

    def _wait_registered(self) -> None:
        # Apache's broker prints its ready line before the name server has heard of it.
        deadline = time.monotonic() + REGISTERED_SECONDS_MAX
        while b'"' + self.broker_name.encode() + b'"' not in ask_cluster_info(self.namesrv_port):
            assert time.monotonic() < deadline, f"{self.broker_name} never registered"
            time.sleep(0.1)

    def _broker_settings(self) -> dict[str, str]:
        fixed = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": self.broker_name,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": str(self.broker_port),
            "namesrvAddr": self.namesrv,
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
        }
        return {**fixed, **_MAKER_SETTINGS[self.maker], **self.settings}


def ask_cluster_info(port: int) -> bytes:
    """Return the body of the name server's answer to GET_BROKER_CLUSTER_INFO."""
    header = b'{"code":106,"flag":0,"language":"OTHER","opaque":1,"version":479}'
    with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
        link.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
        buffer = bytearray()
        while not (frames := list(take_frames(buffer))):
            data = link.recv(65536)
            assert data, "the name server hung up"
            buffer += data
        return frames[0].body


@dataclass(frozen=True)
class _Starters:
    namesrv: Callable[[Path, Path, Jvm], Server]
    broker: Callable[[Path, Path, str, Jvm], Server]


def _apache_namesrv(config: Path, directory: Path, jvm: Jvm) -> Server:
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    return _apache("namesrv", main, config, directory, NAMESRV_READY, jvm)


def _apache_broker(config: Path, directory: Path, namesrv: str, jvm: Jvm) -> Server:
    main = "org.apache.rocketmq.broker.BrokerStartup"
    return _apache("broker", main, config, directory, BROKER_READY, jvm)


def _apache(name: str, main: str, config: Path, directory: Path, ready: str, jvm: Jvm) -> Server:
    classes = os.pathsep.join([str(RESOURCES), classpath(SERVER_PROFILE)])
    home = directory / "home"
    command = java_command(
        classes, main, "-c", str(config), heap=jvm.heap, home=home, options=jvm.options
    )
    log = directory / f"apache-{name}.log"
    environment = {**os.environ, "ROCKETMQ_HOME": str(RESOURCES)}
    return Server.start(f"apache {name}", command, ready=ready, log=log, environment=environment)


def _our_namesrv(config: Path, directory: Path, jvm: Jvm) -> Server:
    command = [_script("mqnamesrv"), "-c", str(config)]
    log = directory / "rocketpost-namesrv.log"
    return Server.start("rocketpost namesrv", command, ready=NAMESRV_READY, log=log)


def _our_broker(config: Path, directory: Path, namesrv: str, jvm: Jvm) -> Server:
    command = [_script("mqbroker"), "-n", namesrv, "-c", str(config)]
    log = directory / "rocketpost-broker.log"
    return Server.start("rocketpost broker", command, ready=BROKER_READY, log=log)


def _properties(settings: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def _script(name: str) -> str:
    return str(Path(sys.executable).parent / name)


# A JVM that has just started answers slowly, and would refuse sends that waited for 200 ms.
_MAKER_SETTINGS: Final[dict[Maker, dict[str, str]]] = {
    "apache": {"brokerFastFailureEnable": "false"},
    "rocketpost": {},
}
_START: Final[dict[Maker, _Starters]] = {
    "apache": _Starters(_apache_namesrv, _apache_broker),
    "rocketpost": _Starters(_our_namesrv, _our_broker),
}
