"""A campaign that kills and freezes a master and its slave under load, and loses the master's disk.

All choices come from a seed. A round starts what is not running, checks the master, puts load on it
and disturbs one of the brokers or both: SIGKILL, SIGTERM, SIGSTOP for a while. Now and then the
master is killed under load and its store is deleted. Its slave is then made the master as the
guide describes it (stop, change role and id, start), the other broker becomes an empty slave, and
everything that was ever acknowledged must be there.

The promise that is checked is that of SYNC_MASTER with SYNC_FLUSH on both sides. A message that was
stored, but not acknowledged, may be gone with the master's disk, even if a consumer had read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import ClientError, Fault
from rocketpost.testing.campaign import TINY_STORE
from rocketpost.testing.ledger import Counts, Ledger
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.load import LoadQueue, Stream
from rocketpost.testing.process import PROGRAM
from rocketpost.testing.replicas.group import Replica, ReplicaGroup

QUEUES: Final = [LoadQueue(topic, queue_id) for topic in ("alpha", "beta") for queue_id in range(3)]
_QUICK: Final[Mapping[str, str]] = {
    "haSendHeartbeatInterval": "300",
    "haHousekeepingInterval": "2000",
    "slaveTimeout": "1000",
}
"""Settings with which a lost peer is noticed soon."""
_QUEUE_NUMS: Final = 3
_STREAMS: Final = 2
_REST_SECONDS: Final = 0.08
_LIFE_SECONDS_MAX: Final = 0.8
_FREEZE_SECONDS_MAX: Final = 3.0
_SYNC_SECONDS: Final = 600.0
_WAIT_SHARE: Final = 0.75
"""Share of rounds in which the load waits until the slave is in sync."""


@dataclass(slots=True)
class ReplicaReport:
    """Report of a campaign."""

    seed: int
    rounds: int = 0
    promotions: int = 0
    seconds: float = 0.0
    events: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    """Answers other than success, by code."""
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0, 0))

    def __str__(self) -> str:
        sent, acknowledged, refused, seen, _ = self.counts
        return (
            f"seed={self.seed} rounds={self.rounds} promotions={self.promotions} "
            f"events={dict(self.events)} sent={sent} acknowledged={acknowledged} "
            f"refused={refused} answers={dict(self.answers)} seen={seen} "
            f"seconds={self.seconds:.0f}"
        )


class ReplicaCampaign:
    """Disturbs a master and its slave many times. Use as a context manager.

    Args:
        directory: The directory of everything.
        seed: The seed of all choices.
        settings: More properties for both brokers.
        promote_every: The master's disk is lost in each round whose number is a multiple of this.
        program: The arguments of ``python`` that run servers.
        name_server: More properties of the name server.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        settings: Mapping[str, str] | None = None,
        promote_every: int = 10,
        program: Sequence[str] = PROGRAM,
        name_server: Mapping[str, str] | None = None,
    ) -> None:
        self._rng = random.Random(seed)
        self._promote_every = promote_every
        values = {**TINY_STORE, **_QUICK, "flushDiskType": "SYNC_FLUSH", **(settings or {})}
        self.group = ReplicaGroup(
            directory,
            settings=values,
            master={"brokerRole": "SYNC_MASTER"},
            program=lambda home: program,
            name_server=name_server,
        )
        self.ledger = Ledger()
        self.report = ReplicaReport(seed)
        self._checked: dict[LoadQueue, int] = {}
        self._stream_count = 0
        self._disturbances: list[Callable[[], Awaitable[None]]] = [
            self._kill_master,
            self._kill_slave,
            self._kill_both,
            self._freeze_master,
            self._freeze_slave,
            self._stop_master,
            self._stop_slave,
        ]

    def __enter__(self) -> ReplicaCampaign:
        self.group.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.group.__exit__()

    @property
    def _slave(self) -> Replica:
        return self.group.slaves[0]

    async def run(self, rounds: int) -> ReplicaReport:
        """Run ``rounds`` rounds, then check every promise, and that both logs are equal.

        Raises:
            PromiseBroken: A promise was broken.
            ServerFailed: A broker did not start again.
        """
        began = time.monotonic()
        try:
            for number in range(1, rounds + 1):
                await self._round(loses_disk=number % self._promote_every == 0)
                self.report.rounds += 1
                self.ledger.verify()
            await self._start()
            await self._until_in_sync()
            await self._check(whole=True)
            self.ledger.check_lost()
            await self._compare()
            self.ledger.verify()
        finally:
            self.report.seconds += time.monotonic() - began
            self.report.counts = self.ledger.counts
        return self.report

    # -- rounds

    async def _round(self, *, loses_disk: bool) -> None:
        await self._start()
        await self._check(whole=False)
        if self._rng.random() < _WAIT_SHARE:
            await self._until_in_sync()
        async with self._load():
            await asyncio.sleep(self._rng.uniform(0.1, _LIFE_SECONDS_MAX))
            if loses_disk:
                await self._kill_for_good()
            else:
                await self._rng.choice(self._disturbances)()
                await asyncio.sleep(self._rng.uniform(0.0, 0.3))
        if loses_disk:
            await self._promote()

    async def _kill_for_good(self) -> None:
        """Kill the master; in half of the cases the slave gets nothing more, and dies as well."""
        if self._rng.random() < 0.5:
            self._note("freeze slave")
            self._slave.process.pause()
            await asyncio.sleep(self._rng.uniform(0.05, 0.4))
            await self._kill_both()
        else:
            await self._kill_master()

    async def _promote(self) -> None:
        """Lose the master's disk, and make the slave the master by hand."""
        old, new = self.group.master, self._slave
        if new.process.is_running:
            await self._end(new)
        old.lose_disk()
        self.group.promote(new)
        self.ledger.forget_unacknowledged()
        self._checked.clear()
        self.report.promotions += 1
        await asyncio.to_thread(new.start)
        await self._check(whole=True)

    async def _start(self) -> None:
        """Start the brokers that do not run, in any order."""
        both = [self.group.master, self._slave]
        nodes = [node for node in both if not node.process.is_running]
        self._rng.shuffle(nodes)
        for node in nodes:
            node.launch()
        for node in nodes:
            await asyncio.to_thread(node.process.wait_ready)

    # -- disturbances

    async def _kill_master(self) -> None:
        await self._kill(self.group.master)

    async def _kill_slave(self) -> None:
        await self._kill(self._slave)

    async def _kill_both(self) -> None:
        nodes = [self.group.master, self._slave]
        self._rng.shuffle(nodes)
        for node in nodes:
            await self._kill(node)

    async def _freeze_master(self) -> None:
        await self._freeze(self.group.master)

    async def _freeze_slave(self) -> None:
        await self._freeze(self._slave)

    async def _stop_master(self) -> None:
        await self._stop(self.group.master)

    async def _stop_slave(self) -> None:
        await self._stop(self._slave)

    async def _kill(self, node: Replica) -> None:
        self._note(f"kill {self._role(node)}")
        await asyncio.to_thread(node.process.kill)

    async def _freeze(self, node: Replica) -> None:
        self._note(f"freeze {self._role(node)}")
        node.process.pause()
        await asyncio.sleep(self._rng.uniform(0.1, _FREEZE_SECONDS_MAX))
        node.process.resume()

    async def _stop(self, node: Replica) -> None:
        self._note(f"stop {self._role(node)}")
        code = await asyncio.to_thread(node.process.stop)
        tail = "\n".join(list(node.process.output)[-40:])
        if code != 0 or "Traceback" in tail:
            self.ledger.violations.append(f"a stop under load ended with code {code}:\n{tail}")

    async def _end(self, node: Replica) -> None:
        """Stop a broker, or kill it."""
        await (self._stop(node) if self._rng.random() < 0.5 else self._kill(node))

    def _role(self, node: Replica) -> str:
        return "master" if node is self.group.master else "slave"

    def _note(self, event: str) -> None:
        self.report.events[event] += 1

    # -- load

    @contextlib.asynccontextmanager
    async def _load(self) -> AsyncIterator[None]:
        """Send until the block ends, or until the master is gone."""
        links: list[BrokerLink] = []
        streams: list[Stream] = []
        senders: list[asyncio.Task[None]] = []
        try:
            for _ in range(_STREAMS):
                links.append(await BrokerLink.connect(self.group.master.address))
                streams.append(self._stream(links[-1]))
                senders.append(asyncio.create_task(streams[-1].run(QUEUES)))
            yield
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)
            for stream in streams:
                await stream.settle()
                self._count(stream)
            for link in links:
                link.close()

    def _stream(self, link: BrokerLink) -> Stream:
        self._stream_count += 1
        return Stream(
            link,
            self.ledger,
            self._stream_count,
            rng=random.Random(self._rng.random()),
            rest_seconds=_REST_SECONDS,
        )

    def _count(self, stream: Stream) -> None:
        for code, count in stream.doubts.items():
            self.report.answers[str(code)] += count
        self.report.answers += stream.refusals

    async def _until_in_sync(self) -> None:
        """Send single messages until one is acknowledged."""
        link = await BrokerLink.connect(self.group.master.address)
        stream = self._stream(link)
        try:
            async with asyncio.timeout(_SYNC_SECONDS):
                while True:
                    sent = await stream.send(self._rng.choice(QUEUES))
                    if sent is not None and (await sent).code == ResponseCode.SUCCESS:
                        return
                    await asyncio.sleep(0.05)
        finally:
            self._count(stream)
            link.close()

    # -- checks

    async def _check(self, *, whole: bool) -> None:
        link = await BrokerLink.connect(self.group.master.address)
        try:
            for topic in dict.fromkeys(queue.topic for queue in QUEUES):
                if not await link.has_topic(topic):
                    self.ledger.check_absent(topic)
                    await link.create_topic(topic, _QUEUE_NUMS)
            for queue in QUEUES:
                await self._check_queue(link, queue, whole=whole)
        except (ClientError, Fault) as error:
            self.ledger.violations.append(f"the master cannot be checked: {error}")
        finally:
            link.close()
        self.ledger.verify()

    async def _check_queue(self, link: BrokerLink, queue: LoadQueue, *, whole: bool) -> None:
        begin = 0 if whole else self._checked.get(queue, 0)
        end = await link.max_offset(*queue)
        owed = self.ledger.expected_end(*queue)
        if end < owed:
            self.ledger.violations.append(f"{queue} ends at {end}, but {owed} is owed")
        records = await link.read(*queue, begin, end)
        if len(records) != end - begin:
            self.ledger.violations.append(
                f"{queue}: {len(records)} messages can be read in [{begin}, {end})"
            )
        if whole:
            self.ledger.check_queue(*queue, records, first=0)
        else:
            for record in records:
                self.ledger.see(record)
        self._checked[queue] = end

    async def _compare(self) -> None:
        """Stop both brokers, the slave last, and compare their logs."""
        for node in (self.group.master, self._slave):
            await self._stop(node)
        ours, theirs = self.group.master.log_bytes(), self._slave.log_bytes()
        if ours != theirs:
            pairs = enumerate(zip(ours, theirs, strict=False))
            at = next(
                (at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs))
            )
            self.ledger.violations.append(f"the logs of master and slave differ from byte {at} on")
