"""What a second broker gives: one broker and one loader against two of each, in alternate rounds.

    python benchmarks/cores.py --build main=. --rows send,64x1,batch --rounds 9 --pin

Each broker is a process with its own store, and each loader is a process that loads one broker.
There are two ratios: messages per second of wall time, and the CPU per message of the brokers,
which says whether brokers hinder each other.

Without --pin, two processes may use all cores in one round and four in the next. On a machine that
does other work, four processes also get more of it than two, so that messages per second flatter
the second broker. With --pin, each broker shares one core with its loader: a round with one broker
uses one core, a round with two brokers two. Other work then moves to the core that is left free in
the rounds with one broker, so that messages per second flatter the first broker.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from builds import make_build
from servers import Target, cpu_seconds, our_broker
from workloads import Workload, choose, prepare


class Round(NamedTuple):
    """One round: messages, and the seconds that they took."""

    messages: int
    wall: float
    broker_cpu: float
    loader_cpu: float

    @property
    def rate(self) -> float:
        """Messages per second of wall time."""
        return self.messages / self.wall

    @property
    def broker_cost(self) -> float:
        """CPU microseconds of the brokers per message."""
        return self.broker_cpu / self.messages * 1e6

    @property
    def total_cost(self) -> float:
        """CPU microseconds of brokers and loaders per message."""
        return (self.broker_cpu + self.loader_cpu) / self.messages * 1e6


def main() -> int:
    """Measure the rows that are asked for, and print their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="main=.", help="NAME=WHERE, as in compare.py")
    parser.add_argument("--rows", default="send,64x1,batch,pull")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--scale", type=float, default=1.0, help="part of the usual requests")
    parser.add_argument("--pin", action="store_true", help="one core for a broker and its loader")
    chosen = parser.parse_args()
    rows = choose(chosen.rows)
    cores = sorted(os.sched_getaffinity(0))
    if chosen.pin and len(cores) < 2:
        parser.error("--pin needs two cores")
    with contextlib.ExitStack() as stack:
        scratch = tempfile.TemporaryDirectory(prefix="rocketpost-cores-")
        folder = Path(stack.enter_context(scratch))
        build = make_build(chosen.build, folder / "builds")
        brokers = [
            stack.enter_context(our_broker(build, folder / str(number), flush="ASYNC_FLUSH"))
            for number in range(2)
        ]
        for broker in brokers:
            prepare(broker.port, warm_up=round(20_000 * chosen.scale))
        loaders = []
        for number, broker in enumerate(brokers):
            link, loader_pid = stack.enter_context(loader(broker.port))
            loaders.append(link)
            if chosen.pin:
                pin(broker.pid, cores[number])
                pin(loader_pid, cores[number])
        for row in rows:
            report(row, measure(row, brokers, loaders, chosen.rounds, chosen.scale))
    return 0


def measure(
    row: Workload, brokers: list[Target], loaders: list[Connection], rounds: int, scale: float
) -> list[tuple[Round, Round]]:
    """Return the rounds with one broker and with two, in pairs; the first pair is discarded."""
    pairs = []
    for number in range(rounds + 1):
        counts = (1, 2) if number % 2 else (2, 1)
        found = {}
        for count in counts:
            which = slice(0, 2) if count == 2 else slice(number // 2 % 2, number // 2 % 2 + 1)
            found[count] = run_round(row, brokers[which], loaders[which], scale)
        pairs.append((found[1], found[2]))
        print(f"  {row.name}: round {number} of {rounds}", file=sys.stderr, flush=True)
    return pairs[1:]


def run_round(
    row: Workload, brokers: list[Target], loaders: list[Connection], scale: float
) -> Round:
    """Load all brokers at the same time, each with the usual number of requests."""
    before = [cpu_seconds(broker.pid) for broker in brokers]
    began = time.perf_counter()
    for each in loaders:
        each.send((row.name, scale))
    done = [each.recv() for each in loaders]
    wall = time.perf_counter() - began
    spent = sum(cpu_seconds(each.pid) - at for each, at in zip(brokers, before, strict=True))
    return Round(sum(count for count, _ in done), wall, spent, sum(cpu for _, cpu in done))


def pin(pid: int, core: int) -> None:
    """Keep all threads of a process on one core, those that it will start as well."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


@contextlib.contextmanager
def loader(port: int) -> Iterator[tuple[Connection, int]]:
    """Run a process that loads the broker at ``port`` whenever it is asked to; yields its pid."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_loads, args=(theirs, port))
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield ours, process.pid
    finally:
        ours.close()
        process.join()


def serve_loads(link: Connection, port: int) -> None:
    """Run rounds until the pipe closes; answer each with its messages and the CPU spent."""
    requests = {}
    with contextlib.suppress(EOFError):
        while True:
            name, scale = link.recv()
            (row,) = choose(name)
            if name not in requests:
                requests[name] = row.requests()
            began = time.process_time()
            run = row.run(port, requests[name], scale=scale)
            link.send((run.requests * row.per_request, time.process_time() - began))


def report(row: Workload, pairs: list[tuple[Round, Round]]) -> None:
    """Print what one broker and two brokers did."""
    print(row.title)
    for label, side in (("1 broker, 1 loader", 0), ("2 brokers, 2 loaders", 1)):
        costs = [pair[side].broker_cost for pair in pairs]
        totals = [pair[side].total_cost for pair in pairs]
        rates = [pair[side].rate for pair in pairs]
        print(
            f"  {label:22} broker {min(costs):6.2f} / {statistics.median(costs):6.2f} us a message"
            f"   with loader {min(totals):6.2f} / {statistics.median(totals):6.2f}"
            f"   {max(rates):10,.0f} / {statistics.median(rates):10,.0f} messages a second"
        )
    cost = [two.broker_cost / one.broker_cost for one, two in pairs]
    rate = [two.rate / one.rate for one, two in pairs]
    least = min(two.broker_cost for _, two in pairs) / min(one.broker_cost for one, _ in pairs)
    print(
        f"  ratio of two to one    broker CPU a message: of minima {least:.2f}, median of rounds"
        f" {statistics.median(cost):.2f}   messages a second: min {min(rate):.2f}, median"
        f" {statistics.median(rate):.2f}, max {max(rate):.2f}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
