"""The rounds of a cluster: each asks every broker the same few questions, however much it has.

All browsers read the snapshot of the last round. Rounds are five seconds apart while somebody looks
at a page, and further apart if they cost much or if nobody looks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.offset import BrokerConsumeState
from rocketpost.codec.faults import RequestCodeNotSupported
from rocketpost.console.collect.figures import (
    GroupTotals,
    StillQueues,
    add_byte_rates,
    describe_broker,
    merge_topics,
)
from rocketpost.console.collect.history import History
from rocketpost.console.collect.snapshot import EMPTY, BrokerView, Snapshot
from rocketpost.errors import ConnectionLost, RocketpostError
from rocketpost.model.group import GroupConfig
from rocketpost.model.route import BrokerData
from rocketpost.model.topic import TopicConfig

logger = logging.getLogger(__name__)

WATCHED_SECONDS: Final = 5.0
UNWATCHED_SECONDS: Final = 30.0
WATCHED_SECONDS_MAX: Final = 30.0
UNWATCHED_SECONDS_MAX: Final = 300.0
"""Longest pause, even after a round that took long: perhaps the machine itself stood still."""
_WATCH_SECONDS: Final = 20.0
"""Time after the request of a page in which somebody counts as looking at it."""
_TABLE_SECONDS: Final = 15.0
"""Interval at which the tables of topics and groups are read."""
_CALL_SECONDS: Final = 4.0
_STATS_SECONDS: Final = 20.0
_REMEMBER_SECONDS: Final = 3600.0
"""Time for which a broker is still shown that no name server lists any more."""
_FRESH_SECONDS: Final = 1.5
"""Longest time that a page waits for a new round."""
_DRAWN_TOPICS_MAX: Final = 100
"""Topics whose rate is remembered, those with most traffic first."""
_SEARCH_SECONDS: Final = 5.0
"""Shortest time between two rounds that read the tables because a page misses something."""


class _Tables(msgspec.Struct, kw_only=True):
    """The tables of a broker, which change seldom."""

    at: float
    topics: dict[str, TopicConfig]
    groups: dict[str, GroupConfig]
    producers: dict[str, int] | None


class Collector:
    """Asks the servers of one cluster. Belongs to the event loop.

    Args:
        admin: The client, started by the caller.
        clock: The time in seconds, which never goes back.
    """

    def __init__(self, admin: AdminClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._clock = clock
        self._tables: dict[str, _Tables] = {}
        self._still: StillQueues = {}
        self._ends: dict[tuple[str, str], int] = {}
        self._ended_at = 0.0
        self._seen: dict[str, tuple[float, BrokerView]] = {}
        """Brokers by address, and when a name server listed them last."""
        self._members: dict[str, int] = {}
        self._mixed: frozenset[str] = frozenset()
        self._searched_at = -_SEARCH_SECONDS
        self._watched_at = 0.0
        self._watched_every = WATCHED_SECONDS
        self._wish = asyncio.Event()
        self._done = asyncio.Condition()
        self.snapshot: Snapshot = EMPTY
        self.lags = History()
        self.rates = History()
        self.topic_rates = History(_DRAWN_TOPICS_MAX)
        self.calls = 0
        """Requests in the present or last round."""

    async def run(self) -> None:
        """Collect until cancelled."""
        while True:
            began, cpu = self._clock(), time.process_time()
            try:
                await self.collect()
            except Exception:
                logger.exception("round failed: unexpected")
            took, cpu = self._clock() - began, time.process_time() - cpu
            async with self._done:
                self._done.notify_all()
            await self._pause(took, cpu)

    async def fresh_snapshot(self) -> Snapshot:
        """Return the snapshot for a page, and let the next rounds follow soon.

        Waits a moment for a new round if the last one is older than those of a page that is
        looked at.
        """
        self._watched_at = self._clock()
        age = self._clock() - self._ended_at
        if self.snapshot is EMPTY or age > self._watched_every + 1:
            self._wish.set()
            try:
                async with asyncio.timeout(_FRESH_SECONDS), self._done:
                    await self._done.wait()
            except TimeoutError:
                logger.debug("a page does not wait for the round")
        return self.snapshot

    async def search(self, has: Callable[[Snapshot], bool]) -> Snapshot:
        """Return the snapshot for a page about one thing, which may have been made just now.

        If the snapshot does not have it, the tables of brokers are read again.
        """
        snapshot = await self.fresh_snapshot()
        now = self._clock()
        if has(snapshot) or now - self._searched_at < _SEARCH_SECONDS:
            return snapshot
        self._searched_at = now
        self.forget_tables()
        try:
            async with asyncio.timeout(_FRESH_SECONDS), self._done:
                await self._done.wait_for(lambda: has(self.snapshot))
        except TimeoutError:
            logger.debug("a page does not find what it is about")
        return self.snapshot

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks at a page."""
        return self._clock() - self._watched_at < _WATCH_SECONDS

    async def wait_round(self) -> Snapshot:
        """Return the snapshot of the next round."""
        async with self._done:
            await self._done.wait()
        return self.snapshot

    def adopt_members(self, members: Mapping[str, int], mixed: Collection[str]) -> None:
        """Adopt a survey's facts about groups, for this snapshot and the next ones."""
        self._members, self._mixed = dict(members), frozenset(mixed)
        self._mark_groups(self.snapshot)

    def _mark_groups(self, snapshot: Snapshot) -> None:
        for name, group in snapshot.groups.items():
            group.members = self._members.get(name)
            group.is_mixed = name in self._mixed

    async def _pause(self, took: float, cpu: float) -> None:
        """Wait for the next round; shorter when somebody begins to look."""
        self._watched_every = min(WATCHED_SECONDS_MAX, max(WATCHED_SECONDS, 10 * cpu, 2 * took))
        every = min(UNWATCHED_SECONDS_MAX, max(UNWATCHED_SECONDS, 100 * cpu, 50 * took))
        if self.is_watched:
            every = self._watched_every
            self._wish.clear()
        self.snapshot.every_seconds = every
        try:
            async with asyncio.timeout(every):
                await self._wish.wait()
        except TimeoutError:
            pass
        self._wish.clear()

    async def collect(self) -> None:
        """Ask all servers once, and replace the snapshot."""
        began, self.calls = self._clock(), 0
        try:
            info = await self._ask(self._admin.cluster.info())
        except RocketpostError as error:
            self.snapshot = Snapshot(at_ms=_now_ms(), problem=str(error))
            self._still, self._ended_at = {}, self._clock()
            return
        brokers = [
            (data.cluster or _cluster_of(info.cluster_addr_table, name), data)
            for name, data in sorted(info.broker_addr_table.items())
        ]
        views = [view for views in await _gather(brokers, self._look_at_servers) for view in views]
        answers = await _gather([data for _, data in brokers], self._look_at_groups)
        self._adopt(info.cluster_addr_table, views, brokers, answers, took=self._clock() - began)

    async def _look_at_servers(self, item: tuple[str, BrokerData]) -> list[BrokerView]:
        cluster, data = item
        views = []
        for broker_id, address in sorted(data.broker_addrs.items()):
            view = BrokerView(
                cluster=cluster, name=data.broker_name, broker_id=broker_id, address=address
            )
            try:
                runtime = await self._ask(self._admin.brokers.runtime(address))
                views.append(describe_broker(view, runtime))
            except RocketpostError as error:
                is_reached = not isinstance(error, ConnectionLost)
                views.append(
                    msgspec.structs.replace(view, problem=_line(error), is_reached=is_reached)
                )
        return views

    async def _look_at_groups(self, data: BrokerData) -> BrokerConsumeState | str:
        """Return the progress of a broker's groups, or the reason why it is unknown."""
        address = data.reader
        if address is None:
            return "no address"
        try:
            await self._read_tables(data.broker_name, address)
            state: BrokerConsumeState = await self._ask(
                self._admin.brokers.consume_stats(address, timeout=_STATS_SECONDS), _STATS_SECONDS
            )
            return state
        except RocketpostError as error:
            return _line(error)

    async def _read_tables(self, name: str, address: str) -> None:
        known = self._tables.get(name)
        if known is not None and self._clock() - known.at < _TABLE_SECONDS:
            return
        topics = (await self._ask(self._admin.topics.table(address))).topic_config_table
        groups = (await self._ask(self._admin.groups.table(address))).subscription_group_table
        producers: dict[str, int] | None = None
        try:
            found = await self._ask(self._admin.groups.producers(address))
            producers = {group: len(each) for group, each in found.items()}
        except RequestCodeNotSupported:
            logger.debug("no list of producers: broker=%s", name)
        self._tables[name] = _Tables(
            at=self._clock(), topics=topics, groups=groups, producers=producers
        )

    def forget_tables(self) -> None:
        """Read the tables of topics and groups in the next round: something was changed."""
        for each in self._tables.values():
            each.at = -_TABLE_SECONDS
        self._wish.set()

    def _adopt(
        self,
        clusters: dict[str, list[str]],
        views: list[BrokerView],
        brokers: list[tuple[str, BrokerData]],
        answers: list[BrokerConsumeState | str],
        *,
        took: float,
    ) -> None:
        now_ms, now = _now_ms(), self._clock()
        gone = self._find_gone(views, now)
        views = sorted([*views, *gone], key=lambda each: (each.name, each.broker_id))
        names = [data.broker_name for _, data in brokers]
        lost = {each.name for each in gone} - set(names)
        names += sorted(lost)
        answers = answers + ["no name server lists it any more"] * len(lost)
        self._tables = {name: each for name, each in self._tables.items() if name in names}
        tables = ((name, each.topics) for name, each in self._tables.items())
        topics = merge_topics(tables, clusters)
        tables_of_groups = ((name, each.groups) for name, each in self._tables.items())
        totals = GroupTotals(tables_of_groups, at=now)
        for name, answer in zip(names, answers, strict=True):
            if not isinstance(answer, str):
                totals.add(name, answer, now_ms=now_ms)
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, str):
                totals.fail(name, answer)
        seconds = now - self._ended_at if self._ended_at else 0.0
        add_byte_rates(views, {each.address: each for each in self.snapshot.brokers})
        totals.compare(self.snapshot.groups, self._still, seconds)
        totals.finish(topics)
        for (topic, broker), end in totals.ends.items():
            before = self._ends.get((topic, broker))
            if before is not None and topic in topics and seconds > 0:
                rate = max(0, end - before) / seconds
                topics[topic].in_rate = (topics[topic].in_rate or 0.0) + rate
        producers: dict[str, int] = {}
        for each in self._tables.values():
            for group, count in (each.producers or {}).items():
                producers[group] = max(count, producers.get(group, 0))
        self._still, self._ends, self._ended_at = totals.still, totals.ends, now
        self.snapshot = Snapshot(
            at_ms=now_ms,
            took_ms=int(took * 1000),
            calls=self.calls,
            clusters={name: sorted(each) for name, each in sorted(clusters.items())},
            brokers=views,
            topics=topics,
            groups=totals.groups,
            producers=producers,
        )
        self._mark_groups(self.snapshot)
        self._remember(now_ms)

    def _find_gone(self, views: list[BrokerView], now: float) -> list[BrokerView]:
        """Return the brokers that name servers listed before, and not any more."""
        for view in views:
            self._seen[view.address] = (now, view)
        present = {view.address for view in views}
        self._seen = {
            address: each
            for address, each in self._seen.items()
            if now - each[0] < _REMEMBER_SECONDS
        }
        return [
            BrokerView(
                cluster=view.cluster,
                name=view.name,
                broker_id=view.broker_id,
                address=address,
                problem=f"no name server lists it any more; seen {now - at:.0f} s ago",
            )
            for address, (at, view) in self._seen.items()
            if address not in present
        ]

    def _remember(self, now_ms: int) -> None:
        groups = self.snapshot.groups
        for name, group in sorted(groups.items(), key=lambda item: -(item[1].lag or 0)):
            self.lags.add(name, now_ms, group.lag)
        self.lags.keep(set(groups))
        topics = [each for each in self.snapshot.topics.values() if each.is_of_users]
        self.topic_rates.keep({each.name for each in topics})
        for topic in sorted(topics, key=lambda each: -(each.in_rate or 0)):
            self.topic_rates.add(topic.name, now_ms, topic.in_rate)
        answered = [each for each in self.snapshot.brokers if each.is_master and not each.problem]
        for name, values in (
            ("in", [each.in_tps for each in answered]),
            ("out", [each.out_tps for each in answered]),
        ):
            known = [each for each in values if each is not None]
            # A rate of 0 is a fact worth drawing once there has been traffic.
            self.rates.add(name, now_ms, sum(known) if known else None)

    async def _ask(self, work: Awaitable[Any], seconds: float = _CALL_SECONDS) -> Any:
        self.calls += 1
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            raise RocketpostError(f"no answer within {seconds:g} s") from None


async def _gather(items: list[Any], work: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*(work(item) for item in items)))


def _cluster_of(clusters: dict[str, list[str]], broker: str) -> str:
    return next((name for name, brokers in clusters.items() if broker in brokers), "")


def _line(error: RocketpostError) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
