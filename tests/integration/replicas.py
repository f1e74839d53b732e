"""Masters and slaves of one group, in this process, with a name server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rocketpost.server.broker import BrokerServer
from rocketpost.server.follower_term import FollowerTerm
from rocketpost.server.namesrv.process import NameServer
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.server.term import LeaderTerm

from .settings.harness import Peer, broker

QUICK = {"haSendHeartbeatInterval": 200, "haHousekeepingInterval": 2000}
"""Settings with which a lost connection is noticed soon."""


@contextlib.asynccontextmanager
async def name_server(root: Path) -> AsyncIterator[str]:
    """Run a name server; yields its address."""
    config = NamesrvConfig(
        bind_address="127.0.0.1", listen_port=0, kv_config_path=str(root / "kv.json")
    )
    server = NameServer(config)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


def slave_of(
    names: str, root: Path, *, broker_id: int = 1, **settings: object
) -> AbstractAsyncContextManager[Peer]:
    """Return a slave of the master that this name server knows."""
    own = {"namesrvAddr": names, "brokerRole": "SLAVE", "brokerId": broker_id, **QUICK}
    return broker(root, **own | settings)


@contextlib.asynccontextmanager
async def pair(
    root: Path, *, master: dict[str, object] | None = None, slave: dict[str, object] | None = None
) -> AsyncIterator[tuple[Peer, Peer]]:
    """Run a master and a slave that follows it."""
    async with (
        name_server(root) as names,
        broker(root / "master", namesrvAddr=names, **QUICK | (master or {})) as first,
        slave_of(names, root / "slave", **slave or {}) as second,
    ):
        await until_following(second)
        yield first, second


def leader(peer: Peer) -> LeaderTerm:
    term = peer.server._term
    assert isinstance(term, LeaderTerm)
    return term


def follower(peer: Peer) -> FollowerTerm:
    term = peer.server._term
    assert isinstance(term, FollowerTerm)
    return term


def log_of(server: BrokerServer) -> bytes:
    """Return the written log of a broker whose log begins at 0."""
    store = server._context.store
    segment = store.config.segment_bytes
    parts = []
    for start in range(store.first_position, store.written_position, segment):
        view = store.view(start, min(segment, store.written_position - start))
        assert view is not None
        parts.append(bytes(view))
    return b"".join(parts)


async def until_following(slave: Peer, *, seconds: float = 15) -> None:
    async with asyncio.timeout(seconds):
        while not follower(slave).stream.status().is_connected:
            await asyncio.sleep(0.005)


async def until_refused(slave: Peer, *, seconds: float = 15) -> str:
    """Wait until a slave says why it cannot follow; returns the reason."""
    async with asyncio.timeout(seconds):
        while (status := follower(slave).stream.status()).is_connected or not status.problem:
            await asyncio.sleep(0.005)
    return status.problem


async def until_copied(
    master: Peer, slave: Peer, *, replicas: int = 1, seconds: float = 15
) -> None:
    """Wait until a slave shows everything that the master shows, and so many have told so."""
    store, copy = master.server._context.store, slave.server._context.store
    async with asyncio.timeout(seconds):
        while True:
            end = store.confirmed_position
            known = leader(master).slaves.acks.position_of(replicas)
            if copy.confirmed_position == end == known:
                return
            await asyncio.sleep(0.002)
