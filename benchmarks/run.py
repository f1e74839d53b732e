"""What a message costs: CPU of the server's own process, as a ratio to a bare echo server.

Wall clock says little on a shared machine; CPU per message moves less, and the ratio to an echo
server on the same event loop, with the same frame sizes, in the same run, moves least. Prints a
table, writes ``benchmarks/results/latest.json``, and exits with 1 if a figure misses its target.
The part ``brokers`` has its own table and file, ``benchmarks/results/brokers.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path

import consume
import uvloop
from access import access
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
from brokers import add_options, run_brokers
from group import group
from grpc_calls import grpc_calls
from load import pipeline, pull_frame, send_frame, send_frames
from metrics import metrics
from page_cache import filled_page_cache
from published import NEWEST, verdict
from replication import replication
from rich.table import Table
from servers import end_in_order
from timers import timers

from rocketpost.client.admin import AdminClient
from rocketpost.kernel import hashing
from rocketpost.testing import Cluster, ServerProcess


async def sends(bench: Bench, directory: Path) -> None:
    """Single sends against the echo server, over 1, 100 and 10,000 queues."""
    layouts = {1: "one queue", 100: "100 queues", 10_000: "10,000 queues"}
    costs: dict[int, list[float]] = {queues: [] for queues in layouts}
    echoes: list[float] = []
    rates: list[float] = []
    with Cluster(directory, settings=LARGE_FILES) as cluster, echo_server() as (echo, echo_port):
        for queues in layouts:
            await create_topic(cluster, f"Bench{queues}", queues)
        broker, port = cluster.brokers[0].pid, port_of(cluster)
        warm = bench.count(20_000)
        for queues in layouts:
            await cost(broker, port, frames_for(queues), count=max(warm, queues))
        await until_files_exist(cluster, sum(layouts))
        for _ in range(bench.rounds):
            spent, _ = await cost(
                echo, echo_port, send_frame(TOPIC, 0, BODY), count=bench.count(200_000)
            )
            echoes.append(spent)
            for queues in layouts:
                spent, run = await cost(broker, port, frames_for(queues), count=bench.count(50_000))
                costs[queues].append(spent)
                rates.append(run.messages / run.wall_seconds)
        echo_cost = statistics.median(echoes)
        bench.add("echo, 1 KB", echo_cost, "us/message")
        for queues, name in layouts.items():
            spent = statistics.median(costs[queues])
            ratio = statistics.median(
                mine / theirs for mine, theirs in zip(costs[queues], echoes, strict=True)
            )
            bench.add(f"send 1 KB, {name}", spent, "us/message")
            bench.add(f"send 1 KB, {name}, to echo", ratio, "x", most=20 if queues == 1 else None)
        medians = [statistics.median(each) for each in costs.values()]
        bench.add("send, dearest to cheapest layout", max(medians) / min(medians), "x", most=1.3)
        bench.add("send rate (wall clock)", statistics.median(rates), "messages/s")
        await pulls(bench, cluster, echo_cost)


async def until_files_exist(cluster: Cluster, queues: int) -> None:
    """Have the queues' files made, once, before what each message costs is measured."""
    folder = cluster.broker_directory() / "store" / "consumequeue"
    key, address = "flushConsumeQueueThoroughInterval", cluster.broker_addresses[0]
    async with AdminClient(name_servers=cluster.addresses) as admin:
        await admin.brokers.update_config(address, {key: "100"})
        while len(list(folder.glob("*/*/0*"))) < queues:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.5)
        await admin.brokers.update_config(address, {key: "60000"})


def frames_for(queues: int) -> Callable[[int], bytes]:
    """Return frames that go round the queues of the topic of that size."""
    return send_frames(f"Bench{queues}", lambda number: number % queues, BODY)


