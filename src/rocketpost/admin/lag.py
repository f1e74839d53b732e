"""How many messages a group really has to handle: those behind its offset that its tags match.

Brokers tell offsets, which count what a filter will skip and what retention has deleted. Here the
entries of the queues are asked for, and each broker says which of them its filter lets through.
"""

from __future__ import annotations

from typing import Final

from rocketpost.admin.command import few_at_once
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.codec.bodies.stats import QueueEntries
from rocketpost.errors import RouteNotFound
from rocketpost.model.route import MessageQueue

ENTRIES_MAX: Final = 1_000_000
"""How far behind a queue may be to be counted."""
_CHUNK: Final = 2_000


def lag_of(progress: QueueProgress) -> int:
    """Return how far a group is behind by its offset; never negative.

    An offset beyond the end stays behind when a broker loses its tail, or the topic is made anew.
    """
    return max(0, progress.broker_offset - progress.consumer_offset)


async def matching_lags(
    admin: AdminClient, group: str, state: ConsumeState
) -> dict[MessageQueue, int | None]:
    """Return how many messages of each queue wait for the group; None if that cannot be counted."""
    queues = list(state.queues)
    addresses = await _masters(admin, {queue.topic for queue in queues})

    async def count(queue: MessageQueue) -> int | None:
        progress = state.queues[queue]
        address = addresses.get(queue.broker_name)
        if lag_of(progress) == 0:
            return 0
        if address is None or lag_of(progress) > ENTRIES_MAX:
            return None
        return await _count(admin, address, group, queue, progress)

    return dict(zip(queues, await few_at_once(queues, count), strict=True))


async def _count(
    admin: AdminClient, address: str, group: str, queue: MessageQueue, progress: QueueProgress
) -> int | None:
    offset, total = progress.consumer_offset, 0
    while offset < progress.broker_offset:
        entries = await admin.brokers.queue_entries(
            address,
            queue.topic,
            queue.queue_id,
            index=offset,
            count=min(_CHUNK, progress.broker_offset - offset),
            group=group,
        )
        found = matches(entries)
        if found is None:
            return None
        if not entries.queue_data:
            break
        total += found
        offset = max(offset, entries.min_queue_index) + len(entries.queue_data)
    return total


def matches(entries: QueueEntries) -> int | None:
    """Return how many entries the group's filter lets through; None if entries do not tell."""
    wanted = entries.subscription_data
    if wanted is None and entries.queue_data:
        return None  # nobody is online, so nothing is known of a filter
    if wanted is None:
        return 0
    if not wanted.is_tag and not entries.judged:
        return None  # Apache's brokers do not look at properties for this
    return sum(entry.eval for entry in entries.queue_data)


async def _masters(admin: AdminClient, topics: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for topic in sorted(topics):
        try:
            route = await admin.cluster.route(topic)
        except RouteNotFound:
            continue
        found |= {each.broker_name: each.master for each in route.broker_datas if each.master}
    return found
