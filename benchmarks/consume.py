"""What consuming costs: the client, the broker, a long backlog, and those who send meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from bench import (
    BODY,
    HERE,
    LARGE_FILES,
    TOPIC,
    Bench,
    cost,
    cpu_of,
    create_topic,
    echo_server,
    port_of,
)
from load import Pipe, batch_frame, pipeline, pull_frame, send_frame, send_frames

from rocketpost.testing import Cluster

QUEUES = 4
SMALL = b"x" * 32
BATCH = 200
PULL = 32


async def push(bench: Bench, directory: Path) -> None:
    """A push consumer takes a backlog of 1 KB messages: CPU of both sides per message."""
    count = bench.count(60_000) // QUEUES * QUEUES
    client_costs: list[float] = []
    broker_costs: list[float] = []
    echoes: list[float] = []
    with Cluster(directory, settings=LARGE_FILES) as cluster, echo_server() as (echo, echo_port):
        await create_topic(cluster, TOPIC, QUEUES)
        frames = send_frames(TOPIC, lambda number: number % QUEUES, BODY)
        await pipeline(port_of(cluster), frames, count=count)
        broker = cluster.brokers[0].pid
        for number in range(bench.rounds):
            spent, _ = await cost(
                echo, echo_port, send_frame(TOPIC, 0, BODY), count=bench.count(200_000)
            )
            echoes.append(spent)
            async with push_client(cluster, f"group{number}", count) as consume:
                before = cpu_of(broker)
                result = await consume()
                broker_costs.append((cpu_of(broker) - before) / count * 1e6)
                client_costs.append(result["cpu"] / count * 1e6)
    bench.add("echo, 1 KB", statistics.median(echoes), "us/message")
    for side, costs in (("client", client_costs), ("broker", broker_costs)):
        ratio = statistics.median(m / e for m, e in zip(costs, echoes, strict=True))
        bench.add(f"push-consume 1 KB, {side}", statistics.median(costs), "us/message")
        bench.add(
            f"push-consume 1 KB, {side}, to echo", ratio, "x", most=4 if side == "broker" else None
        )


async def backlog(bench: Bench, directory: Path, *, count: int) -> None:
    """A push consumer drains a long backlog of small messages; its memory stays flat."""
    step = BATCH * QUEUES
    count = max(step, count // step * step)
    with Cluster(directory, settings=LARGE_FILES) as cluster:
        await create_topic(cluster, TOPIC, QUEUES)
        frames = batch_frame(TOPIC, lambda number: number % QUEUES, SMALL, BATCH)
        run = await pipeline(port_of(cluster), frames, count=count // BATCH, window=16)
        if run.failures:
            raise SystemExit(f"{run.failures} of {run.messages} batches failed")
        broker = cluster.brokers[0]
        async with push_client(cluster, "drain", count) as consume:
            memory, cpu = broker.memory_bytes(), cpu_of(broker.pid)
            result = await consume()
            cpu, grown = cpu_of(broker.pid) - cpu, broker.memory_bytes() - memory
    first, middle, last = (each / 2**20 for each in result["memory"])
    note = f"{count:,} messages"
    bench.add("backlog, client", result["cpu"] / count * 1e6, "us/message", note=note)
    bench.add("backlog, broker", cpu / count * 1e6, "us/message")
    bench.add("backlog, rate (wall clock)", count / result["wall"], "messages/s")
    bench.add("backlog, client memory, start", first, "MB")
    bench.add("backlog, client memory, middle", middle, "MB")
    bench.add("backlog, client memory, end", last, "MB", most=first + 16)
    bench.add("backlog, growth of the broker", grown / 2**20, "MB", most=16)


async def beside(bench: Bench, directory: Path) -> None:
    """Sends while one group consumes a backlog: what a send costs then, the pulls deducted."""
    alone: list[float] = []
    rises: list[float] = []
    with Cluster(directory, settings=LARGE_FILES) as cluster:
        await create_topic(cluster, TOPIC, QUEUES)
        await create_topic(cluster, "Backlog", QUEUES)
        port, broker = port_of(cluster), cluster.brokers[0].pid
        held = bench.count(100_000)
        fill = send_frames("Backlog", lambda number: number % QUEUES, BODY)
        sends = send_frames(TOPIC, lambda number: number % QUEUES, BODY)
        await pipeline(port, fill, count=held)
        pulls = backlog_pulls(held)
        count = bench.count(50_000)
        await pipeline(port, sends, count=count)
        for _ in range(bench.rounds):
            send_cost, _ = await cost(broker, port, sends, count=count)
            pull_cost, _ = await cost(broker, port, pulls, count=bench.count(4000), window=QUEUES)
            pipe = await Pipe.connect(port, pulls, window=QUEUES)
            before = cpu_of(broker)
            await pipeline(port, sends, count=count)
            spent = cpu_of(broker) - before
            answered = await pipe.stop()
            mixed = (spent - answered * pull_cost / 1e6) / count * 1e6
            alone.append(send_cost)
            rises.append((mixed / send_cost - 1) * 100)
            bench.console.print(
                f"    alone {send_cost:.1f} us, beside {mixed:.1f} us, {answered * PULL:,} pulled"
            )
    bench.add("send 1 KB, nobody consumes", statistics.median(alone), "us/message")
    bench.add("send 1 KB, rise while a backlog is consumed", statistics.median(rises), "%", most=20)


def backlog_pulls(held: int) -> Callable[[int], bytes]:
    """Return pulls that go through the backlog, queue by queue in turn, over and over."""
    offsets = range(0, held // QUEUES - PULL, PULL)
    frames = [
        pull_frame("Backlog", queue_id, offset, count=PULL)
        for offset in offsets
        for queue_id in range(QUEUES)
    ]
    return lambda number: frames[number % len(frames)]


@contextlib.asynccontextmanager
async def push_client(
    cluster: Cluster, group: str, count: int
) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any]]]]:
    """Start a push consumer; yields a function that has it consume and returns what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "push_client.py"), cluster.addresses, TOPIC, group, str(count),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    reader, writer = process.stdout, process.stdin

    async def consume() -> dict[str, Any]:
        writer.write(b"go\n")
        line = await reader.readline()
        if not line:
            raise SystemExit("the push consumer ended early")
        return json.loads(line)

    try:
        await reader.readline()
        yield consume
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
