"""Replication: what a slave costs its master, what it spends itself, and how fast it catches up.

    .venv/bin/python benchmarks/replication.py [--rounds 7] [--build NAME=WHERE]

Masters with and without a slave run side by side and take turns, as do those that wait for it. CPU
is that of each process alone. Two masters have no slave: they show the noise, and the others are
compared with the mean of both. A process that is busy beside a master makes every send of it
dearer. So the cost to the master is measured as if the slave were on another machine: the master
has a core of its own meanwhile, and the slave only reads and acknowledges (``ha_sink``). The figure
with a whole slave on this machine is shown too. Rates are by the wall clock, and master, slave and
loader share the machine's cores.

Between the turns of the masters, a process sends as many bytes as they do, at the same rate, and
nothing else (``ha_floor``): no master that sends its log through a socket of this machine can
spend less on a slave.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench import Bench
from builds import ROOT, Build, make_build
from closed_loop import Requests, create_topic, max_offset, run_requests
from ha_floor import RECORD_BYTES
from page_cache import filled_page_cache
from servers import HERE, Target, cpu_seconds, our_broker
from workloads import ASYNC_FLUSH, NO_WAIT, QUEUES, TOPIC, send_request

from rocketpost.testing.process import free_port

ALONE: Final = "alone"
CONTROL: Final = "control"
REMOTE: Final = "slave elsewhere, own core"
ALONE_APART: Final = "alone, own core"
CONTROL_APART: Final = "control, own core"
ASYNC: Final = "ASYNC_MASTER"
SYNC: Final = "SYNC_MASTER"
FLOOR: Final = "sendfile"
WINDOW: Final = 256
COUNT: Final = 60_000
CATCH_UP_COUNT: Final = 500_000
CATCH_UP_ROUNDS: Final = 3

_sends = partial(Requests, send_request)


@dataclass(slots=True)
class Turns:
    """What was measured in the turns of one master."""

    cpu: list[float] = field(default_factory=list)
    """CPU microseconds of the master per message."""
    slave_cpu: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    """Messages per second, by the wall clock."""


@dataclass(frozen=True, slots=True)
class Group:
    """A master and perhaps a slave."""

    master: Target
    slave: Target | None
    is_apart: bool = False
    """Whether the master has a core of its own in its turn."""

    def wait_copied(self) -> None:
        """Wait until the slave has every message."""
        if self.slave is not None:
            end = stored(self.master.port)
            while stored(self.slave.port) < end:
                time.sleep(0.02)


def stored(port: int) -> int:
    """Return the number of messages that a broker shows."""
    return sum(max_offset(port, TOPIC, queue_id) for queue_id in range(QUEUES))


@contextlib.contextmanager
def master(build: Build, directory: Path, role: str) -> Iterator[tuple[Target, int]]:
    """Run a master; yields it and its HA port."""
    ha_port = free_port()
    settings = {"brokerRole": role, "haListenPort": str(ha_port)}
    with our_broker(build, directory, flush=ASYNC_FLUSH, settings=settings) as target:
        create_topic(target.port, TOPIC, QUEUES)
        yield target, ha_port


@contextlib.contextmanager
def slave(build: Build, directory: Path, ha_port: int) -> Iterator[Target]:
    """Run a slave."""
    settings = {
        "brokerRole": "SLAVE",
        "brokerId": "1",
        "haListenPort": str(free_port()),
        "haMasterAddress": f"127.0.0.1:{ha_port}",
    }
    with our_broker(build, directory, flush=ASYNC_FLUSH, settings=settings) as target:
        yield target


CORES: Final = sorted(os.sched_getaffinity(0))


@contextlib.contextmanager
def own_core(target: Target, neighbours: Iterable[Target] = ()) -> Iterator[None]:
    """Give a server the first core, and let its neighbours and this process use the others."""
    if len(CORES) < 2:
        yield
        return
    others = [os.getpid(), *[each.pid for each in neighbours]]
    _use_cores(target.pid, CORES[:1])
    for pid in others:
        _use_cores(pid, CORES[1:])
    try:
        yield
    finally:
        for pid in (target.pid, *others):
            _use_cores(pid, CORES)


def _use_cores(pid: int, cores: list[int]) -> None:
    """Let all threads of a process use some cores only."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended meanwhile
            os.sched_setaffinity(int(thread), cores)


