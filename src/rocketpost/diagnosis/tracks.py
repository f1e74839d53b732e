"""Message tracks: RocketMQ's word for the fate of a message in each group of its topic."""

from __future__ import annotations

import enum
from typing import NamedTuple

from rocketpost.client.admin import AdminClient
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.bodies.client import ConsumerConnections
from rocketpost.codec.bodies.offset import ConsumeState
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.diagnosis.fate import filter_accepts
from rocketpost.errors import RouteNotFound


class TrackType(enum.Enum):
    """The fate of a message, by RocketMQ's names."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


class Track(NamedTuple):
    """One group, and the fate of the message there."""

    group: str
    kind: TrackType
    reason: str | None = None


async def track_message(admin: AdminClient, message: ReceivedMessage) -> list[Track]:
    """Return the fate of a message in every group that reads its topic."""
    groups = sorted(await admin.topics.groups_of(message.record.topic))
    return [await _track_in_group(admin, message, group) for group in groups]


async def _track_in_group(admin: AdminClient, message: ReceivedMessage, group: str) -> Track:
    try:
        connections = await admin.groups.connections(group)
    except ConsumerNotOnline as error:
        return Track(group, TrackType.NOT_ONLINE, f"CODE:{int(error.code)} DESC:{error}")
    except RouteNotFound as error:
        return Track(group, TrackType.UNKNOWN, str(error))
    state = await admin.groups.progress(group, message.record.topic)
    return Track(group, judge_track(message, connections, state))


def judge_track(
    message: ReceivedMessage, connections: ConsumerConnections, state: ConsumeState
) -> TrackType:
    """Return the fate of a message in a group that is online."""
    if connections.consume_type == "CONSUME_ACTIVELY":
        return TrackType.PULL
    if connections.message_model == "BROADCASTING":
        return TrackType.CONSUME_BROADCASTING
    stored_in = message.record.topic, message.record.queue_id
    offsets = [
        at.consumer_offset
        for queue, at in state.queues.items()
        if (queue.topic, queue.queue_id) == stored_in
        and message.queue.broker_name in ("", queue.broker_name)
    ]
    if not offsets or max(offsets) <= message.queue_offset:
        return TrackType.NOT_CONSUME_YET
    wanted = connections.subscription_table.get(message.record.topic)
    if wanted is None or wanted.takes_all:
        return TrackType.CONSUMED
    if not wanted.is_tag:
        passed = filter_accepts(wanted, message.properties) is not False
        return TrackType.CONSUMED if passed else TrackType.CONSUMED_BUT_FILTERED
    if message.tags in (wanted.tags_set or ()):
        return TrackType.CONSUMED
    return TrackType.CONSUMED_BUT_FILTERED
