"""A group of three brokers that elects its leader: its rate, and what followers cost the leader.

    .venv/bin/python benchmarks/group.py [--rounds 7] [--scale 1.0]

The leader and two brokers without a group run side by side and take turns. The two show the noise,
and the leader is compared with the mean of both. All flush before they acknowledge (SYNC_FLUSH),
the group on a majority. CPU is that of each process alone. Rates are by the wall clock, and all
processes share the machine's cores and its disk, which has to flush three copies.

Two figures compare the CPU. In the first, the cores are shared as the system likes: a broker alone
shares them with the loader only, the leader with two followers as well, which empty its caches and
delay it. In the second, whichever broker is measured has the first core for itself, and all others
use the rest, as if the followers were on another machine; but the leader still does the work of TCP
for both ends, and three logs are flushed on one disk. With one core there is no second figure.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from bench import Bench
from builds import ROOT, Build, make_build
from closed_loop import RequestRefused, Requests, ask, create_topic, run_requests
from page_cache import filled_page_cache
from replication import CORES, Turns, mean_of, median_ratio, own_core, rotated
from servers import Target, cpu_seconds, our_broker
from workloads import QUEUES, SYNC_FLUSH, TOPIC, send_request

from rocketpost.codec.codes import RequestCode
from rocketpost.testing.process import free_port

ALONE: Final = "alone"
CONTROL: Final = "control"
GROUP: Final = "group of three"
APART: Final = ", own core"
"""Ends the names of turns in which the measured broker has a core for itself."""
NODES: Final = ("n0", "n1", "n2")
WINDOW: Final = 256
COUNT: Final = 60_000
"""So many that the ticks of a leader that waits for the next turn do not matter."""
ELECTION_SECONDS_MAX: Final = 30.0
SETTLE_SECONDS: Final = 0.2
"""Time in which followers do the rest of their work after the last answer."""
LEADS: Final = b'"isLeader":"true"'


class Group(NamedTuple):
    """The running members of a group."""

    leader: Target
    followers: list[Target]


@contextlib.contextmanager
def group_of_three(build: Build, directory: Path) -> Iterator[Group]:
    """Run a group, and create the topic at its leader."""
    peers = ";".join(f"{node}-127.0.0.1:{free_port()}" for node in NODES)
    settings = {"enableDLegerCommitLog": "true", "dLegerGroup": "bench", "dLegerPeers": peers}
    with contextlib.ExitStack() as stack:
        members = []
        for node in NODES:
            own = settings | {"dLegerSelfId": node}
            broker = our_broker(build, directory / node, flush=SYNC_FLUSH, settings=own)
            members.append(stack.enter_context(broker))
        deadline = time.monotonic() + ELECTION_SECONDS_MAX
        while time.monotonic() < deadline:
            for each in members:
                with contextlib.suppress(RequestRefused):
                    if LEADS in ask(each.port, RequestCode.CONTROLLER_GET_METADATA_INFO, {}):
                        create_topic(each.port, TOPIC, QUEUES)
                        yield Group(each, [other for other in members if other is not each])
                        return
            time.sleep(0.1)
        raise SystemExit(f"the group has elected no leader in {ELECTION_SECONDS_MAX:g} s")


def take_turn(
    target: Target,
    followers: list[Target],
    requests: Requests,
    turns: Turns,
    *,
    count: int,
    is_apart: bool = False,
) -> None:
    """Send to a broker, and add what it and its followers spend, and how fast it is."""
    processes = [target, *followers]
    before = [cpu_seconds(each.pid) for each in processes]
    with own_core(target, followers) if is_apart else contextlib.nullcontext():
        run = run_requests(target.port, requests, count=count, window=WINDOW)
        time.sleep(SETTLE_SECONDS)
    spent = [cpu_seconds(each.pid) - was for each, was in zip(processes, before, strict=True)]
    turns.cpu.append(spent[0] / count * 1e6)
    turns.slave_cpu += [each / count * 1e6 for each in spent[1:]]
    turns.rate.append(run.requests / run.wall_seconds)


def compare(build: Build, directory: Path, *, rounds: int, count: int) -> dict[str, Turns]:
    """Return what the brokers spend in interleaved rounds; the first one is discarded."""
    requests = Requests(send_request)
    found: dict[str, Turns] = {}
    with contextlib.ExitStack() as stack:
        group = stack.enter_context(group_of_three(build, directory / "group"))
        running = {GROUP: group.leader}
        for name in (ALONE, CONTROL):
            target = stack.enter_context(our_broker(build, directory / name, flush=SYNC_FLUSH))
            create_topic(target.port, TOPIC, QUEUES)
            running[name] = target
        if len(CORES) > 1:
            running |= {name + APART: target for name, target in running.items()}
        for number in range(rounds + 1):
            for name in rotated(list(running), number):
                turns = found.setdefault(name, Turns()) if number else Turns()
                followers = group.followers if name.startswith(GROUP) else []
                is_apart = name.endswith(APART)
                take_turn(running[name], followers, requests, turns, count=count, is_apart=is_apart)
            print(f"  round {number} of {rounds}", file=sys.stderr, flush=True)
    return found


def measure(bench: Bench, build: Build, directory: Path) -> None:
    """Add the figures of a group."""
    found = compare(build, directory / "brokers", rounds=bench.rounds, count=bench.count(COUNT))
    for name, turns in found.items():
        bench.add(f"SYNC_FLUSH, send 1 KB, {name}", statistics.median(turns.cpu), "us/message")
        rate = statistics.median(turns.rate)
        bench.add(f"SYNC_FLUSH, send rate, {name} (wall clock)", rate, "messages/s")
    follower = statistics.median(found[GROUP].slave_cpu)
    bench.add(f"SYNC_FLUSH, send 1 KB, a follower in the {GROUP}", follower, "us/message")
    for where in ("", APART) if GROUP + APART in found else ("",):
        first, second, group = (found[name + where] for name in (ALONE, CONTROL, GROUP))
        alone = mean_of(first, second)
        noise = median_ratio(second.cpu, first.cpu)
        bench.add(f"noise: two brokers without a group{where}", noise, "x")
        if not where:
            rate = median_ratio(group.rate, alone.rate)
            bench.add("group of three, rate to alone", rate, "x", least=0.4)
        cost, least = median_ratio(group.cpu, alone.cpu), min(first.cpu + second.cpu)
        bench.add(f"group of three, leader's CPU to alone{where}", cost, "x", most=1.15)
        bench.add(f"the same, ratio of minima{where}", min(group.cpu) / least, "x")


async def group(bench: Bench, directory: Path) -> None:
    """A group of brokers of this checkout."""
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


if __name__ == "__main__":
    main()
