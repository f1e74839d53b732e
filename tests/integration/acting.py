"""Groups whose smallest slave acts for a lost master, in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from rocketpost.server.acting_term import ActingTerm
from rocketpost.server.namesrv.process import NameServer
from rocketpost.server.settings.namesrv import NamesrvConfig

from .replicas import QUICK
from .settings.harness import Peer, broker

GROUP: dict[str, object] = {
    "enableSlaveActingMaster": "true",
    "totalReplicas": 2,
    "syncBrokerMemberGroupPeriod": 100,
    "brokerHeartbeatInterval": 100,
    **QUICK,
}


@contextlib.asynccontextmanager
async def name_server(**settings: object) -> AsyncIterator[NameServer]:
    """Run a name server that shows acting masters."""
    own: dict[str, object] = {
        "bind_address": "127.0.0.1", "listen_port": 0, "kv_config_path": None,
        "acting_master": True,
    }  # fmt: skip
    server = NameServer(NamesrvConfig(**own | settings))  # type: ignore[arg-type]
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def master_of(names: NameServer, root: Path, **settings: object) -> Member:
    """Return the master of a group."""
    return broker(root / "master", namesrvAddr=names.address, **GROUP | settings)


def slave_of(names: NameServer, root: Path, *, broker_id: int = 1, **settings: object) -> Member:
    """Return a slave of a group."""
    own = {"brokerRole": "SLAVE", "brokerId": broker_id, "namesrvAddr": names.address}
    return broker(root / f"slave-{broker_id}", **GROUP | own | settings)


Member = contextlib.AbstractAsyncContextManager[Peer]


def acts(slave: Peer) -> bool:
    term = slave.server._term
    assert isinstance(term, ActingTerm)
    return term.is_acting


def members(names: NameServer) -> set[int]:
    """Return the ids that a name server knows."""
    return set(names._table.member_group("DefaultCluster", "broker-a").broker_addrs)


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
