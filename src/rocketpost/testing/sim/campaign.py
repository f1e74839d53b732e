"""Campaigns on simulated clusters: load of every kind, faults from a seed, and checks of promises.

A campaign runs plain sends and reads, judged by a ledger, and workloads of single message kinds,
while machines are killed, lose power, are cut off, or have slow disks. Then everything is repaired,
and every promise must hold: see ``testing.ledger`` and ``testing.workloads``. In the end the
members of a group must have the same log, queues and tables.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from rocketpost.errors import RocketpostError
from rocketpost.testing.ledger import Counts, Ledger
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.load import LoadQueue, Reader, Stream
from rocketpost.testing.sim.cluster import SimulatedCluster
from rocketpost.testing.sim.members import find_differences
from rocketpost.testing.workloads import Workload, Workplace
from rocketpost.testing.workloads.timed import LEVELS_SECONDS

TOPIC: Final = "Plain"
_QUEUES: Final = [LoadQueue(TOPIC, number) for number in range(3)]
_STREAMS: Final = 2
_PAUSE_SECONDS: Final = 0.2
_STREAM_SECONDS: Final = 2.0
_QUIET_SECONDS: Final = 5.0
_LEADER_SHARE: Final = 0.6
_FAULT_SECONDS: Final = (0.5, 6.0)
_CALM_SECONDS_MIN: Final = 0.5
_REPAIR_SECONDS: Final = 200.0
_JUMP_SECONDS: Final = 3600.0

SETTINGS: Mapping[str, str] = {
    "flushDiskType": "SYNC_FLUSH",
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in LEVELS_SECONDS),
    "recallMessageEnable": "true",
    "mappedFileSizeTimerLog": "65536",
    "timerPrecisionMs": "100",
    "timerRollWindowSlot": "20",
    "timerFlushIntervalMs": "150",
    "transactionTimeOut": "200",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "25",
    "transactionOpBatchInterval": "300",
    "flushProducerStateInterval": "60",
    "maxMessageSize": str(256 * 1024),
    "mappedFileSizeCommitLog": str(1024 * 1024),
}
"""Settings of brokers under which every kind of message has work to do within seconds."""


class SimulatedCampaign:
    """Load and faults on a cluster that is open.

    Args:
        cluster: The cluster.
        kinds: The workloads besides plain sends and reads.
        rest_seconds: Longest pause between the bursts of a stream of plain sends.
        kind_rest_seconds: Longest rest of the other workloads after a message.
        calm_seconds: Longest time between a repair and the next fault.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        kinds: Sequence[type[Workload]] = (),
        *,
        rest_seconds: float = 0.2,
        kind_rest_seconds: float = 0.0,
        calm_seconds: float = 5.0,
    ) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"campaign {cluster.seed}")
        self._rest_seconds = rest_seconds
        self._kind_rest_seconds = kind_rest_seconds
        self._calm_seconds = calm_seconds
        self._streams = 0
        self._address = ""
        self.ledger = Ledger()
        self.faults: Counter[str] = Counter()
        """Number of faults by kind."""
        self.workloads = [kind(self._workplace()) for kind in kinds]

    @property
    def counts(self) -> Counts:
        """The numbers of plain messages."""
        return self.ledger.counts

    async def run(self, rounds: int) -> None:
        """Run the load with so many faults, repair everything, and check.

        Raises:
            PromiseBroken: Promises were broken.
            TimeoutError: The cluster does not recover.
        """
        async with self._load():
            for _ in range(rounds):
                await asyncio.sleep(self._rng.uniform(_CALM_SECONDS_MIN, self._calm_seconds))
                self._choose_fault()
                await asyncio.sleep(self._rng.uniform(*_FAULT_SECONDS))
                self._repair()
            await self._cluster.ready(seconds=_REPAIR_SECONDS)
        for workload in self.workloads:
            await workload.settle()
        await self._check_plain()
        await self._check_members()
        self.ledger.verify()

    # Load.

    @contextlib.asynccontextmanager
    async def _load(self) -> AsyncIterator[None]:
        link = await BrokerLink.connect(self._find_leader())
        await link.create_topic(TOPIC, len(_QUEUES))
        link.close()
        for workload in self.workloads:
            await workload.prepare()
        reader = Reader(self.ledger)
        work = [self._keep(self._send) for _ in range(_STREAMS)]
        work.append(self._keep(lambda link: reader.run(link, _QUEUES)))
        work += [workload.run() for workload in self.workloads]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
            yield
            for task in tasks:
                task.cancel()

    async def _keep(self, work: Callable[[BrokerLink], Awaitable[None]]) -> None:
        """Do work with a connection to the leader, and with the next one when that is lost."""
        while True:
            with contextlib.suppress(RocketpostError):
                link = await BrokerLink.connect(self._find_leader())
                try:
                    await work(link)
                finally:
                    link.close()
            await asyncio.sleep(_PAUSE_SECONDS + self._rng.uniform(0, self._rest_seconds))

    async def _send(self, link: BrokerLink) -> None:
        """Send for a while: by then, another member may lead."""
        self._streams += 1
        stream = Stream(
            link, self.ledger, self._streams, rng=self._rng, rest_seconds=self._rest_seconds
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STREAM_SECONDS):
                await stream.run(_QUEUES)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STREAM_SECONDS):
                await stream.settle()

    def _workplace(self) -> Workplace:
        return Workplace(
            name_servers=self._cluster.name_servers,
            locate=self._find_leader,
            rng=random.Random(self._rng.random()),
            complain=self.ledger.violations.append,
            rest_seconds=self._kind_rest_seconds,
        )

    def _find_leader(self) -> str:
        """Return the address of the leader, or of the last one that there was."""
        leader = self._cluster.leader()
        if leader is not None:
            self._address = self._cluster.address_of(leader)
        return self._address

    # Faults.

    def _choose_fault(self) -> None:
        cluster, rng = self._cluster, self._rng
        leader = cluster.leader()
        victim = leader if leader and rng.random() < _LEADER_SHARE else rng.choice(cluster.nodes)
        faults: dict[str, Callable[[], None]] = {
            "kill": lambda: cluster.kill(victim),
            "kill all": lambda: cluster.kill(*cluster.nodes),
            "power cut": lambda: cluster.power_cut(victim),
            "power cut of all": cluster.power_cut,
            "cut off": lambda: cluster.partition(victim),
            "cut off from members": lambda: cluster.partition(victim, cluster.nodes),
            "deaf": lambda: cluster.partition(self._others(victim), [victim], one_way=True),
            "mute": lambda: cluster.partition([victim], self._others(victim), one_way=True),
            "slow disk": lambda: cluster.slow_disk(victim, rng.choice([0.05, 0.5, 3.0])),
        }
        if not any(each.needs_true_clocks for each in self.workloads):
            seconds = rng.uniform(-_JUMP_SECONDS, _JUMP_SECONDS)
            faults["clock jump"] = lambda: cluster.jump_clock(victim, seconds)
        kind = rng.choice(sorted(faults))
        self.faults[kind] += 1
        faults[kind]()

    def _others(self, name: str) -> list[str]:
        return [each for each in self._cluster.machines if each != name]

    def _repair(self) -> None:
        self._cluster.heal()
        for node in self._cluster.nodes:
            self._cluster.slow_disk(node, 0.0)
        self._cluster.start()

    # Checks.

    async def _check_plain(self) -> None:
        """Read every queue from its start to its end."""
        gaps = any("power" in kind for kind in self.faults)
        link = await BrokerLink.connect(self._find_leader())
        try:
            for topic, queue_id in _QUEUES:
                first = await link.min_offset(topic, queue_id)
                end = await link.max_offset(topic, queue_id)
                records = await link.read(topic, queue_id, first, end)
                self.ledger.check_queue(topic, queue_id, records, first=first, may_have_gaps=gaps)
        finally:
            link.close()
        self.ledger.check_lost()

    async def _check_members(self) -> None:
        """Compare all members, which soon have the same bytes, queues and tables."""
        await asyncio.sleep(_QUIET_SECONDS)
        self.ledger.violations += find_differences(self._cluster)
