"""A master and a slave of either maker, and the comparison of their stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from struct import Struct
from typing import Any, Final

from interop.servers import Cluster, Maker, ask_cluster_info
from rocketpost.codec import lenient_json
from rocketpost.errors import ProtocolError
from rocketpost.testing.fault_proxy import FaultProxy
from rocketpost.testing.process import free_port

COPIED_SECONDS_MAX: Final = 120.0
SEGMENT_BYTES: Final = 1 << 20
PROXY_HOST: Final = "127.0.0.2"
STORE: Final = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "maxMessageSize": "524288",
    "messageDelayLevel": "1s 2s 3s",
    # Otherwise a slave refuses every pull as one that is too busy.
    "slaveReadEnable": "true",
}
_ENTRY: Final = Struct(">qiq")


class Pair:
    """A running master and slave, whose HA stream passes a proxy."""

    def __init__(self, master: Cluster, slave: Cluster, link: FaultProxy) -> None:
        self.master = master
        self.slave = slave
        self.link = link

    async def kill(self, broker: Cluster) -> None:
        """Kill a broker and start it again."""
        await asyncio.to_thread(broker.kill_broker)
        await asyncio.to_thread(broker.start_broker)

    async def wait_registered(self, broker: Cluster) -> None:
        """Return when the name server lists a broker."""
        await wait_for(
            lambda: broker.broker.encode() in ask_cluster_info(self.master.namesrv_port),
            f"{broker.broker} never registered",
        )

    async def wait_copied(self) -> None:
        """Return when the slave has the whole log, and its queues have all of it."""
        await wait_for(lambda: log_of(self.slave) == log_of(self.master), "the logs never agreed")
        await wait_for(
            lambda: queues_of(self.slave) == queues_of(self.master), "the queues never agreed"
        )


@asynccontextmanager
async def running_pair(
    directory: Path,
    master: Maker,
    slave: Maker,
    *,
    settings: dict[str, str],
    role: str = "ASYNC_MASTER",
    namesrv_settings: dict[str, str] | None = None,
    is_proxied: bool = True,
) -> AsyncIterator[Pair]:
    """Start name server, master and slave; the name server is ours, which spares a JVM.

    A slave of ours is told the proxy's address. Java's takes the one that the master announces, so
    a master of ours announces the proxy there. Between two of Java's there is no proxy.
    """
    ha_port = free_port()
    copied = STORE | settings
    leading = copied | {"brokerRole": role, "brokerId": "0", "haListenPort": str(ha_port)}
    following = copied | {"brokerRole": "SLAVE", "brokerId": "1", "haListenPort": str(free_port())}
    listen = ("127.0.0.1", 0)
    if is_proxied and slave == "apache" and master == "rocketpost":
        listen = (PROXY_HOST, ha_port)
        leading |= {"brokerIP2": PROXY_HOST, "bindAddress": "127.0.0.1"}
    async with FaultProxy(("127.0.0.1", ha_port), listen=listen) as link:
        if is_proxied and slave == "rocketpost":
            following["haMasterAddress"] = f"127.0.0.1:{link.port}"
        first = Cluster(directory / "master", master, settings=leading, namesrv_maker="rocketpost")
        second = Cluster(
            directory / "slave", slave, settings=following, namesrv_port=first.namesrv_port
        )
        try:
            await asyncio.to_thread(first.__enter__)
            await asyncio.to_thread(second.start_broker)
            pair = Pair(first, second, link)
            await pair.wait_registered(second)
            yield pair
        finally:
            second.close()
            first.close()


async def wait_for(is_true: Callable[[], bool], otherwise: str) -> None:
    """Wait until something is true of files that another process writes."""
    deadline = time.monotonic() + COPIED_SECONDS_MAX
    while not await asyncio.to_thread(is_true):
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(0.2)


def log_of(broker: Cluster) -> bytes:
    """Return the bytes of the commit log, without the zeros after its end."""
    files = sorted((broker.store / "commitlog").glob("[0-9]*"))
    return b"".join(path.read_bytes() for path in files).rstrip(b"\0")


def queues_of(broker: Cluster) -> dict[str, list[tuple[int, int, int]]]:
    """Return the entries of every consume queue."""
    found: dict[str, list[tuple[int, int, int]]] = {}
    root = broker.store / "consumequeue"
    for path in sorted(root.glob("*/*/[0-9]*")):
        data = path.read_bytes()
        whole = len(data) - len(data) % _ENTRY.size
        entries = [entry for entry in _ENTRY.iter_unpack(data[:whole]) if entry[1]]
        found.setdefault(str(path.parent.relative_to(root)), []).extend(entries)
    return {queue: entries for queue, entries in found.items() if entries}


def table_of(broker: Cluster, name: str) -> dict[str, Any]:
    """Return a table of ``config/``; empty while it cannot be read."""
    try:
        table = lenient_json.decode_any((broker.store / "config" / name).read_bytes())
    except (FileNotFoundError, ProtocolError):  # Apache's broker writes over it in place
        return {}
    return table if isinstance(table, dict) else {}
