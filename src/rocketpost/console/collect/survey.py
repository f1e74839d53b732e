"""Questions that cost a call for each group or topic: a bounded number of them in each pass.

A round asks every broker the same few questions. This module asks for the rest: members of groups,
their queues and subscriptions, new dead letters, half messages. A pass takes at most sixty calls,
however much the cluster has. Groups with a backlog come first, the others take turns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from rocketpost.client.admin import AdminClient
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.console.collect.collector import Collector
from rocketpost.console.collect.holdings import Holdings
from rocketpost.console.collect.snapshot import GroupView, Snapshot
from rocketpost.diagnosis.members import list_client_ids
from rocketpost.diagnosis.running_info import (
    RunningInfo,
    decode_running_info,
    have_same_subscriptions,
)
from rocketpost.errors import RocketpostError, RouteNotFound
from rocketpost.model.names import HALF_TOPIC, dlq_topic, is_retry_or_dlq

logger = logging.getLogger(__name__)

T = TypeVar("T")
WATCHED_SECONDS: Final = 60.0
UNWATCHED_SECONDS: Final = 300.0
CALLS_MAX: Final = 60
_DEAD_CALLS_MAX: Final = 20
_MEMBERS_MAX: Final = 10
"""Most members of a group that a pass asks for their queues."""
_LAGGING_MAX: Final = 20
_PASS_SECONDS: Final = 20.0
_HALF_SECONDS: Final = 2.0
_HALVES_MAX: Final = 1000
_HALF_AGE_MS: Final = 60_000
_DAY_MS: Final = 86_400_000
_KNOWN_MS: Final = 900_000
"""Time for which an answer of an earlier pass is used."""


class OldHalves(msgspec.Struct, kw_only=True, rename="camel"):
    """Half messages that have waited for more than a minute."""

    count: int
    oldest_ms: int
    is_cut: bool = False
    """Whether there may be more."""


class MembersAnswer(msgspec.Struct, kw_only=True, rename="camel"):
    """The members of a group as a pass found them."""

    at_ms: int
    clients: list[str]
    is_mixed: bool = False


class DeadAnswer(msgspec.Struct, kw_only=True, rename="camel"):
    """Dead letters of a group that are younger than a day."""

    at_ms: int
    count: int


class Survey:
    """Asks about groups one after the other. Belongs to the event loop.

    Args:
        admin: The client, started by the caller.
        collector: Its rounds say which groups there are.
        now_ms: Returns the time of day.
    """

    def __init__(
        self,
        admin: AdminClient,
        collector: Collector,
        *,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._admin = admin
        self._collector = collector
        self._now_ms = now_ms
        self._ended_at = float("-inf")
        self._group_turn = self._dead_turn = ""
        self._left = 0
        self.calls = 0
        """Requests in the present or last pass."""
        self.holdings = Holdings()
        self.members: dict[str, MembersAnswer] = {}
        self.dead: dict[str, DeadAnswer] = {}
        self.halves: OldHalves | None = None

    async def run(self) -> None:
        """Make a pass after a round whenever one is due, until cancelled."""
        while True:
            snapshot = await self._collector.wait_round()
            every = WATCHED_SECONDS if self._collector.is_watched else UNWATCHED_SECONDS
            if time.monotonic() - self._ended_at < every or not snapshot.brokers:
                continue
            try:
                await self.look(snapshot)
            except Exception:
                logger.exception("pass failed: unexpected")
            self._ended_at = time.monotonic()

    async def look(self, snapshot: Snapshot) -> None:
        """Make one pass."""
        self._left, self.calls = CALLS_MAX, 0
        self._forget(snapshot)
        try:
            async with asyncio.timeout(_PASS_SECONDS):
                await self._look_at_halves(snapshot)
                await self._look_at_dead(snapshot)
                await self._look_at_groups(snapshot)
        except TimeoutError:
            logger.info("pass cut: seconds=%g calls=%s", _PASS_SECONDS, self.calls)
        self.publish()

    def publish(self) -> None:
        """Let snapshots say how many members groups have, and which groups are mixed."""
        self._collector.adopt_members(
            {name: len(each.clients) for name, each in self.members.items()},
            {name for name, each in self.members.items() if each.is_mixed},
        )

    def note_reports(
        self, group: str, clients: Sequence[str], infos: Mapping[str, RunningInfo]
    ) -> None:
        """Remember the members of a group and their queues, as a page or a pass found them."""
        now_ms = self._now_ms()
        is_whole = bool(clients) and len(infos) == len(clients)
        mixed = is_whole and not have_same_subscriptions(list(infos.values()))
        before = self.members.get(group)
        if not is_whole and clients and before is not None:
            mixed = before.is_mixed  # nobody was asked about it this time
        self.members[group] = MembersAnswer(at_ms=now_ms, clients=list(clients), is_mixed=mixed)
        owners = list_owners(infos) if is_whole else ({} if not clients else None)
        self.holdings.note(group, now_ms, clients, owners)

    def _forget(self, snapshot: Snapshot) -> None:
        oldest = self._now_ms() - _KNOWN_MS
        self.members = {
            name: each
            for name, each in self.members.items()
            if name in snapshot.groups and each.at_ms >= oldest
        }
        self.dead = {name: each for name, each in self.dead.items() if name in snapshot.groups}
        self.holdings.keep(snapshot.groups)

    async def _look_at_halves(self, snapshot: Snapshot) -> None:
        if HALF_TOPIC not in snapshot.topics:
            self.halves = None
            return
        now_ms, born, is_cut = self._now_ms(), [], False
        try:
            async with asyncio.timeout(_HALF_SECONDS):
                async for half in self._admin.transactions.pending():
                    if now_ms - half.message.born_ms > _HALF_AGE_MS:
                        born.append(half.message.born_ms)
                    if len(born) >= _HALVES_MAX:
                        is_cut = True
                        break
        except TimeoutError:
            is_cut = True
        except RouteNotFound:
            logger.debug("no broker has had a transaction")
        except RocketpostError as error:
            logger.info("half messages unknown: reason=%s", error)
            self.halves = None
            return
        self._spend()
        self.halves = (
            OldHalves(count=len(born), oldest_ms=min(born), is_cut=is_cut) if born else None
        )

    async def _look_at_dead(self, snapshot: Snapshot) -> None:
        names = sorted(name for name, each in snapshot.groups.items() if each.has_dead_topic)
        floor = self._left - _DEAD_CALLS_MAX
        for name in take_turns(names, self._dead_turn):
            if self._left <= floor:
                return
            self._dead_turn = name
            count = await self._count_dead(snapshot, snapshot.groups[name])
            if count is not None:
                self.dead[name] = DeadAnswer(at_ms=self._now_ms(), count=count)

    async def _count_dead(self, snapshot: Snapshot, group: GroupView) -> int | None:
        """Return how many letters are younger than a day; None if a broker does not say."""
        topic, count, since_ms = dlq_topic(group.name), 0, self._now_ms() - _DAY_MS
        calls = OffsetCalls(self._admin.session)
        for address in group_addresses(snapshot, group).values():
            try:
                state = await self._ask(self._admin.topics.state_at(address, topic))
                for queue, each in state.queues.items():
                    if each.last_update_timestamp < since_ms:
                        continue
                    first = await self._ask(calls.search_offset(queue, since_ms))
                    count += each.max_offset - max(first, each.min_offset)
            except RocketpostError as error:
                logger.debug("dead letters unknown: group=%s reason=%s", group.name, error)
                return None
        return count

    async def _look_at_groups(self, snapshot: Snapshot) -> None:
        groups = snapshot.groups
        lagging = sorted(
            (each for each in groups.values() if each.lag), key=lambda each: -(each.lag or 0)
        )
        first = [each.name for each in lagging[:_LAGGING_MAX]]
        for name in first:
            if self._left <= 0:
                return
            await self._look_at_group(snapshot, groups[name])
        for name in take_turns(sorted(groups.keys() - set(first)), self._group_turn):
            if self._left <= 0:
                return
            self._group_turn = name
            await self._look_at_group(snapshot, groups[name])

    async def _look_at_group(self, snapshot: Snapshot, group: GroupView) -> None:
        name = group.name
        for address in group_addresses(snapshot, group).values():
            try:
                connections = await self._ask(self._admin.groups.connections(name, address))
            except ConsumerNotOnline:
                continue
            except RocketpostError as error:
                logger.debug("members unknown: group=%s reason=%s", name, error)
                self.members.pop(name, None)
                return
            clients = list_client_ids(connections)
            infos: dict[str, RunningInfo] = {}
            if connections.message_model != "BROADCASTING" and len(clients) <= _MEMBERS_MAX:
                infos = await self._read_reports(address, name, clients)
            self.note_reports(name, clients, infos)
            return
        self.note_reports(name, [], {})

    async def _read_reports(
        self, address: str, group: str, clients: Sequence[str]
    ) -> dict[str, RunningInfo]:
        infos: dict[str, RunningInfo] = {}
        for client in clients:
            try:
                body = await self._ask(
                    self._admin.groups.running_info(address, group, client, stacks=False)
                )
                infos[client] = decode_running_info(body)
            except RocketpostError as error:
                logger.debug("no report: group=%s client=%s reason=%s", group, client, error)
        return infos

    async def _ask(self, work: Awaitable[T]) -> T:
        self._spend()
        return await work

    def _spend(self) -> None:
        self.calls += 1
        self._left -= 1


def list_owners(infos: Mapping[str, RunningInfo]) -> dict[str, str]:
    """Return the owner of each queue that exactly one member holds. Pure."""
    owners: dict[str, str] = {}
    shared: set[str] = set()
    for client, info in sorted(infos.items()):
        for queue in () if info.pops else info.queues:
            if is_retry_or_dlq(queue.topic):
                continue
            name = f"{queue.topic} {queue.broker_name}/{queue.queue_id}"
            if name in owners:
                shared.add(name)
            owners[name] = client
    return {name: client for name, client in owners.items() if name not in shared}


def group_addresses(snapshot: Snapshot, group: GroupView) -> dict[str, str]:
    """Return the first server of each broker name that knows a group; all if none does."""
    found: dict[str, str] = {}
    for each in snapshot.brokers:
        if each.name in group.brokers or not group.brokers:
            found.setdefault(each.name, each.address)
    return found


def take_turns(names: Sequence[str], last: str) -> list[str]:
    """Return names in the order of their turns, given the one that was last. Pure."""
    later = [name for name in names if name > last]
    return [*later, *(name for name in names if name <= last)]
