"""Samples of groups for one round of monitoring, asked from brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.offset import ConsumeState
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.diagnosis.group_alarms import Sample
from rocketpost.errors import ClientError, Fault, RouteNotFound
from rocketpost.model.names import RETRY_PREFIX

_NO_QUEUES: Final = ConsumeState(queues={})


async def sample_groups(
    admin: AdminClient, groups: Sequence[str], topic: str | None, *, with_delay: bool
) -> list[Sample]:
    """Return a sample of each group, or of all groups of the cluster if ``groups`` is empty.

    Args:
        admin: The client to ask with.
        groups: Names of groups.
        topic: The only topic to look at, if given.
        with_delay: Also ask how long the oldest message has waited.
    """
    names = groups or [
        name.removeprefix(RETRY_PREFIX)
        for name in sorted(await admin.cluster.topics())
        if name.startswith(RETRY_PREFIX)
    ]
    return await map_concurrently(
        names, lambda group: _sample_group(admin, group, topic, with_delay=with_delay)
    )


async def _sample_group(
    admin: AdminClient, group: str, topic: str | None, *, with_delay: bool
) -> Sample:
    try:
        state = await admin.groups.progress(group, topic)
        members = await _count_members(admin, group)
        delay_ms = await _find_longest_delay_ms(admin, group, state) if with_delay else None
    except (ClientError, Fault) as error:
        return sample_of_silence(group, str(error))
    return Sample(group, members, state, delay_ms)


def sample_of_silence(group: str, reason: str) -> Sample:
    """Return the sample of a group about which no broker could be asked."""
    return Sample(group, 0, _NO_QUEUES, problem=reason)


async def _count_members(admin: AdminClient, group: str) -> int:
    try:
        connected = await admin.groups.connections(group)
    except (ConsumerNotOnline, RouteNotFound):
        return 0
    return len({each.client_id for each in connected.connection_set})


async def _find_longest_delay_ms(admin: AdminClient, group: str, state: ConsumeState) -> int:
    longest = 0
    for topic in sorted({queue.topic for queue in state.queues}):
        route = await admin.cluster.route(topic)
        for address in [each.reader for each in route.broker_datas if each.reader]:
            spans = await admin.groups.time_spans(address, group, topic)
            longest = max([longest, *(span.delay_time for span in spans)])
    return longest
