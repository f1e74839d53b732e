"""Lag of a group, by its offsets or by the messages that its filter accepts.

Brokers report offsets, which also count messages that a filter skips and messages that retention
has deleted. The exact count asks brokers for the queue entries, with the verdict of the group's
filter on each.
"""

from __future__ import annotations

from typing import Final

from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.codec.bodies.stats import QueueEntries
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RouteNotFound
from rocketpost.model.route import MessageQueue

ENTRIES_MAX: Final = 1_000_000
"""The largest lag of a queue that is counted exactly."""
_ENTRIES_PER_REQUEST: Final = 2_000


def queue_lag(progress: QueueProgress) -> int:
    """Return the lag of a group in a queue by its offset; never negative.

    An offset can be beyond the end if a broker lost its tail or the topic was created again.
    """
    return max(0, progress.broker_offset - progress.consumer_offset)


def total_lag(state: ConsumeState) -> int:
    """Return the lag of a group in all its queues, by its offsets."""
    return sum(map(queue_lag, state.queues.values()))


async def count_matching_lags(
    admin: AdminClient, group: str, state: ConsumeState
) -> dict[MessageQueue, int | None]:
    """Return the lag of each queue in messages that the group's filter accepts; None if unknown."""
    queues = list(state.queues)
    addresses = await _find_readers(admin, {queue.topic for queue in queues})

    async def count(queue: MessageQueue) -> int | None:
        progress = state.queues[queue]
        address = addresses.get(queue.broker_name)
        if queue_lag(progress) == 0:
            return 0
        if address is None or queue_lag(progress) > ENTRIES_MAX:
            return None
        return await _count_in_queue(admin, address, group, queue, progress)

    return dict(zip(queues, await map_concurrently(queues, count), strict=True))


async def _count_in_queue(
    admin: AdminClient, address: str, group: str, queue: MessageQueue, progress: QueueProgress
) -> int | None:
    offset, total = progress.consumer_offset, 0
    while offset < progress.broker_offset:
        entries = await admin.brokers.queue_entries(
            address,
            queue.topic,
            queue.queue_id,
            index=offset,
            count=min(_ENTRIES_PER_REQUEST, progress.broker_offset - offset),
            group=group,
        )
        found = count_accepted(entries)
        if found is None:
            return None
        if not entries.queue_data:
            break
        total += found
        offset = max(offset, entries.min_queue_index) + len(entries.queue_data)
    return total


def count_accepted(entries: QueueEntries) -> int | None:
    """Return how many entries the group's filter accepts; None if the answer does not say."""
    subscription = entries.subscription_data
    if subscription is None and entries.queue_data:
        return None  # nobody is online, so the filter is unknown
    if subscription is None:
        return 0
    if entries.judged:
        return sum(entry.eval for entry in entries.queue_data)
    if not subscription.is_tag:
        return None  # Apache's brokers do not evaluate expressions for this request
    if subscription.takes_all:
        return len(entries.queue_data)
    # Nor can their answer be trusted for tags: 5.3.3 says of every entry that it is not accepted.
    codes = subscription.code_set or ()
    return sum(entry.tags_code in codes for entry in entries.queue_data)


async def _find_readers(admin: AdminClient, topics: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for topic in sorted(topics):
        try:
            route = await admin.cluster.route(topic)
        except RouteNotFound:
            continue
        found |= {each.broker_name: each.reader for each in route.broker_datas if each.reader}
    return found
