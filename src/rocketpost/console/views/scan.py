"""Scans of topics, bounded by matches, messages, bytes and time; each states how far it read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from rocketpost.client.admin import AdminClient
from rocketpost.client.admin.messages import TOOLS_GROUP
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullStatus
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.route_cache import subscribe_queues
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError
from rocketpost.model.group import Subscription
from rocketpost.model.route import MessageQueue

MATCHES_MAX: Final = 100
TAIL_EACH: Final = 20
_PULL_SECONDS: Final = 5.0
_PULL_COUNT: Final = 32

Matches = Callable[[ReceivedMessage], bool]


class Limits(NamedTuple):
    """Bounds of a scan; the first one that is reached ends it."""

    matches: int = MATCHES_MAX
    messages: int = 20_000
    payload_bytes: int = 64 * 1024 * 1024
    seconds: float = 5.0


LIMITS: Final = Limits()
_TAIL: Final = Limits(matches=10**9)


class Scan(msgspec.Struct, kw_only=True):
    """The result of a scan."""

    messages: list[ReceivedMessage] = []
    scanned: int = 0
    total: int = 0
    """Messages between the bounds, by offsets, when the scan began."""
    queues: int = 0
    stopped: str = ""
    """The bound that ended it: matches, messages, bytes or seconds; empty if it came to the end."""
    next: str = ""
    """The offset of each queue at which the next scan begins: ``broker:queue:offset,...``."""
    problems: dict[str, str] = {}


class _Bounds(msgspec.Struct, kw_only=True):
    queue: MessageQueue
    offset: int
    end: int


async def find_queues(admin: AdminClient, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic that can be read.

    Raises:
        RouteNotFound: There is no such topic.
    """
    route = await admin.cluster.route(topic)
    return sorted(subscribe_queues(topic, route), key=lambda queue: queue.sort_key)


async def scan_topic(
    admin: AdminClient,
    topic: str,
    matches: Matches,
    *,
    begin_ms: int,
    end_ms: int,
    start: Mapping[tuple[str, int], int],
    limits: Limits = LIMITS,
) -> Scan:
    """Read the messages of a topic that were stored in a time span, oldest first in each queue.

    Raises:
        RouteNotFound: There is no such topic.
    """
    calls = OffsetCalls(admin.session, asks_slaves=True)
    scan = Scan()

    async def find(queue: MessageQueue) -> _Bounds | None:
        try:
            begin = max(await calls.min_offset(queue), await calls.search_offset(queue, begin_ms))
            end = min(await calls.max_offset(queue), await calls.search_offset(queue, end_ms + 1))
        except RocketpostError as error:
            scan.problems[f"{queue.broker_name}/{queue.queue_id}"] = str(error)
            return None
        begin = max(begin, start.get((queue.broker_name, queue.queue_id), begin))
        return _Bounds(queue=queue, offset=begin, end=max(begin, end))

    found = await map_concurrently(await find_queues(admin, topic), find)
    bounds = [each for each in found if each is not None]
    scan.queues = len(bounds)
    scan.total = sum(each.end - each.offset for each in bounds)
    await _read(admin, bounds, matches, scan, begin_ms=begin_ms, end_ms=end_ms, limits=limits)
    scan.messages.sort(key=lambda message: (message.store_ms, message.position))
    if scan.stopped:
        scan.next = ",".join(
            f"{each.queue.broker_name}:{each.queue.queue_id}:{each.offset}" for each in bounds
        )
    return scan


async def tail_topic(
    admin: AdminClient,
    topic: str,
    matches: Matches,
    *,
    each_max: int = TAIL_EACH,
    kept_max: int = MATCHES_MAX,
) -> Scan:
    """Read the newest messages of every queue of a topic, newest first.

    Raises:
        RouteNotFound: There is no such topic.
    """
    calls, scan = OffsetCalls(admin.session, asks_slaves=True), Scan()

    async def find(queue: MessageQueue) -> _Bounds | None:
        try:
            low, end = await calls.min_offset(queue), await calls.max_offset(queue)
        except RocketpostError as error:
            scan.problems[f"{queue.broker_name}/{queue.queue_id}"] = str(error)
            return None
        return _Bounds(queue=queue, offset=max(low, end - each_max), end=end)

    found = await map_concurrently(await find_queues(admin, topic), find)
    bounds = [each for each in found if each is not None]
    scan.queues = len(bounds)
    scan.total = sum(each.end - each.offset for each in bounds)
    await _read(admin, bounds, matches, scan, begin_ms=0, end_ms=2**62, limits=_TAIL)
    scan.messages.sort(key=lambda message: (-message.store_ms, -message.position))
    del scan.messages[kept_max:]
    return scan


async def _read(
    admin: AdminClient,
    bounds: list[_Bounds],
    matches: Matches,
    scan: Scan,
    *,
    begin_ms: int,
    end_ms: int,
    limits: Limits,
) -> None:
    """Pull from all queues in turn until they end or a bound is reached."""
    fetcher = Fetcher(admin.session, TOOLS_GROUP)
    loop = asyncio.get_running_loop()
    deadline, size = loop.time() + limits.seconds, 0
    open_bounds = [each for each in bounds if each.offset < each.end]
    while open_bounds:
        for each in open_bounds:
            if loop.time() > deadline:
                scan.stopped = "seconds"
            elif len(scan.messages) >= limits.matches:
                scan.stopped = "matches"
            elif scan.scanned >= limits.messages:
                scan.stopped = "messages"
            elif size >= limits.payload_bytes:
                scan.stopped = "bytes"
            if scan.stopped:
                return
            wish = PullQuery(
                each.queue,
                each.offset,
                Subscription(topic=each.queue.topic),
                count_max=min(_PULL_COUNT, each.end - each.offset),
                bytes_max=8 * 1024 * 1024,
            )
            try:
                result = await fetcher.pull(wish, timeout=_PULL_SECONDS)
            except RocketpostError as error:
                scan.problems[f"{each.queue.broker_name}/{each.queue.queue_id}"] = str(error)
                each.offset = each.end
                continue
            for message in result.messages:
                if message.queue_offset >= each.end:
                    continue
                scan.scanned += 1
                size += message.stored_bytes
                # Times in an index are coarse, so the first ones may be older.
                if begin_ms <= message.store_ms <= end_ms and matches(message):
                    scan.messages.append(message)
            ended = result.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL)
            moved = max(result.next_offset, each.offset + 1)
            each.offset = each.end if ended and not result.messages else moved
        open_bounds = [each for each in bounds if each.offset < each.end]


def parse_start(text: str) -> dict[tuple[str, int], int]:
    """Return where to continue, from :attr:`Scan.next`; parts of another form are left out."""
    found = {}
    for part in text.split(",")[:10_000]:
        broker, _, rest = part.rpartition(":")
        broker, _, queue_id = broker.rpartition(":")
        if broker and queue_id.isdecimal() and rest.isdecimal():
            found[broker, int(queue_id)] = int(rest)
    return found