@contextlib.contextmanager
def sink(ha_port: int) -> Iterator[None]:
    """Run a slave that stores nothing; it leaves the first core to others."""
    command = [sys.executable, str(HERE / "ha_sink.py"), str(ha_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            os.sched_setaffinity(process.pid, CORES[1:] or CORES)
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def floor(directory: Path) -> Iterator[Callable[[int, float], float]]:
    """Run a process that only sends bytes to a slave.

    Yields a function that has it send those of a number of messages, evenly over some seconds, and
    that returns its CPU microseconds per message.
    """
    command = [sys.executable, str(HERE / "ha_floor.py"), str(directory / "floor")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        requests, answers = process.stdin, process.stdout
        assert requests is not None
        assert answers is not None

        def send(count: int, seconds: float) -> float:
            print(count, seconds, file=requests, flush=True)
            return float(answers.readline())

        try:
            with sink(int(answers.readline())):
                yield send
        finally:
            process.kill()


@contextlib.contextmanager
def groups(build: Build, directory: Path) -> Iterator[dict[str, Group]]:
    """Run the masters to compare, and the slaves of those that have one."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name in (ALONE, CONTROL, REMOTE, ASYNC, SYNC):
            role = SYNC if name == SYNC else ASYNC
            target, ha_port = stack.enter_context(master(build, directory / name, role))
            copy = None
            if name == REMOTE:
                stack.enter_context(sink(ha_port))
            elif name in (ASYNC, SYNC):
                copy = stack.enter_context(slave(build, directory / f"{name} slave", ha_port))
            found[name] = Group(target, copy, is_apart=name == REMOTE)
        found[ALONE_APART] = Group(found[ALONE].master, None, is_apart=True)
        found[CONTROL_APART] = Group(found[CONTROL].master, None, is_apart=True)
        yield found


def take_turn(group: Group, requests: Requests, turns: Turns, *, count: int) -> None:
    """Send to a master, and add what it and its slave spend until both have everything."""
    before = cpu_seconds(group.master.pid)
    slave_before = cpu_seconds(group.slave.pid) if group.slave else 0.0
    with own_core(group.master) if group.is_apart else contextlib.nullcontext():
        run = run_requests(group.master.port, requests, count=count, window=WINDOW)
        time.sleep(0.2)
    turns.cpu.append((cpu_seconds(group.master.pid) - before) / count * 1e6)
    if group.slave:
        turns.slave_cpu.append((cpu_seconds(group.slave.pid) - slave_before) / count * 1e6)
    turns.rate.append(run.requests / run.wall_seconds)
    group.wait_copied()


def compare_masters(build: Build, directory: Path, *, rounds: int, count: int) -> dict[str, Turns]:
    """Return what the masters spend in interleaved rounds; the first one is discarded."""
    found: dict[str, Turns] = {FLOOR: Turns()}
    requests = _sends()
    with groups(build, directory) as running, floor(directory) as send_only:
        for group in running.values():
            wait_connected(group, requests)
        for number in range(rounds + 1):
            for name in rotated(list(running), number):
                turns = found.setdefault(name, Turns()) if number else Turns()
                take_turn(running[name], requests, turns, count=count)
            least = send_only(count, count / turns.rate[-1])
            if number:
                found[FLOOR].cpu.append(least)
            print(f"  round {number} of {rounds}", file=sys.stderr, flush=True)
    return found


def rotated(names: list[str], number: int) -> list[str]:
    """Return the order of a round.

    Whoever runs after a pause, or twice without another between, is faster. So each has each place.
    """
    at = number % len(names)
    return (names[at:] + names[:at])[:: -1 if number // len(names) % 2 else 1]


def wait_connected(group: Group, requests: Requests) -> None:
    """Send until the slave follows; a SYNC_MASTER answers without success before that."""
    first = Requests(partial(send_request, properties=NO_WAIT))
    run_requests(group.master.port, first, count=QUEUES, window=1)
    group.wait_copied()
    run_requests(group.master.port, requests, count=2000, window=1 if group.slave else WINDOW)


def median_ratio(mine: list[float], base: list[float]) -> float:
    """Return the median of the ratios of rounds."""
    return statistics.median(one / other for one, other in zip(mine, base, strict=True))


@contextlib.contextmanager
def stopped(target: Target) -> Iterator[None]:
    """Keep a server from running."""
    os.kill(target.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(target.pid, signal.SIGCONT)


def mean_of(one: Turns, other: Turns) -> Turns:
    """Return the means of two masters, round by round."""

    def means(mine: list[float], theirs: list[float]) -> list[float]:
        return [(each + too) / 2 for each, too in zip(mine, theirs, strict=True)]

    return Turns(cpu=means(one.cpu, other.cpu), rate=means(one.rate, other.rate))


def catch_up(bench: Bench, build: Build, directory: Path) -> None:
    """Start new slaves of a master with a long log, while others send.

    The cost of a send drifts while the log grows, so times with and without a slave alternate. The
    master stands still until the slave that is timed has started.
    """
    requests = _sends()
    count = bench.count(CATCH_UP_COUNT)
    with master(build, directory / "master", ASYNC) as (target, ha_port):
        run_requests(target.port, requests, count=count, window=WINDOW)
        load = Load(target, requests)
        seconds = 1.2 * bench.scale
        idle, during = [load.cost_of(seconds=seconds)], []
        for _ in range(CATCH_UP_ROUNDS):
            with sink(ha_port):
                during.append(load.cost_of(seconds=seconds))  # not all of the log
            idle.append(load.cost_of(seconds=seconds))
        with contextlib.ExitStack() as stack:
            with stopped(target):
                copy = stack.enter_context(slave(build, directory / "slave", ha_port))
                copied_from = stored(copy.port)
            started, sent = time.perf_counter(), load.sent
            while (copied := stored(copy.port)) < count:
                time.sleep(0.02)
            seconds = time.perf_counter() - started
            new = load.sent - sent
        load.stop()
    megabytes = (copied - copied_from) * RECORD_BYTES / 1e6
    note = f"{new / seconds:,.0f} messages/s were sent meanwhile"
    bench.add("catch-up of a new slave", megabytes / seconds, "MB/s", least=150, note=note)
    bench.add("noise: send without a slave, to before", median_ratio(idle[1:], idle[:-1]), "x")
    around = [(before + after) / 2 for before, after in pairwise(idle)]
    ratio = median_ratio(during, around)
    bench.add("send while a slave catches up, to before and after", ratio, "x", most=1.2)


class Load:
    """Sends without end from a thread, a fixed number in flight."""

    def __init__(self, target: Target, requests: Requests) -> None:
        self._target = target
        self._requests = requests
        self._is_stopped = False
        self.sent = 0
        self._marks: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def cost_of(self, *, seconds: float) -> float:
        """Return the CPU microseconds of the server per message over some time from now on.

        Both are taken between two runs, when nothing is in flight.
        """
        begin = len(self._marks) + 1  # the present run began earlier
        time.sleep(seconds)
        while len(self._marks) < begin + 2:
            time.sleep(0.01)
        cpu, sent = self._marks[begin]
        cpu_after, sent_after = self._marks[-1]
        return (cpu_after - cpu) / (sent_after - sent) * 1e6

    def stop(self) -> None:
        """End the load."""
        self._is_stopped = True
        self._thread.join()

    def _run(self) -> None:
        while not self._is_stopped:
            run = run_requests(self._target.port, self._requests, count=4096, window=WINDOW)
            self.sent += run.requests
            self._marks.append((cpu_seconds(self._target.pid), self.sent))


def measure(bench: Bench, build: Build, directory: Path) -> None:
    """Add the figures of replication."""
    found = compare_masters(
        build, directory / "groups", rounds=bench.rounds, count=bench.count(COUNT)
    )
    first, second, copied, waited = (found[name] for name in (ALONE, CONTROL, ASYNC, SYNC))
    alone = mean_of(first, second)
    apart = mean_of(found[ALONE_APART], found[CONTROL_APART])
    remote, least = found[REMOTE], found.pop(FLOOR).cpu
    for name, turns in found.items():
        bench.add(f"send 1 KB, {name}", statistics.median(turns.cpu), "us/message")
        bench.add(f"send rate, {name} (wall clock)", statistics.median(turns.rate), "messages/s")
    bench.add("noise: two masters without a slave", median_ratio(second.cpu, first.cpu), "x")
    noise = median_ratio(found[CONTROL_APART].cpu, found[ALONE_APART].cpu)
    bench.add("noise: the same, on a core of their own", noise, "x")
    cost = median_ratio(remote.cpu, apart.cpu)
    bench.add("ASYNC_MASTER with a slave elsewhere, to alone", cost, "x", most=1.1)
    bench.add("sendfile of the same bytes, nothing else", statistics.median(least), "us/message")
    floor_cost = 1 + median_ratio(least, apart.cpu)
    bench.add("alone and that sendfile, to alone", floor_cost, "x", note="none can be below")
    bench.add("ASYNC_MASTER with a slave here, to alone", median_ratio(copied.cpu, alone.cpu), "x")
    bench.add("SYNC_MASTER rate, to alone", median_ratio(waited.rate, alone.rate), "x", least=0.5)
    bench.add("slave, CPU", statistics.median(copied.slave_cpu), "us/message")
    bench.add("slave, to its master", median_ratio(copied.slave_cpu, copied.cpu), "x", most=0.6)
    catch_up(bench, build, directory / "catch-up")


async def replication(bench: Bench, directory: Path) -> None:
    """Masters and slaves of this checkout."""
    measure(bench, make_build(f"now={ROOT}", directory / "builds"), directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=f"now={ROOT}", metavar="NAME=WHERE")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    bench = Bench(options.scale, options.rounds)
    with (
        filled_page_cache(),
        tempfile.TemporaryDirectory(prefix="rocketpost-bench-") as scratch,
    ):
        measure(bench, make_build(options.build, Path(scratch, "builds")), Path(scratch))
    for figure in bench.figures:
        mark = {None: "", True: "met", False: "missed"}[figure.met]
        print(f"{figure.name:45}{figure.value:>14,.2f} {figure.unit:12}{figure.target:>8} {mark}")


if __name__ == "__main__":
    main()
