"""Explanation of a message: where it is stored, and its fate in every group of its topic."""

from __future__ import annotations

import time

import msgspec

from rocketpost.client.admin import AdminClient
from rocketpost.client.message import ReceivedMessage
from rocketpost.diagnosis.fate import Fate, judge_fate
from rocketpost.diagnosis.message_facts import (
    FactCollector,
    StoredAt,
    destination_topic,
    find_broker,
    list_brokers,
)
from rocketpost.diagnosis.replicas import (
    GroupCopies,
    ReplicaCopy,
    find_copies,
    find_group_copies,
)
from rocketpost.model import properties as names
from rocketpost.model.names import SCHEDULE_TOPIC, TIMER_TOPIC


class Explanation(msgspec.Struct, kw_only=True):
    """A message, where it is stored, and its fate in each group."""

    message: ReceivedMessage
    stored_at: StoredAt
    replicas: list[ReplicaCopy]
    """Master and slaves of its broker, by their ids."""
    group: GroupCopies | None = None
    """Members of the broker's group that have it; None if the broker is in no group."""
    delayed_until_ms: int | None
    fates: list[Fate]


async def explain_message(admin: AdminClient, message: ReceivedMessage) -> Explanation:
    """Ask every broker and consumer that knows something about a message."""
    home = await find_broker(admin, message)
    others = await list_brokers(admin, destination_topic(message))
    brokers = [home, *(each for each in others if each.broker_name != home.broker_name)]
    collector = FactCollector(admin, message, home, brokers)
    delayed_until_ms = await collector.find_due_ms()
    now_ms = time.time_ns() // 1_000_000
    fates = [
        judge_fate(await collector.collect(group, delayed_until_ms=delayed_until_ms), now_ms=now_ms)
        for group in await collector.list_groups()
    ]
    return Explanation(
        message=message,
        stored_at=await collector.locate(),
        replicas=await find_copies(admin, home, message),
        group=await find_group_copies(admin, home, message),
        delayed_until_ms=delayed_until_ms,
        fates=fates,
    )


async def find_indexed(admin: AdminClient, topic: str, name: str) -> list[ReceivedMessage]:
    """Return the messages of a topic with an id or else a key, delayed and timed ones included.

    Raises:
        RouteNotFound: There is no such topic.
    """
    brokers = await list_brokers(admin, topic)
    if not brokers:
        await admin.cluster.route(topic)  # raises: there is no such topic
    for unique in (True, False):
        found = [
            each
            for broker in brokers
            for each in await admin.messages.indexed_at(broker, topic, name, unique=unique)
        ]
        found += [
            each
            for broker in brokers
            for each in await admin.messages.indexed_at(broker, SCHEDULE_TOPIC, name, unique=unique)
            if each.properties.get(names.REAL_TOPIC) == topic and not _is_among(each, found)
        ]
        for broker in brokers:
            timed = await admin.messages.indexed_at(broker, TIMER_TOPIC, name, unique=unique)
            # Newest first: a message that waits long is stored again from time to time.
            for each in sorted(timed, key=lambda message: -message.position):
                is_recall = names.TIMER_RECALLS in each.properties
                if each.properties.get(names.REAL_TOPIC) == topic and not is_recall:
                    found += [] if _is_among(each, found) else [each]
        if found:
            return found
    return []


def _is_among(message: ReceivedMessage, found: list[ReceivedMessage]) -> bool:
    ids = {each.message_id for each in found}
    return message.message_id in ids
