"""A million messages that wait for their time: memory, start-up, and what each costs.

The wheel is filled by sends through the wire; then the broker is stopped and started, and what is
due is watched coming out. Figures go to the table of ``run.py``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from load import pipeline, send_frame

from rocketpost.client.admin import AdminClient
from rocketpost.testing import Cluster
from rocketpost.testing.link import BrokerLink

BODY = b"x" * 100
STEPS = 4000
FAR_MS = 43_200_000
DUE_COUNT = 20_000


class Figures(Protocol):
    """Where figures go."""

    def count(self, messages: int) -> int:
        """Return a number of messages to scale."""
        ...

    def add(self, name: str, value: float, unit: str, **more: object) -> None:
        """Note a figure."""
        ...


async def timers(
    bench: Figures,
    directory: Path,
    *,
    settings: dict[str, str],
    cpu_of: Callable[[int], float],
) -> None:
    """Let messages wait, restart the broker with them, and deliver some."""
    count = bench.count(1_000_000)
    with Cluster(directory, settings=settings) as cluster:
        broker, address = cluster.brokers[0], cluster.broker_addresses[0]
        port = int(address.rpartition(":")[2])
        far = frames("Far", time.time_ns() // 1_000_000 + FAR_MS, step_ms=10_000)
        await pipeline(port, far, count=2000)
        before, rss = cpu_of(broker.pid), broker.memory_bytes("RssAnon")
        await pipeline(port, far, count=count)
        await until(cluster, lambda info: info["timerOffsetBehind"] == "0")
        spent = (cpu_of(broker.pid) - before) / count * 1e6
        bench.add("timed message, accepted and in the wheel", spent, "us/message")
        grown = (broker.memory_bytes("RssAnon") - rss) / 2**20
        bench.add(
            "anonymous memory for pending timers", grown, "MB", most=64,
            note=f"{count:,} waiting",
        )  # fmt: skip
        assert broker.stop() == 0
        broker.start()
        bench.add("start with pending timers, CPU", cpu_of(broker.pid), "s", most=2)
        info = await until(cluster, lambda info: True)
        assert int(info["timerCongestNum"]) >= count
        await deliveries(bench, cluster, cpu_of)


async def deliveries(bench: Figures, cluster: Cluster, cpu_of: Callable[[int], float]) -> None:
    """Let many messages come due within a few seconds."""
    broker, address = cluster.brokers[0], cluster.broker_addresses[0]
    port = int(address.rpartition(":")[2])
    due_ms = time.time_ns() // 1_000_000 + 12_000
    count = min(bench.count(DUE_COUNT), DUE_COUNT)
    await pipeline(port, frames("Due", due_ms, step_ms=1), count=count)
    await until(cluster, lambda info: info["timerOffsetBehind"] == "0")
    await asyncio.sleep(max(0.0, due_ms / 1000 - 0.5 - time.time()))
    before = cpu_of(broker.pid)
    await until(cluster, lambda info: int(info["timerDelivered"]) >= count)
    spent = (cpu_of(broker.pid) - before) / count * 1e6
    bench.add("timed message, delivered", spent, "us/message", note=f"{count:,} within 4 s")
    lags = await lags_ms(cluster)
    bench.add("delivery after its time, median", lags[len(lags) // 2], "ms")
    bench.add("delivery after its time, 99 %", lags[len(lags) * 99 // 100], "ms")


async def lags_ms(cluster: Cluster) -> list[int]:
    """Return how late the messages came, sorted; none is early."""
    link = await BrokerLink.connect(cluster.broker_addresses[0])
    records = await link.read("Due", 0, 0, await link.max_offset("Due", 0))
    link.close()
    lags = sorted(r.store_ms - int(r.properties["TIMER_DELIVER_MS"]) for r in records)
    assert lags[0] >= 0, "a message came early"
    return lags


async def until(cluster: Cluster, holds: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """Return the broker's runtime information once it is as wished."""
    async with AdminClient(name_servers=cluster.addresses) as admin:
        while True:
            info = dict(await admin.brokers.runtime(cluster.broker_addresses[0]))
            if holds(info):
                return info
            await asyncio.sleep(0.2)


def frames(topic: str, base_ms: int, *, step_ms: int) -> Callable[[int], bytes]:
    """Return frames of messages that come due one step after the other, and over again."""
    makers = [send_frame(topic, 0, BODY, due_ms=base_ms + at * step_ms) for at in range(STEPS)]
    return lambda number: makers[number % STEPS](number)