async def pulls(bench: Bench, cluster: Cluster, echo_cost: float) -> None:
    """Pull what was sent, 32 messages a request."""
    broker, port = cluster.brokers[0].pid, port_of(cluster)
    frames = [pull_frame("Bench1", 0, offset) for offset in range(0, 20_000, 32)]
    costs = []
    for _ in range(bench.rounds):
        spent, _ = await cost(
            broker, port, lambda n: frames[n % len(frames)], count=bench.count(5000), window=8
        )
        costs.append(spent / 32)
    spent = statistics.median(costs)
    bench.add("pull 1 KB, 32 a pull", spent, "us/message")
    bench.add("pull 1 KB, to echo", spent / echo_cost, "x", most=4)


async def filters(bench: Bench, directory: Path) -> None:
    """What it costs to let messages through, and to pass them over, by tags and by expressions."""
    ways = {"tags": {"tags": "TagA"}, "SQL": {"sql": "TAGS = 'TagA' AND size IS NULL"}}
    others = {"tags": {"tags": "TagB"}, "SQL": {"sql": "TAGS = 'TagB' AND size > 5"}}
    with Cluster(directory, settings=LARGE_FILES) as cluster:
        await create_topic(cluster, "Bench1", 1)
        broker, port = cluster.brokers[0].pid, port_of(cluster)
        stored = bench.count(20_000)
        await cost(broker, port, frames_for(1), count=stored)
        scanned = min(800, stored)  # entries that one pull looks at: maxFilterMessageSize
        costs: dict[str, list[float]] = {}
        for _ in range(bench.rounds):
            for way, filter_ in {"nothing": {}, **ways}.items():
                frame = pull_frame("Bench1", 0, 0, **filter_)
                spent, _ = await cost(
                    broker, port, lambda n, frame=frame: frame, count=bench.count(3000), window=8
                )
                costs.setdefault(f"pull filtered by {way}", []).append(spent / 32)
            for way, filter_ in others.items():
                frame = pull_frame("Bench1", 0, 0, **filter_)
                before = cpu_of(broker)
                count = bench.count(1000) if way == "tags" else 200
                run = await pipeline(port, lambda n, frame=frame: frame, count=count, window=8)
                assert run.failures == run.messages  # none matches
                spent = (cpu_of(broker) - before) / run.messages * 1e6
                costs.setdefault(f"passed over by {way}", []).append(spent / scanned)
    for name, spents in costs.items():
        bench.add(name, statistics.median(spents), "us/message")
    judged = statistics.median(costs["passed over by SQL"])
    bench.add("SQL filter, to tags", judged / statistics.median(costs["passed over by tags"]), "x")
    bench.add("SQL filter, two properties", judged, "us/message", most=10)


async def group_commit(bench: Bench, directory: Path) -> None:
    """SYNC_FLUSH with 64 senders, each with one message under way."""
    settings = {**LARGE_FILES, "flushDiskType": "SYNC_FLUSH"}
    with Cluster(directory, settings=settings) as cluster:
        await create_topic(cluster, "Bench1", 1)
        port = port_of(cluster)
        frames = frames_for(1)
        await pipeline(port, frames, count=6400, window=1, connections=64)
        before = await sync_count(cluster)
        run = await pipeline(port, frames, count=bench.count(40_000), window=1, connections=64)
        synced = await sync_count(cluster) - before
        bench.add("SYNC_FLUSH, 64 senders", run.messages / synced, "messages/fsync", least=20)
        bench.add("SYNC_FLUSH rate (wall clock)", run.messages / run.wall_seconds, "messages/s")


async def sync_count(cluster: Cluster) -> int:
    """Return how often the broker has synced its log."""
    async with AdminClient(name_servers=cluster.addresses) as admin:
        info = await admin.brokers.runtime(cluster.broker_addresses[0])
    return int(info["commitLogSyncCount"])


