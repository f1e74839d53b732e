"""Handles that clients keep for the proxy: receipts of messages, and ids of transactions.

Each holds all that is needed to find the message again, so that any proxy can serve it, also after
a restart. A receipt handle is the receipt of the remoting protocol and the position of the record:

    checkpoint offset, pop time, invisible time, revive queue, retry, broker, queue, offset,
    position

A transaction id is URL-safe base64 of the broker, the queue offset and the position of the half
message, and its message id.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from rocketpost.codec.headers.pop import Receipt, parse_receipt
from rocketpost.errors import RemoteProtocolError
from rocketpost.proxy.refusals import Refusal
from rocketpost.proxy.wire.enums import Code

_LENGTH_MAX: Final = 4096
_WORDS: Final = 4


class ReceiptHandle(NamedTuple):
    """The handle of one delivery of one message."""

    receipt: Receipt
    position: int | None = None
    """The position of the record; None if the handle does not say."""

    def __str__(self) -> str:
        return str(self.receipt) if self.position is None else f"{self.receipt} {self.position}"

    @property
    def place(self) -> tuple[str, int, int, int]:
        """The message itself, the same for all its handles: retry, broker, queue and offset."""
        receipt = self.receipt
        return receipt.broker, receipt.retry, receipt.queue_id, receipt.offset

    @property
    def visible_at_ms(self) -> int:
        """The time at which the message is delivered again."""
        return self.receipt.pop_ms + self.receipt.invisible_ms


def parse_handle(text: str) -> ReceiptHandle:
    """Read a receipt handle.

    Raises:
        Refusal: The handle is malformed.
    """
    words = text.split(" ") if len(text) <= _LENGTH_MAX else []
    position = None
    try:
        if len(words) == 9:
            last = words.pop()
            if not last.isdecimal() or len(last) > 18:
                raise RemoteProtocolError("it does not end with a position")
            position = int(last)
        return ReceiptHandle(parse_receipt(" ".join(words)), position)
    except RemoteProtocolError:
        raise Refusal(
            Code.INVALID_RECEIPT_HANDLE, f"{text[:200]!r} is not a receipt handle"
        ) from None


class TransactionId(NamedTuple):
    """The half message of a transaction."""

    broker: str
    queue_offset: int
    position: int
    message_id: str

    def __str__(self) -> str:
        return base64.urlsafe_b64encode(" ".join(map(str, self)).encode()).decode()


def parse_transaction_id(text: str) -> TransactionId:
    """Read the id of a transaction.

    Raises:
        Refusal: The id is malformed.
    """
    try:
        data = base64.b64decode(text[:_LENGTH_MAX].encode(), altchars=b"-_", validate=True)
        broker, offset, position, message_id = data.decode().split(" ", _WORDS - 1)
        if len(offset) > 18 or len(position) > 18:
            raise ValueError
        return TransactionId(broker, int(offset), int(position), message_id)
    except (ValueError, binascii.Error):
        raise Refusal(
            Code.INVALID_TRANSACTION_ID, f"{text[:200]!r} is not the id of a transaction"
        ) from None
