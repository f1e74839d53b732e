"""AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

from typing import Any

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import Fault, RouteNotFound
from rocketpost.proxy.ack_batches import AckBatches
from rocketpost.proxy.calls import Call
from rocketpost.proxy.handles import parse_handle
from rocketpost.proxy.popped import Taken, change_invisible, check_position, give_up
from rocketpost.proxy.refusals import OK, Refusal, common_status, refusal_of, status
from rocketpost.proxy.renewal import Claim, Renewals, is_expired
from rocketpost.proxy.settings import ProxyConfig
from rocketpost.proxy.validation import group_name, topic_name
from rocketpost.proxy.wire.enums import Code
from rocketpost.proxy.wire.messages import (
    AckMessageResponse,
    ChangeInvisibleDurationResponse,
    ForwardMessageToDeadLetterQueueResponse,
    ms_of,
)

ENTRIES_MAX = 4096
"""Most acknowledgements of one call."""


class ReceiptMethods:
    """Serves calls about received messages. Belongs to the event loop."""

    def __init__(self, renewals: Renewals, batches: AckBatches, config: ProxyConfig) -> None:
        self._renewals = renewals
        self._batches = batches
        self._config = config

    async def acknowledge(self, call: Call, request: Any) -> Any:
        """Acknowledge messages; the answer has an entry for each."""
        topic, group = topic_name(request.topic), group_name(request.group)
        if len(request.entries) > ENTRIES_MAX:
            raise Refusal(Code.BAD_REQUEST, f"a call may acknowledge {ENTRIES_MAX} messages")
        response = AckMessageResponse()
        for entry in request.entries:
            code, text = Code.OK, ""
            try:
                claim = self._claim(call, group, topic, entry.receipt_handle)
                async with claim as taken:
                    _check_time(taken)
                    await self._batches.acknowledge(call.client.link, taken)
                    claim.release()
            except Exception as error:
                refused = _refusal(error, "AckMessage")
                code, text = refused.code, refused.text
            response.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=OK if code == Code.OK else status(code, text),
            )
        codes = {entry.status.code for entry in response.entries}
        is_one = len(response.entries) == 1
        response.status.CopyFrom(response.entries[0].status if is_one else common_status(codes))
        return response

    async def change_invisible(self, call: Call, request: Any) -> Any:
        """Set the time after which a message is delivered again; the answer has its new handle."""
        topic, group = topic_name(request.topic), group_name(request.group)
        invisible_ms = ms_of(request.invisible_duration)
        if not 0 <= invisible_ms <= self._config.invisible_ms_max:
            raise Refusal(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisible duration of {invisible_ms} ms is not within 0 to "
                f"{self._config.invisible_ms_max} ms",
            )
        claim = self._claim(call, group, topic, request.receipt_handle)
        try:
            async with claim as taken:
                _check_time(taken)
                handle = await change_invisible(call.client.link, taken, invisible_ms)
                claim.release()
        except Exception as error:
            refused = _refusal(error, "ChangeInvisibleDuration")
            return ChangeInvisibleDurationResponse(
                status=status(refused.code, refused.text), receipt_handle=request.receipt_handle
            )
        return ChangeInvisibleDurationResponse(status=OK, receipt_handle=str(handle))

    async def forward(self, call: Call, request: Any) -> Any:
        """Make a message a dead letter of its group."""
        topic, group = topic_name(request.topic), group_name(request.group)
        claim = self._claim(call, group, topic, request.receipt_handle)
        try:
            async with claim as taken:
                _check_time(taken)
                await check_position(call.client.link, taken)
                await give_up(call.client.link, taken, request.message_id)
                claim.release()
        except Exception as error:
            raise _refusal(error, "ForwardMessageToDeadLetterQueue") from error
        return ForwardMessageToDeadLetterQueueResponse(status=OK)

    def _claim(self, call: Call, group: str, topic: str, text: str) -> Claim:
        """Return the claim to the message of a handle.

        Raises:
            Refusal: The handle is malformed.
        """
        return self._renewals.claim(call.client, Taken(group, topic, parse_handle(text)))


def _check_time(taken: Taken) -> None:
    """Check that a message is not delivered to others yet.

    Raises:
        Refusal: The time of its handle is over.
    """
    if is_expired(taken.handle):
        raise Refusal(
            Code.INVALID_RECEIPT_HANDLE,
            "the invisible time of the message is over; it is delivered again",
        )


def _refusal(error: Exception, what: str) -> Refusal:
    """Return the refusal of a call about a handle.

    A message that the broker does not have, or no longer for this handle, makes the handle invalid:
    push consumers repeat the call after any other refusal.
    """
    if isinstance(error, RouteNotFound):
        return Refusal(Code.INVALID_RECEIPT_HANDLE, str(error))
    gone = (ResponseCode.NO_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST)
    if isinstance(error, Fault) and error.code in gone:
        return Refusal(Code.INVALID_RECEIPT_HANDLE, error.remark)
    return refusal_of(error, what)
