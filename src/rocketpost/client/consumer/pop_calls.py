"""Popped messages, and the requests about them: pop, ack, change invisible time, notification.

A broker delivers a message and hides it from others until its invisible time is over; the *receipt*
identifies that delivery. A message acknowledged in time is never delivered again.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from rocketpost.client.config import StartFrom
from rocketpost.client.consumer.fetch import unwrap_batch
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.pop import (
    IN_RETRY_TOPIC,
    IN_RETRY_TOPIC_V2,
    IN_TOPIC,
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    PopMessage,
    PopResponse,
    Receipt,
    parse_order_counts,
    parse_receipt,
    parse_start_offsets,
    real_topic,
)
from rocketpost.codec.record import Record, decode_records
from rocketpost.model import properties as names
from rocketpost.model.group import Subscription
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.route import MessageQueue

COUNT_MAX: Final = 32
"""Maximum of messages per call."""
ALL_QUEUES: Final = -1
_FROM_FIRST: Final = 0
_FROM_LAST: Final = 1
_NOTHING: Final = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL})
_ANSWER_SECONDS: Final = 5.0


class PoppedMessage(ReceivedMessage):
    """A message that belongs to this consumer until its invisible time is over.

    Attributes:
        receipt: The handle of this delivery; changes with the invisible time.
    """

    __slots__ = ("_came_before", "receipt")

    def __init__(
        self, record: Record, queue: MessageQueue, receipt: Receipt, *, came_before: int = 0
    ) -> None:
        super().__init__(record, queue)
        self.receipt = receipt
        self._came_before = came_before

    @property
    def reconsume_times(self) -> int:
        """Number of earlier deliveries; for orderly pops the broker counts them separately."""
        return super().reconsume_times + self._came_before

    @property
    def visible_at_ms(self) -> int:
        """The time of its next delivery, by the broker's clock."""
        return self.receipt.pop_ms + self.receipt.invisible_ms


class PopQuery(NamedTuple):
    """The parameters of one pop."""

    subscription: Subscription
    broker_name: str
    queue_id: int = ALL_QUEUES
    count_max: int = COUNT_MAX
    invisible_seconds: float = 60.0
    hold_seconds: float = 0.0
    """Maximum wait of the broker for the first message."""
    start_from: StartFrom = StartFrom.LAST
    in_order: bool = False
    """Whether a queue delivers nothing more until its popped messages are finished."""
    attempt_id: str | None = None
    """Id of an attempt at an orderly pop: repeating it returns the same messages."""


class PopResult(NamedTuple):
    """The result of a pop; the broker may have been too busy to wait."""

    messages: list[PoppedMessage]
    was_full: bool = False


