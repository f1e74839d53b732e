"""Requests to brokers about popped messages: pop, acknowledge, change the time, give up."""

from __future__ import annotations

from typing import Final, NamedTuple

from rocketpost.client.consumer.pop_calls import PoppedMessage, popped_messages
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.headers.message import ViewMessage
from rocketpost.codec.headers.pop import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    real_topic,
)
from rocketpost.codec.headers.retry import SendBackHeader
from rocketpost.codec.record import decode_record
from rocketpost.errors import CorruptRecord, QueryNotFound, ServerError
from rocketpost.proxy.backend import Link
from rocketpost.proxy.handles import ReceiptHandle
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.wire.enums import Code

ANSWER_SECONDS: Final = 3.0
_NOTHING: Final = frozenset({int(ResponseCode.POLLING_TIMEOUT), int(ResponseCode.PULL_NOT_FOUND)})
_DEAD_LETTER: Final = -1
"""The delay level of a message that is not to be delivered again."""


class Taken(NamedTuple):
    """A message that a group has popped."""

    group: str
    topic: str
    handle: ReceiptHandle

    @property
    def stored_topic(self) -> str:
        """The topic that stores the message: its own, or a retry topic of the group."""
        return real_topic(self.handle.receipt.retry, self.group, self.topic)


async def pop(link: Link, broker: str, header: PopMessage) -> list[PoppedMessage]:
    """Pop messages; wait for them as long as the header says.

    Raises:
        Fault: The broker refuses.
        ClientError: The broker does not answer.
        RemoteProtocolError: The answer cannot be read.
    """
    answer = await link.call(
        broker,
        RequestCode.POP_MESSAGE,
        header,
        timeout=header.poll_time / 1000 + ANSWER_SECONDS,
        accept=_NOTHING,
    )
    if answer.code != ResponseCode.SUCCESS:
        return []
    return popped_messages(
        answer, group=header.consumer_group, topic=header.topic, broker_name=broker
    )


async def acknowledge(link: Link, taken: Taken) -> None:
    """Acknowledge a message; return when that is stored.

    Raises:
        Fault: The broker refuses.
        ClientError: The broker does not answer.
    """
    receipt = taken.handle.receipt
    header = AckMessage(
        consumer_group=taken.group,
        topic=taken.stored_topic,
        queue_id=receipt.queue_id,
        extra_info=str(receipt),
        offset=receipt.offset,
    )
    await link.call(receipt.broker, RequestCode.ACK_MESSAGE, header)


async def change_invisible(link: Link, taken: Taken, invisible_ms: int) -> ReceiptHandle:
    """Make a message visible again after some time; return its new handle.

    Raises:
        NoMessage: It was acknowledged, or its time is over.
        Fault: The broker refuses.
        ClientError: The broker does not answer.
    """
    receipt = taken.handle.receipt
    header = ChangeInvisibleTime(
        consumer_group=taken.group,
        topic=taken.stored_topic,
        queue_id=receipt.queue_id,
        extra_info=str(receipt),
        offset=receipt.offset,
        invisible_time=invisible_ms,
    )
    answer = await link.call(receipt.broker, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    changed = answer.read(ChangeInvisibleTimeResponse)
    return taken.handle._replace(
        receipt=receipt._replace(
            start_offset=receipt.offset,
            pop_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )
    )


async def check_position(link: Link, taken: Taken) -> None:
    """Check that a handle which a client shows names the record of its own message.

    Otherwise a client could have any message of the broker copied to its dead letters.

    Raises:
        Refusal: It names another record, or none.
        Fault: The broker refuses.
        ClientError: The broker does not answer.
    """
    handle, receipt = taken.handle, taken.handle.receipt
    if handle.position is not None:
        header = ViewMessage(offset=handle.position, topic=taken.stored_topic)
        try:
            answer = await link.call(receipt.broker, RequestCode.VIEW_MESSAGE_BY_ID, header)
            record = decode_record(answer.body)
        except (ServerError, QueryNotFound, CorruptRecord):
            record = None
        if record is not None and (record.topic, record.queue_id, record.queue_offset) == (
            taken.stored_topic,
            receipt.queue_id,
            receipt.offset,
        ):
            return
    raise Refusal(
        Code.INVALID_RECEIPT_HANDLE, "the receipt handle does not say where its message is"
    )


async def give_up(link: Link, taken: Taken, message_id: str) -> None:
    """Store a message as a dead letter of its group, then acknowledge it.

    Raises:
        Fault: The broker refuses.
        ClientError: The broker does not answer.
    """
    handle = taken.handle
    assert handle.position is not None
    header = SendBackHeader(
        offset=handle.position,
        group=taken.group,
        delay_level=_DEAD_LETTER,
        origin_msg_id=message_id,
        origin_topic=taken.stored_topic,
        max_reconsume_times=0,
    )
    await link.call(handle.receipt.broker, RequestCode.CONSUMER_SEND_MSG_BACK, header)
    await acknowledge(link, taken)
