"""A send in flight: its request, its queue and its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rocketpost.client.message import SendResult, SendStatus
from rocketpost.codec.command import Command
from rocketpost.codec.headers.message import SendResponse
from rocketpost.errors import RocketpostError
from rocketpost.model.route import MessageQueue

OnEnd = Callable[[MessageQueue, bool, bool], None]
"""Called with the queue, whether the message is stored there, and whether that is known."""


class OutgoingSend:
    """The encoded request of a message or a batch, without its queue."""

    __slots__ = ("body", "code", "count", "duplicates", "fields", "message_id", "queue_offsets",
                 "topic")  # fmt: skip

    def __init__(
        self,
        code: int,
        topic: str,
        message_id: str,
        fields: dict[str, str],
        body: bytes,
        count: int = 1,
    ) -> None:
        self.code = code
        self.topic = topic
        self.message_id = message_id
        self.fields = fields
        """All header fields but ``e`` (queue id) and ``n`` (broker name)."""
        self.body = body
        self.count = count
        """Number of messages."""
        self.duplicates: str | None = None
        self.queue_offsets: str | None = None
        """The broker's offsets of each message, if it sent them."""

    def fields_for(self, queue: MessageQueue) -> dict[str, str]:
        """Return the header fields of a send to ``queue``; the same dictionary each time."""
        fields = self.fields
        fields["e"] = str(queue.queue_id)
        fields["n"] = queue.broker_name
        return fields


class InFlightSend:
    """One send in flight."""

    __slots__ = (
        "address",
        "attempt_seconds",
        "attempts_left",
        "brokers",
        "deadline",
        "error",
        "fixed",
        "future",
        "on_end",
        "out",
        "outcome",
        "pauses",
        "queue",
        "request",
        "round_start",
        "sent_at",
        "sticky",
        "unresolved",
    )  # fmt: skip

    def __init__(
        self,
        out: OutgoingSend,
        queue: MessageQueue,
        future: asyncio.Future[SendResult],
        *,
        attempts: int,
        deadline: float,
    ) -> None:
        self.out = out
        self.queue = queue
        self.future = future
        self.attempts_left = attempts
        self.deadline = deadline
        self.brokers: list[str] = []
        self.outcome: SendResult | None = None
        self.address = ""
        self.sent_at = 0.0
        self.request: asyncio.Future[Command] | None = None
        """The current attempt; the outcomes of older ones are ignored."""
        self.sticky = False
        self.fixed = False
        self.attempt_seconds = 0.0
        """Time limit of one attempt, if not the configured one."""
        self.unresolved = 0
        """Number of attempts that may have stored it."""
        self.pauses = 0
        """Number of pauses so far, each taken because there was no broker left to try at once."""
        self.round_start = 0
        """Number of ``brokers`` that were tried before the last pause."""
        self.error: RocketpostError | None = None
        """Error of the last attempt."""
        self.on_end: OnEnd | None = None


def result_of(status: SendStatus, flight: InFlightSend, response: Command) -> SendResult:
    """Return the result in a broker's answer to a send.

    Raises:
        Fault: The answer cannot be read.
    """
    head = response.read(SendResponse)
    flight.out.duplicates = head.duplicate
    flight.out.queue_offsets = head.queue_offsets
    queue = flight.queue
    if head.queue_id != queue.queue_id:
        queue = MessageQueue(queue.broker_name, head.queue_id, queue.topic)
    return SendResult(
        status,
        flight.out.message_id,
        head.msg_id,
        queue,
        head.queue_offset,
        head.transaction_id,
        head.region or "DefaultRegion",
        head.trace_on != "false",
        head.recall_handle,
        head.duplicate == "true",
    )