class PopCalls:
    """Sends requests about popped messages for one group. Belongs to the event loop."""

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self._group = group

    async def pop(self, wish: PopQuery) -> PopResult:
        """Pop messages; acknowledge those whose tag only shares its hash with a wanted one.

        Raises:
            Fault: The broker refuses.
            ClientError: The broker does not answer.
            RemoteProtocolError: The answer cannot be read.
        """
        hold = max(wish.hold_seconds, 0.0)
        first = wish.start_from is StartFrom.FIRST
        header = PopMessage(
            consumer_group=self._group,
            topic=wish.subscription.topic,
            queue_id=wish.queue_id,
            max_msg_nums=wish.count_max,
            invisible_time=round(wish.invisible_seconds * 1000),
            poll_time=round(hold * 1000),
            born_time=time.time_ns() // 1_000_000,
            init_mode=_FROM_FIRST if first else _FROM_LAST,
            exp_type=wish.subscription.expression_type,
            exp=wish.subscription.sub_string,
            order=wish.in_order,
            attempt_id=wish.attempt_id,
        )
        answer = await self._session.call(
            self._session.routes.master(wish.broker_name),
            RequestCode.POP_MESSAGE,
            header,
            timeout=hold + _ANSWER_SECONDS,
            accept=_NOTHING,
        )
        if answer.code != ResponseCode.SUCCESS:
            return PopResult([], was_full=answer.code == ResponseCode.POLLING_FULL)
        messages = popped_messages(
            answer, group=self._group, topic=wish.subscription.topic, broker_name=wish.broker_name
        )
        wanted = wish.subscription.tags_set
        if not wanted:
            return PopResult(messages)
        # Brokers compare hashes of tags, and two tags may share one.
        for message in messages:
            if message.tags not in wanted:
                await self.ack(message)
        return PopResult([message for message in messages if message.tags in wanted])

    async def ack(self, message: PoppedMessage) -> None:
        """Acknowledge a message; returns when the broker has stored the acknowledgement.

        Raises:
            Fault: The broker refuses.
            ClientError: The broker does not answer; acknowledging again is harmless.
        """
        receipt = message.receipt
        header = AckMessage(
            consumer_group=self._group,
            topic=real_topic(receipt.retry, self._group, message.queue.topic),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
        )
        await self._call(message.queue, RequestCode.ACK_MESSAGE, header)

    async def change(self, message: PoppedMessage, seconds: float) -> None:
        """Make a message visible again after ``seconds``; this changes its receipt.

        Raises:
            NoMessage: It was acknowledged, or its time is over and another consumer has it.
            Fault: The broker refuses.
            ClientError: The broker does not answer.
        """
        receipt = message.receipt
        header = ChangeInvisibleTime(
            consumer_group=self._group,
            topic=real_topic(receipt.retry, self._group, message.queue.topic),
            queue_id=receipt.queue_id,
            extra_info=str(receipt),
            offset=receipt.offset,
            invisible_time=round(seconds * 1000),
        )
        answer = await self._call(message.queue, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        changed = answer.read(ChangeInvisibleTimeResponse)
        message.receipt = receipt._replace(
            start_offset=receipt.offset,
            pop_ms=changed.pop_time,
            invisible_ms=changed.invisible_time,
            revive_queue=changed.revive_qid,
        )

    async def wait_notified(self, wish: PopQuery) -> bool:
        """Wait as long as the pop would; return whether the pop might find a message.

        Raises:
            Fault: The broker refuses.
            ClientError: The broker does not answer.
        """
        header = Notification(
            consumer_group=self._group,
            topic=wish.subscription.topic,
            queue_id=wish.queue_id,
            poll_time=round(wish.hold_seconds * 1000),
            born_time=time.time_ns() // 1_000_000,
            order=wish.in_order,
            attempt_id=wish.attempt_id,
        )
        answer = await self._session.call(
            self._session.routes.master(wish.broker_name),
            RequestCode.NOTIFICATION,
            header,
            timeout=wish.hold_seconds + _ANSWER_SECONDS,
            accept=_NOTHING,
        )
        return answer.read(NotificationResponse).has_msg

    async def _call(self, queue: MessageQueue, code: int, header: AckMessage) -> Command:
        return await self._session.call(
            self._session.routes.master(queue.broker_name), code, header
        )


def popped_messages(
    answer: Command, *, group: str, topic: str, broker_name: str
) -> list[PoppedMessage]:
    """Return the messages in the answer to a pop.

    Args:
        answer: The answer.
        group: The group that popped.
        topic: The topic that the pop named.
        broker_name: The broker that answered.

    Raises:
        RemoteProtocolError: The answer cannot be read.
    """
    head = answer.read(PopResponse)
    starts = parse_start_offsets(head.start_offset_info or "")
    counts = parse_order_counts(head.order_count_info or "")
    messages = []
    for stored in decode_records(answer.body):
        for record in unwrap_batch(stored, first=0):
            queue = MessageQueue(broker_name, record.queue_id, topic)
            receipt = _receipt(head, starts, record, queue, group)
            times = counts.get((receipt.retry, receipt.queue_id, receipt.offset), 0)
            messages.append(PoppedMessage(record, queue, receipt, came_before=times))
    return messages


def _receipt(
    head: PopResponse,
    starts: dict[tuple[int, int], int],
    record: Record,
    queue: MessageQueue,
    group: str,
) -> Receipt:
    text = record.properties.get(names.POP_CK)
    if text is not None:
        return parse_receipt(text)
    retry = IN_TOPIC
    if record.topic.startswith(RETRY_PREFIX) and record.topic != queue.topic:
        newer = real_topic(IN_RETRY_TOPIC_V2, group, queue.topic)
        retry = IN_RETRY_TOPIC_V2 if record.topic == newer else IN_RETRY_TOPIC
    return Receipt(
        starts.get((retry, record.queue_id), record.queue_offset),
        head.pop_time,
        head.invisible_time,
        head.revive_qid,
        retry,
        queue.broker_name,
        record.queue_id,
        record.queue_offset,
    )
