"""Messages that brokers lost to damage on their disks, as ``explain`` tells them."""

from __future__ import annotations

from typing import NamedTuple

from rocketpost.admin.evidence import brokers_of
from rocketpost.admin.render import time_text_ms
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.damage import DamagedRange
from rocketpost.codec.faults import RequestCodeNotSupported
from rocketpost.model.route import BrokerData, MessageQueue


class Lost(NamedTuple):
    """A damaged range of a broker's log."""

    broker_name: str
    damage: DamagedRange

    @property
    def is_named(self) -> bool:
        """Whether it is known which message it held."""
        return self.damage.topic is not None


async def lost_of(admin: AdminClient, topic: str) -> list[Lost]:
    """Return what the brokers of a topic lost of it, and what may be of it, by queue and offset."""
    found: list[Lost] = []
    for broker in await brokers_of(admin, topic):
        found += await lost_at(admin, broker, topic)
    return sorted(
        found,
        key=lambda lost: (
            lost.broker_name, lost.damage.queue_id, lost.damage.queue_offset, lost.damage.begin,
        ),
    )  # fmt: skip


async def lost_at(admin: AdminClient, broker: BrokerData, topic: str) -> list[Lost]:
    """Return what one broker lost of a topic; brokers of Apache keep no list."""
    address = broker.broker_addrs[min(broker.broker_addrs)]
    try:
        answer = await admin.brokers.damage(address, topic)
    except RequestCodeNotSupported:
        return []
    return [Lost(broker.broker_name, each) for each in answer.ranges]


async def lost_message(admin: AdminClient, queue: MessageQueue, offset: int) -> Lost | None:
    """Return the loss of the message at a place in a queue, None if none is known."""
    for lost in await lost_of(admin, queue.topic):
        found = (lost.broker_name, lost.damage.queue_id, lost.damage.queue_offset)
        if lost.is_named and found == (queue.broker_name, queue.queue_id, offset):
            return lost
    return None


def lost_text(lost: Lost) -> str:
    """Describe a loss as text for people."""
    damage = lost.damage
    what = "unknown messages"
    if lost.is_named:
        what = f"{damage.topic}, queue {damage.queue_id}, offset {damage.queue_offset}"
    return (
        f"LOST TO DAMAGE  {lost.broker_name}, {what}: {damage.reason}; found by {damage.found_by} "
        f"{time_text_ms(damage.found_timestamp)}, commit log position {damage.begin}, "
        f"{damage.end - damage.begin} bytes"
    )


def lost_members(lost: Lost) -> dict[str, object]:
    """Describe a loss as values for programs."""
    damage = lost.damage
    return {
        "state": "LOST_TO_DAMAGE",
        "brokerName": lost.broker_name,
        "topic": damage.topic,
        "queueId": damage.queue_id,
        "queueOffset": damage.queue_offset,
        "position": damage.begin,
        "bytes": damage.end - damage.begin,
        "reason": damage.reason,
        "foundTimestamp": damage.found_timestamp,
        "foundBy": damage.found_by,
    }
