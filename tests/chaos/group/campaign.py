"""A campaign of faults against a group, whose rounds all have the same form.

A round does one fault under load and undoes it, waits until a send is acknowledged again, and reads
at the leader what came since the last round. Every few rounds the load pauses, and all members must
have the same log and the same tables. At the end everything that was ever sent is compared.

All choices come from a seed; what processes do in which moment does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from chaos.group.checks import GroupChecks
from chaos.group.load import OFFSETS_SECONDS, QUEUE_NUMS, TOPICS, GroupLoad
from chaos.group.members import CLIENTS, HOSTS, Members, members
from chaos.group.network import Network
from chaos.group.steady_loop import SteadyLoop
from rocketpost.errors import ClientError, Fault
from rocketpost.testing.ledger import Counts, Ledger

COMPARE_EVERY: Final = 10
WRITABLE_SECONDS_MAX: Final = 60.0
"""Time in which a group must take messages again after a fault."""
_SLOW_SECONDS: Final = 5.0
"""Time until messages are taken again that is worth a look into the members' logs."""
_BETWEEN_SECONDS: Final = (0.1, 0.6)
_CALM_SHARE: Final = 0.15
"""Share of rounds before which offsets have the time to become safe."""


@dataclass(slots=True)
class GroupReport:
    """Report of a campaign."""

    seed: int
    rounds: Counter[str] = field(default_factory=Counter)
    """Number of rounds by kind of fault."""
    events: Counter[str] = field(default_factory=Counter)
    """Number of single events, such as kills."""
    writable_after: list[float] = field(default_factory=list)
    """Seconds from the end of each fault to the next acknowledged send."""
    seconds: float = 0.0
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0, 0))
    offsets_checked: int = 0
    log_bytes: int = 0

    def __str__(self) -> str:
        sent, acknowledged, refused, seen, _ = self.counts
        after = self.writable_after or [0.0]
        return (
            f"seed={self.seed} rounds={self.rounds.total()} {dict(self.rounds)} "
            f"events={dict(self.events)} sent={sent} acknowledged={acknowledged} "
            f"refused={refused} seen={seen} offsets={self.offsets_checked} "
            f"log_bytes={self.log_bytes} writable again: median={statistics.median(after):.2f} "
            f"max={max(after):.2f} seconds={self.seconds:.0f}"
        )


@dataclass(slots=True)
class Scene:
    """What a fault works on."""

    members: Members
    load: GroupLoad
    checks: GroupChecks
    rng: random.Random
    report: GroupReport

    async def leader(self) -> str:
        """Return the name of the leader, once there is one."""
        async with asyncio.timeout(WRITABLE_SECONDS_MAX):
            while (leader := await self.members.leader()) is None:
                await asyncio.sleep(0.02)
        return leader.node


FaultKind = Callable[[Scene], Awaitable[None]]
"""Does something bad, and undoes it; its name is the name of the kind."""


@contextlib.asynccontextmanager
async def _scene(
    network: Network, directory: Path, *, seed: int, bug: str, is_volatile: bool
) -> AsyncIterator[tuple[Scene, Ledger]]:
    rng = random.Random(seed)
    ledger = Ledger()
    async with members(network, directory, bug=bug, is_volatile=is_volatile) as group:
        load = GroupLoad(group, ledger, random.Random(rng.random()))
        checks = GroupChecks(group, ledger, load)
        await group.start()
        scene = Scene(group, load, checks, rng, GroupReport(seed))
        await _create_topics(scene)
        yield scene, ledger


async def _create_topics(scene: Scene) -> None:
    async with asyncio.timeout(WRITABLE_SECONDS_MAX):
        for topic in TOPICS:
            while True:
                leader = scene.members.by_name[await scene.leader()]
                with contextlib.suppress(ClientError, Fault):
                    async with leader.link() as link:
                        await link.create_topic(topic, QUEUE_NUMS)
                        break
                await asyncio.sleep(0.05)


async def _round(scene: Scene, ledger: Ledger, fault: FaultKind) -> None:
    load = scene.load
    await asyncio.sleep(scene.rng.uniform(*_BETWEEN_SECONDS))
    if scene.rng.random() < _CALM_SHARE:
        await asyncio.sleep(OFFSETS_SECONDS)
    load.commits.begin_fault()
    await fault(scene)
    load.commits.end_fault()
    after = await load.until_acknowledged(scene.members.all, seconds=WRITABLE_SECONDS_MAX)
    scene.report.writable_after.append(after)
    if after > _SLOW_SECONDS:
        when = datetime.now().isoformat(" ", "seconds")
        print(f"{when}: writable {after:.1f} s after {fault.__name__}")
    await scene.checks.check_leader()
    scene.report.rounds[fault.__name__] += 1
    ledger.verify()


async def _run(scene: Scene, ledger: Ledger, faults: Sequence[FaultKind], rounds: int) -> None:
    order = [faults[number % len(faults)] for number in range(rounds)]
    scene.rng.shuffle(order)
    for begin in range(0, rounds, COMPARE_EVERY):
        async with scene.load.running():
            for fault in order[begin : begin + COMPARE_EVERY]:
                await _round(scene, ledger, fault)
        await scene.checks.compare_members()
    await scene.checks.check_leader(whole=True)
    ledger.check_lost()
    await scene.checks.compare_whole_logs()
    ledger.verify()


def run_campaign(
    directory: Path,
    faults: Sequence[FaultKind],
    rounds: int,
    *,
    seed: int,
    bug: str = "",
    is_volatile: bool = False,
) -> GroupReport:
    """Run a campaign in namespaces of its own; prints and returns its report.

    Args:
        directory: The directory of everything.
        faults: The kinds of faults, each of which takes the same share of the rounds.
        rounds: Number of rounds.
        seed: The seed of all choices.
        bug: A planted bug of all members.
        is_volatile: Whether disks forget what was not synced when power is cut.

    Raises:
        PromiseBroken: A promise was broken.
        TimeoutError: The group did not recover.
    """

    async def main() -> GroupReport:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with _scene(network, directory, seed=seed, bug=bug, is_volatile=is_volatile) as (
            scene,
            ledger,
        ):
            report = scene.report
            try:
                await _run(scene, ledger, faults, rounds)
            finally:
                report.seconds = loop.time() - began
                report.counts = ledger.counts
                report.offsets_checked = scene.load.commits.checked
                report.log_bytes = scene.checks.log_bytes
                print(report)
        return report

    with Network(HOSTS) as network:
        return network.run_at(CLIENTS, lambda: _run_steadily(main()))


def _run_steadily(work: Coroutine[None, None, GroupReport]) -> GroupReport:
    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        return runner.run(work)
