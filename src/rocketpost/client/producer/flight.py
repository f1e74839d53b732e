"""A send in flight: its request, its queue and its attempts."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

import msgspec

from rocketpost.client.message import SendResult, SendStatus
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.message import SendResponse
from rocketpost.codec.send_heads import SendHeads
from rocketpost.errors import RocketpostError
from rocketpost.model.route import MessageQueue
from rocketpost.transport.connection import Connection
from rocketpost.transport.requesting import PlainAnswer

NOT_STORED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.SEQUENCE_OUT_OF_ORDER,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals after which the message is certainly not stored; after others it may be."""
HEALING_CODES: Final = frozenset(
    {
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SEQUENCE_OUT_OF_ORDER,
        ResponseCode.GO_AWAY,
    }
)
"""Refusals after which an idempotent send is repeated, regardless of the settings."""
_new = tuple.__new__  # half the cost of a NamedTuple's own constructor


class Watcher(Protocol):
    """Follows a sticky send: one that is repeated at the same queue until its time is over."""

    def move(self, queue: MessageQueue) -> None:
        """Note the queue of the next attempt; no earlier attempt was stored."""
        ...

    def end(self, queue: MessageQueue, *, is_stored: bool, is_known: bool) -> None:
        """Note the outcome: whether the message is stored in a queue, and whether that is known."""
        ...


class OutgoingSend(msgspec.Struct, eq=False, gc=False):
    """The request of a message or a batch, without its queue.

    Attributes:
        heads: Encodes the heads of its frames.
        message_id: The unique id, or those of a batch with commas.
        properties: The property string.
        body: The body of the request.
        born_ms: Time of the send.
        flag: The sender's number.
        count: Number of messages.
        sequence: The stamp of an idempotent producer.
        duplicates: The broker's statement of the messages that it had already, if it sent one.
        queue_offsets: The broker's offsets of each message, if it sent them.
    """

    heads: SendHeads
    message_id: str
    properties: str
    body: bytes
    born_ms: int
    flag: int = 0
    count: int = 1
    sequence: str | None = None
    duplicates: str | None = None
    queue_offsets: str | None = None

    @property
    def topic(self) -> str:
        """The topic."""
        return self.heads.topic

    @property
    def code(self) -> int:
        """The request code."""
        return self.heads.code

    def fields_for(self, queue: MessageQueue) -> dict[str, str]:
        """Return the header fields of a send to ``queue``."""
        fields = self.heads.fields(self.born_ms, self.flag, self.properties, self.sequence)
        return fields | {"e": str(queue.queue_id), "n": queue.broker_name}


class InFlightSend(msgspec.Struct, eq=False):
    """One send in flight.

    Attributes:
        out: The request.
        queue: The queue of the current attempt.
        future: Gets the result.
        attempts_left: Number of attempts that may still be made.
        deadline: Time at which the send is given up.
        fixed: Whether the queue is the user's choice.
        brokers: The brokers of the attempts so far.
        outcome: The result of an attempt that was not good enough.
        address: The broker of the current attempt.
        sent_at: Time of the current attempt.
        due: Time at which the current attempt is given up.
        connection: The connection of the current attempt.
        opaque: The number of the current attempt; the answers to older ones are dropped.
        sticky: Whether it is repeated at the same queue.
        attempt_seconds: Time limit of one attempt, if not the configured one.
        unresolved: Number of attempts that may have stored it.
        pauses: Number of pauses so far, each taken because there was no broker left to try at once.
        round_start: Number of ``brokers`` that were tried before the last pause.
        error: Error of the last attempt.
        watcher: Follows it if it is sticky.
    """

    out: OutgoingSend
    queue: MessageQueue
    future: asyncio.Future[SendResult]
    attempts_left: int
    deadline: float
    fixed: bool
    brokers: tuple[str, ...] = ()
    outcome: SendResult | None = None
    address: str = ""
    sent_at: float = 0.0
    due: float = 0.0
    connection: Connection | None = None
    opaque: int = 0
    sticky: bool = False
    attempt_seconds: float = 0.0
    unresolved: int = 0
    pauses: int = 0
    round_start: int = 0
    error: RocketpostError | None = None
    watcher: Watcher | None = None


def result_of(status: SendStatus, flight: InFlightSend, response: Command) -> SendResult:
    """Return the result in a broker's answer to a send.

    Raises:
        Fault: The answer cannot be read.
    """
    head = response.read(SendResponse)
    out, queue = flight.out, flight.queue
    if head.queue_id != queue.queue_id:
        queue = MessageQueue(queue.broker_name, head.queue_id, queue.topic)
    duplicate = head.duplicate
    if duplicate is not None:
        out.duplicates, out.queue_offsets = duplicate, head.queue_offsets
    return _new(
        SendResult,
        (
            status,
            out.message_id,
            head.msg_id,
            queue,
            head.queue_offset,
            head.transaction_id,
            head.region or "DefaultRegion",
            head.trace_on != "false",
            head.recall_handle,
            duplicate == "true",
        ),
    )


def plain_result(flight: InFlightSend, answer: PlainAnswer) -> SendResult:
    """Return the result in a plain answer, as ``kernel.client_sends`` reads it."""
    _, _, offset_id, queue_id, queue_offset, transaction_id, region, is_traced = answer
    queue = flight.queue
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.broker_name, queue_id, queue.topic)
    return _new(
        SendResult,
        (
            SendStatus.SEND_OK,
            flight.out.message_id,
            offset_id,
            queue,
            queue_offset,
            transaction_id,
            region or "DefaultRegion",
            is_traced,
            None,
            False,
        ),
    )
