"""A name server and a broker of ours with a gRPC port, in the broker or in front of it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from interop.process import Server
from interop.servers import BROKER_READY, Cluster
from rocketpost.client import ClientConfig, Credentials
from rocketpost.client.admin import AdminClient
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.process import free_port

PROXY_READY = r"The proxy\[.*\] boot success"


@dataclass
class GrpcCluster(Cluster):
    """A cluster that serves gRPC clients.

    With ``is_separate``, the proxy is a process of its own; else it is the broker's.
    """

    is_separate: bool = False
    proxy_settings: Mapping[str, object] = field(default_factory=dict)
    grpc_port: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.proxy_server: Server | None = None

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    def start_broker(self, maker: Any = None) -> None:
        """Start the broker, and the proxy if it is a process of its own."""
        proxy = self.directory / "rmq-proxy.json"
        settings = {
            "grpcServerPort": self.grpc_port,
            "remotingListenPort": 0,
            **self.proxy_settings,
        }
        proxy.write_text(json.dumps(settings))
        if self.is_separate:
            super().start_broker(maker)
            self.start_proxy()
            return
        config = self.directory / "broker.conf"
        config.write_text("".join(f"{k}={v}\n" for k, v in self._broker_settings().items()))
        words = ["-n", self.namesrv, "-c", str(config), "--enable-proxy", "-pc", str(proxy)]
        self.broker_server = self._start("mqbroker", words, BROKER_READY)
        self._wait_registered()

    def start_proxy(self) -> None:
        words = ["-n", self.namesrv, "-pc", str(self.directory / "rmq-proxy.json")]
        self.proxy_server = self._start("mqproxy", words, PROXY_READY)

    def restart_port(self) -> None:
        """Kill the process that has the gRPC port, and start it again."""
        if self.proxy_server is not None:
            self.proxy_server.kill()
            self.start_proxy()
        else:
            self.kill_broker()
            self.start_broker()

    def close(self) -> None:
        if self.proxy_server is not None and self.proxy_server.running:
            self.proxy_server.kill()
        super().close()

    def make(
        self, *, topics: Mapping[str, str], orderly: str = "", user: str = "", secret: str = ""
    ) -> None:
        """Make topics of the given types, and a group that consumes in order; perhaps as a user."""
        keys = Credentials(user, secret) if user else None
        config = ClientConfig(name_servers=self.namesrv, credentials=keys)

        async def make() -> None:
            async with AdminClient(config=config) as admin:
                for name, kind in topics.items():
                    made = TopicConfig(
                        topic_name=name,
                        read_queue_nums=4,
                        write_queue_nums=4,
                        attributes={"+message.type": kind},
                    )
                    await admin.topics.create(self.broker, made)
                if orderly:
                    group = GroupConfig(group_name=orderly, consume_message_orderly=True)
                    await admin.groups.create(self.broker, group)

        asyncio.run(make())

    def _start(self, program: str, words: list[str], ready: str) -> Server:
        command = [sys.executable, "-m", "rocketpost.server", program, *words]
        log = self.directory / f"{program}.log"
        return Server.start(program, command, ready=ready, log=log)
