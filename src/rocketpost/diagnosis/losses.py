"""Messages that brokers lost to damage on their disks."""

from __future__ import annotations

from typing import NamedTuple

from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.damage import DamagedRange
from rocketpost.codec.faults import GroupNotExist, RequestCodeNotSupported
from rocketpost.diagnosis.message_facts import list_brokers
from rocketpost.model.route import BrokerData, MessageQueue


class Loss(NamedTuple):
    """A damaged range of a broker's log."""

    broker_name: str
    damage: DamagedRange

    @property
    def is_named(self) -> bool:
        """Whether it is known which message was lost."""
        return self.damage.topic is not None


async def find_losses(admin: AdminClient, topic: str) -> list[Loss]:
    """Return the losses of a topic on all its brokers, by queue and offset.

    Losses of unknown messages are included, because they may be of this topic.
    """
    found: list[Loss] = []
    for broker in await list_brokers(admin, topic):
        found += await find_losses_at(admin, broker, topic)
    return sorted(
        found,
        key=lambda loss: (
            loss.broker_name, loss.damage.queue_id, loss.damage.queue_offset, loss.damage.begin,
        ),
    )  # fmt: skip


async def find_losses_at(admin: AdminClient, broker: BrokerData, topic: str) -> list[Loss]:
    """Return the losses of a topic on one broker; a broker of Apache reports none."""
    address = broker.broker_addrs[min(broker.broker_addrs)]
    try:
        answer = await admin.brokers.damage(address, topic)
    except RequestCodeNotSupported:
        return []
    return [Loss(broker.broker_name, each) for each in answer.ranges]


async def find_lost_message(admin: AdminClient, queue: MessageQueue, offset: int) -> Loss | None:
    """Return the loss of the message at a queue offset, or None if none is known."""
    for loss in await find_losses(admin, queue.topic):
        found = (loss.broker_name, loss.damage.queue_id, loss.damage.queue_offset)
        if loss.is_named and found == (queue.broker_name, queue.queue_id, offset):
            return loss
    return None


async def list_topics_of_group(admin: AdminClient, group: str) -> list[str]:
    """Return the topics that a group reads on any broker.

    Raises:
        GroupNotExist: No broker knows the group.
    """
    brokers = (await admin.cluster.info()).broker_addr_table.values()
    readers = [broker.reader for broker in brokers if broker.reader]
    topics: set[str] = set()
    for address in readers:
        topics.update(await admin.groups.topics_of(address, group))
    if not topics and not any([await _has_group(admin, address, group) for address in readers]):
        raise GroupNotExist(f"no broker knows the group {group}")
    return sorted(topics)


async def _has_group(admin: AdminClient, address: str, group: str) -> bool:
    try:
        await admin.groups.config(address, group)
    except GroupNotExist:
        return False
    return True
