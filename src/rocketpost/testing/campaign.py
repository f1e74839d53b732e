"""A campaign that kills a broker under load and checks its promises after each restart.

All choices come from a seed. A round starts the broker on the store of the last round, checks it,
puts load on it and ends it: mostly by SIGKILL, sometimes by SIGTERM, by SIGKILL while it stops, or
by SIGKILL while it starts. Workloads of other message kinds (:mod:`rocketpost.testing.workloads`)
may run beside the campaign's own plain sends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocketpost.errors import ClientError, Fault
from rocketpost.settings import format_properties
from rocketpost.testing.cluster import BROKER_READY, SMALL_STORE
from rocketpost.testing.ledger import Counts, Ledger
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.load import (
    LARGE_SHARE,
    Churn,
    Commits,
    LoadQueue,
    Reader,
    Stream,
    unique_key,
)
from rocketpost.testing.process import ServerProcess, free_port
from rocketpost.testing.workloads import Workload, Workplace

STABLE: Final = [LoadQueue(topic, queue_id) for topic in ("alpha", "beta") for queue_id in range(3)]
"""The queues that always exist."""

TINY_STORE: Final[Mapping[str, str]] = {
    **SMALL_STORE,
    "mappedFileSizeCommitLog": str(1024 * 1024),
    "maxMessageSize": str(512 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
}
"""Files so small that a store rolls over many of them in a minute."""

OFFSETS_MS: Final = 200
_GRACE_SECONDS: Final = 3.0
_STREAMS: Final = 2
_WHOLE_CHECK_EVERY: Final = 40
_START_KILL_SHARE: Final = 0.12
STOP_SHARE: Final = 0.08
"""Share of rounds that end by SIGTERM; in half of them SIGKILL follows."""
_LONG_SHARE: Final = 0.05
_LIFE_SECONDS_MAX: Final = 0.7
_NEW_TOPIC_SHARE: Final = 0.3
_LOOKUPS: Final = 3


@dataclass(slots=True)
class CampaignReport:
    """Report of a campaign."""

    seed: int
    rounds: int = 0
    kills: int = 0
    kills_while_starting: int = 0
    kills_while_stopping: int = 0
    stops: int = 0
    commits_checked: int = 0
    seconds: float = 0.0
    counts: Counts = field(default_factory=lambda: Counts(0, 0, 0, 0, 0))
    refusals: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        sent, acknowledged, refused, seen, deleted = self.counts
        return (
            f"seed={self.seed} rounds={self.rounds} kills={self.kills} "
            f"(starting {self.kills_while_starting}, stopping {self.kills_while_stopping}) "
            f"stops={self.stops} sent={sent} acknowledged={acknowledged} refused={refused} "
            f"seen={seen} deleted={deleted} commits={self.commits_checked} "
            f"seconds={self.seconds:.0f}"
        )


class Campaign:
    """Kills one broker many times on one store. Use as a context manager.

    Args:
        directory: The directory of the store.
        seed: The seed of all choices.
        settings: More properties for the broker.
        program: Arguments of Python instead of ``-m rocketpost.server``.
        on_killed: Called after each SIGKILL, before the next start; for example to remove bytes
            that were never synced.
        large_share: Share of messages that take many pages.
        stop_share: Share of rounds that end by SIGTERM.
        life_seconds_max: Maximum life of the broker in an ordinary round.
        workloads: Additional kinds of load through all rounds; they need a name server, whose
            address ``settings`` must have as ``namesrvAddr``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        settings: Mapping[str, str] | None = None,
        program: Sequence[str] | None = None,
        on_killed: Callable[[random.Random], None] | None = None,
        large_share: float = LARGE_SHARE,
        stop_share: float = STOP_SHARE,
        life_seconds_max: float = _LIFE_SECONDS_MAX,
        workloads: Sequence[type[Workload]] = (),
    ) -> None:
        self._stop_share = stop_share
        self._life_seconds_max = life_seconds_max
        self._large_share = large_share
        self._rng = random.Random(seed)
        self._on_killed = on_killed
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        self.ledger = Ledger()
        self.report = CampaignReport(seed)
        self._reader = Reader(self.ledger)
        self._commits = Commits(self.ledger, grace=_GRACE_SECONDS)
        self._churn = Churn(self.ledger, "churn", queue_nums=2)
        self._new_topics: list[LoadQueue] = []
        self._checked: dict[LoadQueue, int] = {}
        self._stream_count = 0
        values = {
            "listenPort": str(port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerName": "campaign",
            "storePathRootDir": str(directory / "store"),
            "flushConsumerOffsetInterval": str(OFFSETS_MS),
            **TINY_STORE,
            **(settings or {}),
        }
        self.workloads = [kind(self._workplace(values)) for kind in workloads]
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "broker.conf"
        path.write_text(format_properties(values))
        arguments = ["mqbroker", "-c", str(path)]
        if program is None:
            self.broker = ServerProcess(arguments, ready=BROKER_READY)
        else:
            self.broker = ServerProcess(arguments, ready=BROKER_READY, program=program)

    def __enter__(self) -> Campaign:
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.kill()

    async def run(self, rounds: int) -> CampaignReport:
        """Run ``rounds`` rounds, then check every promise ever made.

        Raises:
            PromiseBroken: The broker broke a promise.
            ServerFailed: The broker did not start again.
        """
        began = time.monotonic()
        try:
            async with self._working():
                for number in range(rounds):
                    await self._round(whole=number % _WHOLE_CHECK_EVERY == _WHOLE_CHECK_EVERY - 1)
                await self._start()
            await asyncio.gather(*(workload.settle() for workload in self.workloads))
            await self._check(whole=True)
            self.ledger.check_lost()
            self.ledger.verify()
            await asyncio.to_thread(self.broker.stop)
        finally:
            self.report.seconds += time.monotonic() - began
            self.report.counts = self.ledger.counts
        return self.report

    # -- additional workloads

    def _workplace(self, settings: Mapping[str, str]) -> Workplace:
        return Workplace(
            name_servers=settings["namesrvAddr"],
            locate=lambda: self.address,
            rng=random.Random(self._rng.random()),
            complain=self.ledger.violations.append,
        )

    @contextlib.asynccontextmanager
    async def _working(self) -> AsyncIterator[None]:
        """Run the workloads until the block ends; a bug in one ends the campaign."""
        if self.workloads:
            await self._start()
            for workload in self.workloads:
                await workload.prepare()
            await asyncio.to_thread(self.broker.stop)
        tasks = [asyncio.create_task(workload.run()) for workload in self.workloads]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()  # it ended by itself, so by a bug

    # -- one round

    async def _round(self, *, whole: bool) -> None:
        if self._rng.random() < _START_KILL_SHARE:
            await self._die_while_starting()
        await self._start()
        await self._check(whole=whole)
        load = asyncio.create_task(self._load())
        await asyncio.sleep(self._life())
        await self._end()
        await load
        self.report.rounds += 1
        self.ledger.verify()

    def _life(self) -> float:
        rng = self._rng
        if rng.random() < _LONG_SHARE:
            return rng.uniform(_GRACE_SECONDS + 0.2, _GRACE_SECONDS + 1.0)
        return rng.choice((rng.uniform(0.0, 0.1), rng.uniform(0.1, self._life_seconds_max)))

    async def _start(self) -> None:
        self.broker.launch()
        await asyncio.to_thread(self.broker.wait_ready)

    async def _die_while_starting(self) -> None:
        self.broker.launch()
        await asyncio.sleep(self._rng.uniform(0.0, 1.5))
        self.report.kills_while_starting += 1
        await self._kill()

    async def _end(self) -> None:
        if self._rng.random() >= self._stop_share:
            await self._kill()
            self._commits.note_end(clean=False)
        elif self._rng.random() < 0.5:
            code = await asyncio.to_thread(self.broker.stop)
            self.report.stops += 1
            tail = "\n".join(list(self.broker.output)[-40:])
            if code != 0 or "Traceback" in tail:
                self.ledger.violations.append(f"a stop under load ended with code {code}:\n{tail}")
            self._commits.note_end(clean=True)
        else:
            self.broker.terminate()
            await asyncio.sleep(self._rng.uniform(0.0, 0.1))
            self.report.kills_while_stopping += 1
            await self._kill()
            self._commits.note_end(clean=False)

    async def _kill(self) -> None:
        self.report.kills += 1
        await asyncio.to_thread(self.broker.kill)
        if self._on_killed is not None:
            self._on_killed(self._rng)

    # -- load

    async def _load(self) -> None:
        try:
            async with contextlib.AsyncExitStack() as stack:
                links = []
                for _ in range(_STREAMS + 2):
                    link = await BrokerLink.connect(self.address)
                    stack.callback(link.close)
                    links.append(link)
                await self._put_load(links)
        except (ClientError, Fault):
            return  # the broker died before the load began

    async def _put_load(self, links: list[BrokerLink]) -> None:
        reading, changing, *sending = links
        rng = random.Random(self._rng.random())
        for topic in dict.fromkeys(queue.topic for queue in STABLE):
            await changing.create_topic(topic, sum(queue.topic == topic for queue in STABLE))
        streams = [self._stream(link, rng) for link in sending]
        churning = self._stream(changing, rng)
        await asyncio.gather(
            *(stream.run(STABLE) for stream in streams),
            self._reader.run(reading, STABLE),
            self._commits.run(reading, self._reader),
            self._churn.run(changing, churning, rng),
            self._make_topic(sending[0], rng),
        )
        for stream in (*streams, churning):
            await stream.settle()
            self.report.refusals += stream.refusals

    def _stream(self, link: BrokerLink, rng: random.Random) -> Stream:
        self._stream_count += 1
        return Stream(
            link,
            self.ledger,
            self._stream_count,
            rng=random.Random(rng.random()),
            large_share=self._large_share,
        )

    async def _make_topic(self, link: BrokerLink, rng: random.Random) -> None:
        """Create a topic by sending to it; it must exist if the message was acknowledged."""
        if rng.random() >= _NEW_TOPIC_SHARE:
            return
        await asyncio.sleep(rng.uniform(0, 0.3))
        queue = LoadQueue(f"new-{len(self._new_topics)}", 0)
        self._new_topics.append(queue)
        stream = self._stream(link, rng)
        await stream.send(queue)
        await stream.settle()

    # -- checks

    async def _check(self, *, whole: bool) -> None:
        link = await BrokerLink.connect(self.address)
        try:
            for queue in (*STABLE, *self._new_topics):
                if await link.has_topic(queue.topic):
                    await self._check_queue(link, queue, whole=whole)
                else:
                    self.ledger.check_absent(queue.topic)
            await self._churn.check(link)
            self.report.commits_checked += await self._commits.check(link)
            await self._check_index(link)
        finally:
            link.close()
        self.ledger.verify()

    async def _check_queue(self, link: BrokerLink, queue: LoadQueue, *, whole: bool) -> None:
        first = await link.min_offset(*queue)
        end = await link.max_offset(*queue)
        if first != 0 and end:
            self.ledger.violations.append(f"{queue} begins at {first}")
        owed = self.ledger.expected_end(*queue)
        if end < owed:
            self.ledger.violations.append(f"{queue} ends at {end}, but {owed} is owed")
        begin = 0 if whole else self._checked.get(queue, 0)
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

    async def _check_index(self, link: BrokerLink) -> None:
        for number in self.ledger.sample(self._rng, _LOOKUPS):
            topic = self.ledger.topic_of(number)
            found = await link.find(topic, unique_key(number))
            if len(found) != 1:
                self.ledger.violations.append(
                    f"the key of message {number} of {topic} finds {len(found)} messages"
                )
            for record in found:
                self.ledger.see(record)
