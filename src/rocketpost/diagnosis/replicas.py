"""The replicas of a broker that have a message: its master and its slaves are asked one by one."""

from __future__ import annotations

import msgspec

from rocketpost.client.admin import AdminClient
from rocketpost.client.message import ReceivedMessage
from rocketpost.codec.record import Record
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import Fault, RocketpostError
from rocketpost.model.route import BrokerData


class ReplicaCopy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A replica, and whether it has the message."""

    broker_id: int
    """Its id; 0 is the master."""
    address: str
    present: bool | None
    """Whether it has the message; None if it does not answer."""
    reason: str | None = None
    """Reason why it does not have the message, or why that is unknown."""


class GroupCopies(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group of brokers that elects its leader, and the members that have a message."""

    group: str
    term: int
    leader: str
    committed: bool
    """Whether the group has agreed on the message: then no failure of a minority loses it."""
    members: list[str]
    """Members that have it safely, as far as the one that was asked knows."""
    others: list[str]
    """Members that do not have it yet, or of which that is not known."""


async def find_group_copies(
    admin: AdminClient, broker: BrokerData, message: ReceivedMessage
) -> GroupCopies | None:
    """Ask the leader of a group which members have a message; None if the broker is in no group."""
    address = broker.master or next(iter(broker.broker_addrs.values()), None)
    if address is None:
        return None
    try:
        status = await admin.brokers.group_status(address)
    except RocketpostError:
        return None  # the replicas themselves are listed anyway
    end = message.position + message.record.size
    has = [each.name for each in status.members if each.is_known and each.has >= end]
    return GroupCopies(
        group=status.group,
        term=status.term,
        leader=status.leader,
        committed=status.committed >= end,
        members=has,
        others=[each.name for each in status.members if each.name not in has],
    )


async def find_copies(
    admin: AdminClient, broker: BrokerData, message: ReceivedMessage
) -> list[ReplicaCopy]:
    """Ask every replica of a broker for the record of a message, which is at one position in all.

    Returns:
        The replicas by their ids.
    """

    async def ask(broker_id: int) -> ReplicaCopy:
        address = broker.broker_addrs[broker_id]
        present: bool | None = True
        reason: str | None = None
        try:
            record = await admin.messages.at_position(address, message.position)
        except Fault as error:
            present, reason = False, error.remark or str(error)
        except RocketpostError as error:
            present, reason = None, str(error)
        else:
            if not _is_same(record, message.record):
                present, reason = False, "it has another message at that position"
        return ReplicaCopy(broker_id=broker_id, address=address, present=present, reason=reason)

    return await map_concurrently(sorted(broker.broker_addrs), ask)


def _is_same(one: Record, other: Record) -> bool:
    return _key(one) == _key(other)


def _key(record: Record) -> tuple[object, ...]:
    return (
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.store_ms,
        record.body_crc,
        record.size,
    )
