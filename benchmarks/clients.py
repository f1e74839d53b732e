"""CPU per message of clients, from their processes' own counters, beside that of another build.

    python benchmarks/clients.py [--control CHECKOUT] [--kinds gather,push] [--rounds 5]

Each round runs every kind of work once with each build, in processes of their own, against one
broker of ours. The minimum and the median of the rounds are printed. ``--build`` names a checkout
to measure instead of the one that is imported, such as a copy with a compiled kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import uvloop
from bench import HERE, LARGE_FILES, create_topic, port_of
from client_work import BODY, CONSUMERS, KINDS
from load import pipeline, send_frames

from rocketpost.testing import Cluster

BACKLOG = "Backlog"
SENT = "Sent"
QUEUES = 4
CONSUMING = {work.__name__ for work in CONSUMERS}


def run_work(kind: str, build: Path | None, addresses: str, count: int, group: str) -> float:
    """Run one kind of work with one build; return its CPU microseconds per message."""
    environment = dict(os.environ)
    if build is not None:
        environment["PYTHONPATH"] = str(build / "src")
    topic = BACKLOG if kind in CONSUMING else SENT
    command = [sys.executable, str(HERE / "client_work.py")]
    command += [kind, addresses, topic, str(count), group]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    spent: float = json.loads(done.stdout.splitlines()[-1])["cpu"]
    return spent


async def fill(cluster: Cluster, count: int) -> None:
    """Create the topics, and store the messages to consume."""
    await create_topic(cluster, SENT, QUEUES)
    await create_topic(cluster, BACKLOG, QUEUES)
    frames = send_frames(BACKLOG, lambda number: number % QUEUES, BODY)
    run = await pipeline(port_of(cluster), frames, count=count)
    if run.failures:
        raise SystemExit(f"{run.failures} of {run.messages} sends failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, help="a checkout to measure; the imported one if not")
    parser.add_argument("--control", type=Path, help="a checkout to compare with")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of work, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=40_000, help="messages of one run")
    options = parser.parse_args()
    builds: dict[str, Path | None] = {"this": options.build}
    if options.control is not None:
        builds = {"control": options.control, **builds}
    count = options.count // QUEUES * QUEUES
    costs: dict[tuple[str, str], list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="rocketpost-clients-") as directory,
        Cluster(Path(directory), settings=LARGE_FILES) as cluster,
    ):
        uvloop.run(fill(cluster, count))
        for number in range(options.rounds):
            for kind in options.kinds.split(","):
                for name, build in builds.items():
                    spent = run_work(kind, build, cluster.addresses, count, f"{name}{number}{kind}")
                    costs.setdefault((kind, name), []).append(spent)
    print(f"{'CPU us per message, min / median':34}" + "".join(f"{name:>16}" for name in builds))
    for kind in options.kinds.split(","):
        row = [costs[kind, name] for name in builds]
        texts = [f"{min(each):.1f} / {statistics.median(each):.1f}" for each in row]
        print(f"{kind:34}" + "".join(f"{text:>16}" for text in texts))


if __name__ == "__main__":
    main()