async def start_and_memory(bench: Bench, directory: Path) -> None:
    """CPU from nothing to ready, and memory after a million messages."""
    with Cluster(directory, settings=LARGE_FILES) as cluster:
        servers: list[ServerProcess] = [*cluster.name_servers, *cluster.brokers]
        started = max(cpu_of(server.pid) for server in servers)
        bench.add("cold start to ready, CPU", started, "s", most=1)
        await create_topic(cluster, "Bench100", 100)
        port = port_of(cluster)
        count = bench.count(1_000_000)
        await pipeline(port, frames_for(100), count=count)
        memory = sum(server.memory_bytes("RssAnon") for server in servers) / 2**20
        bench.add(
            "anonymous memory, both servers", memory, "MB", most=100,
            note=f"after {count:,} messages",
        )  # fmt: skip
        started = time.perf_counter()
        cluster.brokers[0].kill()
        cluster.brokers[0].start()
        bench.add("back after kill -9 (wall clock)", time.perf_counter() - started, "s")


async def pending_timers(bench: Bench, directory: Path) -> None:
    """A million messages that wait for their time."""
    await timers(bench, directory, settings=LARGE_FILES, cpu_of=cpu_of)


async def tables_of_spark(bench: Bench, directory: Path) -> None:
    """Topics and logs as tables; Spark is loaded only for this."""
    from spark_tables import spark

    await spark(bench, directory)


def report(bench: Bench, path: Path) -> bool:
    """Print the table, write the JSON file; return whether every target is met."""
    compiled = not hashing.__file__.endswith(".py")
    table = Table(title=f"Rocketpost benchmarks ({'compiled' if compiled else 'plain'} kernel)")
    for column in ("figure", "value", "unit", "target", ""):
        table.add_column(column, justify="right" if column in ("value", "target") else "left")
    for figure in bench.figures:
        mark = "" if figure.met is None else "[green]met" if figure.met else "[red]missed"
        table.add_row(figure.name, f"{figure.value:,.2f}", figure.unit, figure.target, mark)
    bench.console.print(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "compiled_kernel": compiled,
        "figures": [asdict(figure) for figure in bench.figures],
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
    bench.console.print(f"Written to {path}")
    return all(figure.met is not False for figure in bench.figures)


PARTS = (
    "brokers",
    "sends",
    "filters",
    "flush",
    "memory",
    "push",
    "backlog",
    "beside",
    "timers",
    "replication",
    "group",
    "grpc",
    "access",
    "metrics",
    "spark",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="size of every run")
    parser.add_argument("--rounds", type=int, help="repetitions of what is compared")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--backlog", type=int, default=200_000, help="messages to drain, such as 10000000"
    )
    parser.add_argument("--output", type=Path, default=HERE / "results" / "latest.json")
    add_options(parser)
    arguments = parser.parse_args()
    end_in_order()
    with filled_page_cache():
        return run(arguments)


def run(arguments: argparse.Namespace) -> int:
    """Measure the chosen parts; return 1 if a goal is missed."""
    bench = Bench(arguments.scale, arguments.rounds or 5)
    are_goals_met = True
    if arguments.only in (None, "brokers"):
        result = run_brokers(arguments, bench.console)
        result.write(NEWEST)
        bench.console.print(f"Written to {NEWEST}")
        are_goals_met = all(verdict(row) != "missed" for row in result.rows)
        if arguments.only:
            return 0 if are_goals_met else 1
    parts: dict[str, Callable[[Bench, Path], Coroutine[None, None, None]]] = {
        "sends": sends,
        "filters": filters,
        "flush": group_commit,
        "memory": start_and_memory,
        "push": consume.push,
        "backlog": functools.partial(consume.backlog, count=arguments.backlog),
        "beside": consume.beside,
        "timers": pending_timers,
        "replication": replication,
        "group": group,
        "grpc": grpc_calls,
        "access": access,
        "metrics": metrics,
        "spark": tables_of_spark,
    }
    assert ("brokers", *parts) == PARTS
    for name, part in parts.items():
        if arguments.only in (None, name):
            bench.console.print(f"[bold]{name}")
            with tempfile.TemporaryDirectory(prefix="rocketpost-bench-") as directory:
                uvloop.run(part(bench, Path(directory)))
    return 0 if report(bench, arguments.output) and are_goals_met else 1


if __name__ == "__main__":
    sys.exit(main())
