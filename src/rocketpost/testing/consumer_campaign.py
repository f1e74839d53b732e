"""A campaign in which consumers of one group die, freeze and join under load.

All choices come from a seed. In each round three consumers share a topic while messages arrive: one
is killed (SIGKILL), another is frozen (SIGSTOP) until the broker has dropped it and others have
served its queues, then it resumes and learns what it missed; one joins; sometimes the broker is
killed and started in between. After each round every acknowledged message must have been handled;
:mod:`rocketpost.testing.handling` has the other rules.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketpost.codec.bodies.offset import decode_offset_table
from rocketpost.errors import ClientError, Fault
from rocketpost.testing import journal as words
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.consumer import READY
from rocketpost.testing.handling import HandlingCheck
from rocketpost.testing.journal import ConsumerJournal, ShareEntry
from rocketpost.testing.ledger import Ledger, PromiseBroken
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.load import LoadQueue, Stream
from rocketpost.testing.process import ServerProcess

TOPIC: Final = "orders"
GROUP: Final = "billing"
QUEUES: Final = 6
PROGRAM: Final = ("-m", "rocketpost.testing.consumer")
KEYS: Final = 20
MEMBERS: Final = 3
WAIT_SECONDS: Final = 300.0
"""Time limit for events that must happen."""

QUICK_BROKER: Final[Mapping[str, str]] = {
    "channelExpiredTimeout": "3000",
    "rocketmq.broker.rebalance.lockMaxLiveTime": "3000",
    "flushConsumerOffsetInterval": "200",
    "messageDelayLevel": "1s 1s 1s 2s 2s 2s",
}
"""Members and locks expire within seconds, so that a round takes seconds."""

REAL_BROKER: Final[Mapping[str, str]] = {"messageDelayLevel": QUICK_BROKER["messageDelayLevel"]}
"""Members expire after two minutes, locks after one, as in production."""

SMALL_WINDOW: Final[Mapping[str, float]] = {
    "pull_count_max": 16,
    "cached_count_max": 48,
    "cached_span_max": 64,
}
QUICK_CONSUMER: Final[Mapping[str, float]] = {
    **SMALL_WINDOW,
    "heartbeat_seconds": 0.5,
    "lock_renew_seconds": 0.5,
    "lock_trust_seconds": 1.5,
    "persist_seconds": 0.5,
    "hold_seconds": 5.0,
    "error_seconds": 0.2,
}
_BROKER_SHARE: Final = 0.4
_THREADS_SHARE: Final = 0.3
_STOP_SHARE: Final = 0.2
_QUIET_SHARE: Final = 0.5
_LOOK_SECONDS: Final = 0.05


@dataclass(slots=True)
class ConsumerReport:
    """Report of a campaign."""

    seed: int
    orderly: bool
    rounds: int = 0
    kills: int = 0
    stops: int = 0
    freezes: int = 0
    joins: int = 0
    broker_kills: int = 0
    takeovers_checked: int = 0
    acknowledged: int = 0
    begins: int = 0
    repeats: int = 0
    most_repeated: int = 0
    changes: int = 0
    failures: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"seed={self.seed} {'orderly' if self.orderly else 'concurrent'} "
            f"rounds={self.rounds} kills={self.kills} stops={self.stops} freezes={self.freezes} "
            f"joins={self.joins} broker_kills={self.broker_kills} "
            f"takeovers_checked={self.takeovers_checked} acknowledged={self.acknowledged} "
            f"begun={self.begins} repeated={self.repeats} (at most {self.most_repeated} at once) "
            f"changes_of_hands={self.changes} handler_failures={self.failures} "
            f"seconds={self.seconds:.0f}"
        )


class ConsumerCampaign:
    """Kills, freezes and adds consumers of one group. Use as a context manager.

    Args:
        directory: The directory for data and the journal.
        seed: The seed of all choices.
        orderly: Whether the group handles its queues in order.
        broker: Properties of the broker.
        consumer: Fields of each consumer's configuration.
        program: Arguments of Python instead of ``-m rocketpost.testing.consumer``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int,
        orderly: bool,
        broker: Mapping[str, str] = QUICK_BROKER,
        consumer: Mapping[str, float] = QUICK_CONSUMER,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._program = program
        self._rng = random.Random(seed)
        self._orderly = orderly
        self._directory = directory
        self._config = dict(consumer)
        self._cluster = Cluster(directory, settings=broker)
        self._queues = [LoadQueue(TOPIC, queue_id) for queue_id in range(QUEUES)]
        self._journal = ConsumerJournal(directory / "journal")
        in_hand = "cached_count_max" if orderly else "cached_span_max"
        window = round(consumer[in_hand] + consumer["pull_count_max"])
        self.handling = HandlingCheck(orderly=orderly, window=window)
        self.ledger = Ledger()
        self.report = ConsumerReport(seed, orderly)
        self._members: dict[str, ServerProcess] = {}
        self._frozen: set[str] = set()
        self._streams = 0
        self._over = asyncio.Event()

    def __enter__(self) -> ConsumerCampaign:
        self._cluster.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._members.values():
            process.kill()
        self._cluster.__exit__()
        self._journal.close()

    async def run(self, rounds: int) -> ConsumerReport:
        """Run ``rounds`` rounds.

        Raises:
            PromiseBroken: A message was lost, delivered too often, or out of order.
            ServerFailed: A process did not start.
        """
        began = time.monotonic()
        try:
            await self._with_link(lambda link: link.create_topic(TOPIC, QUEUES))
            await asyncio.gather(*(self._join() for _ in range(MEMBERS)))
            for _ in range(rounds):
                await self._round()
            for process in self._members.values():
                await asyncio.to_thread(process.stop)
            self._look()
            self._judge()
        finally:
            self._sum_up(time.monotonic() - began)
        return self.report

    def _sum_up(self, seconds: float) -> None:
        report, handling = self.report, self.handling
        report.seconds += seconds
        report.acknowledged = len(self.ledger.acknowledged)
        report.begins, report.failures = handling.begins, handling.failures
        report.repeats, report.most_repeated = handling.repeats, handling.most_repeated
        report.changes = handling.changes

    # One round.

    async def _round(self) -> None:
        self._over = asyncio.Event()
        load = asyncio.create_task(self._load())
        try:
            steps: list[Callable[[], Awaitable[object]]] = [self._kill, self._freeze, self._join]
            if self._rng.random() < _BROKER_SHARE:
                steps.append(self._kill_broker)
            self._rng.shuffle(steps)
            for step in steps:
                await asyncio.sleep(self._rng.uniform(0, 0.8))
                await step()
        finally:
            self._over.set()
            await load
        await self._until(self._all_handled, "all acknowledged messages are handled")
        self.report.rounds += 1
        self._judge()

    def _all_handled(self) -> bool:
        return self.handling.done.keys() >= self.ledger.acknowledged

    def _judge(self) -> None:
        self.handling.check(self.ledger.acknowledged)
        self.ledger.violations += self.handling.violations
        self.handling.violations.clear()
        self.ledger.verify()

    # Faults of consumers.

    async def _join(self) -> str:
        rng = self._rng
        self.report.joins += 1
        name = f"c{self.report.joins:03}-{rng.randrange(100)}"
        arguments = [
            *("--name", name, "--group", GROUP, "--topic", TOPIC),
            *("--journal", str(self._journal.path), "--name-servers", self._cluster.addresses),
            *("--slow", "0.004" if self._orderly else "0.02", "--fail", "0.003"),
            *("--config", json.dumps(self._config)),
        ]
        arguments += ["--orderly"] if self._orderly else []
        arguments += ["--threads"] if rng.random() < _THREADS_SHARE else []
        process = ServerProcess(arguments, ready=READY, program=self._program)
        self._members[name] = process
        process.launch()
        await asyncio.to_thread(process.wait_ready)
        return name

    async def _kill(self) -> None:
        """Kill or stop a member, and wait until its queues are served again."""
        name = self._pick()
        process = self._members.pop(name)
        start, orphans = self._mark(name)
        if self._rng.random() < _STOP_SHARE:
            self.report.stops += 1
            await asyncio.to_thread(process.stop)
        else:
            self.report.kills += 1
            await asyncio.to_thread(process.kill)
            self._journal.write(words.KILLED, name)
            if self._rng.random() < _QUIET_SHARE:
                await self._until(lambda: self._is_covered(name), f"the queues of {name} are taken")
                self._check_takeover(name, start)
                await self._until_served(orphans, name, start)

    async def _freeze(self) -> None:
        """Freeze a member until it is dropped and others serve its queues, then let it resume."""
        name = self._pick()
        self.report.freezes += 1
        start, orphans = self._mark(name)
        self._frozen.add(name)
        self._members[name].pause()
        self._journal.write(words.FROZEN, name)
        await self._until(lambda: self._is_covered(name), f"the queues of {name} are taken")
        await self._until_served(orphans, name, start)
        self._journal.write(words.THAWED, name)
        self._members[name].resume()
        self._frozen.discard(name)

    def _pick(self) -> str:
        return self._rng.choice(sorted(self._members.keys() - self._frozen))

    def _mark(self, name: str) -> tuple[int, frozenset[str]]:
        self._look()
        share = self.handling.last_share(name, TOPIC)
        return len(self.handling.entries), share.queues if share is not None else frozenset()

    def _is_covered(self, without: str) -> bool:
        """Tell whether the other members have shared all queues among themselves."""
        left = self._members.keys() - self._frozen - {without}
        shares = [self.handling.last_share(name, TOPIC) for name in left]
        seen = [share for share in shares if share is not None and without not in share.members]
        queues = [queue for share in seen for queue in share.queues]
        return len(seen) == len(left) and len(set(queues)) == QUEUES

    async def _until_served(self, queues: frozenset[str], name: str, start: int) -> None:
        await self._until(
            lambda: queues <= self.handling.find_begun(start, but=name),
            f"somebody serves {sorted(queues)} of {name}",
        )

    def _check_takeover(self, name: str, start: int) -> None:
        """Check that one round of rebalance was enough; only one under way may name the dead."""
        self.report.takeovers_checked += 1
        stale = [
            entry.who
            for entry in self.handling.entries[start:]
            if entry.what == words.SHARE
            and entry.words[0] == TOPIC
            and name in ShareEntry.of(entry).members
        ]
        for who in sorted({who for who in stale if stale.count(who) > 1}):
            self.ledger.violations.append(
                f"{who} shared queues with {name} {stale.count(who)} times after its death"
            )

    # Faults of the broker.

    async def _kill_broker(self) -> None:
        self.report.broker_kills += 1
        broker = self._cluster.brokers[0]
        await asyncio.to_thread(broker.kill)
        self._journal.write(words.BROKER_DOWN, "broker-0")
        self._look()
        self.handling.note_broker_death(self._read_saved_offsets())
        await asyncio.sleep(self._rng.choice((0.0, self._rng.uniform(0.0, 2.0))))
        await asyncio.to_thread(broker.start)
        self._journal.write(words.BROKER_UP, "broker-0")

    def _read_saved_offsets(self) -> dict[str, int]:
        """Read the group's offsets from the disk of a dead broker."""
        path = self._cluster.broker_directory() / "store" / "config" / "consumerOffset.json"
        if not path.exists():
            return {}
        saved: dict[str, int] = {}
        for row, offsets in decode_offset_table(path.read_bytes()).offset_table.items():
            topic, _, group = row.partition("@")
            if group == GROUP:
                for queue_id, offset in offsets.items():
                    saved[f"{topic}/broker-0/{queue_id}"] = offset
        return saved

    # Load and observation.

    async def _load(self) -> None:
        """Send while the round lasts; reconnect when the connection breaks."""
        while not self._over.is_set():
            try:
                await self._with_link(self._send)
            except (ClientError, Fault):
                await asyncio.sleep(_LOOK_SECONDS)

    async def _send(self, link: BrokerLink) -> None:
        self._streams += 1
        stream = Stream(
            link,
            self.ledger,
            self._streams,
            rng=random.Random(self._rng.random()),
            large_share=0.0,
            rest_seconds=0.12,
            keys=KEYS,
        )
        sending = asyncio.create_task(stream.run(self._queues))
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait([sending, over], return_when=asyncio.FIRST_COMPLETED)
        sending.cancel()
        over.cancel()
        await asyncio.wait([sending, over])
        await stream.settle()

    async def _with_link(self, use: Callable[[BrokerLink], Awaitable[None]]) -> None:
        link = await BrokerLink.connect(self._cluster.broker_addresses[0])
        try:
            await use(link)
        finally:
            link.close()

    def _look(self) -> None:
        self.handling.take(self._journal.read())

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds.

        Raises:
            PromiseBroken: It does not hold in time.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    self._look()
                    if condition():
                        return
                    self._check_alive()
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            self._judge_what_there_is(what)
            raise PromiseBroken(f"waited {WAIT_SECONDS:g} s in vain: {what}") from None

    def _check_alive(self) -> None:
        for name, process in self._members.items():
            if not process.is_running:
                tail = "\n".join(list(process.output)[-20:])
                raise PromiseBroken(f"the consumer {name} ended by itself:\n{tail}")

    def _judge_what_there_is(self, what: str) -> None:
        missing = sorted(self.ledger.acknowledged - self.handling.done.keys())
        self.ledger.violations.append(
            f"waited {WAIT_SECONDS:g} s in vain: {what}; not handled yet: "
            f"{len(missing)} {missing[:10]}; shares: {self.handling.current_shares(TOPIC)}"
        )
        self._judge()
