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
