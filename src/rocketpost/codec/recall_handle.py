"""The handle for recalling a timed message; a send response carries it.

URL-safe base64 of five words separated by spaces: ``v1``, topic, broker name, time in ms, message
id. A broker finds the message's slot by the time; clients only need the broker name.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from rocketpost.errors import RemoteProtocolError

_VERSION: Final = "v1"
_WORDS: Final = 5
_DIGITS_MAX: Final = 18
_BYTES_MAX: Final = 4096


class RecallHandle(NamedTuple):
    """The contents of a handle."""

    topic: str
    broker_name: str
    due_ms: int
    message_id: str

    def encode(self) -> str:
        """Return the handle as text."""
        words = (_VERSION, self.topic, self.broker_name, str(self.due_ms), self.message_id)
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Read a handle.

    Raises:
        RemoteProtocolError: The handle is malformed.
    """
    if len(text) > _BYTES_MAX:
        raise RemoteProtocolError(f"the recall handle is too long: {len(text)} characters")
    try:
        data = text.encode("ascii")
        padded = data + b"=" * (-len(data) % 4)
        words = base64.b64decode(padded, altchars=b"-_", validate=True).decode().split(" ")
    except (ValueError, binascii.Error):
        words = []
    if len(words) != _WORDS or words[0] != _VERSION or not all(words):
        raise RemoteProtocolError(
            "this is not a recall handle of version v1; use the one in the SendResult"
        )
    _, topic, broker_name, time, message_id = words
    if not (time.isascii() and time.isdecimal() and len(time) <= _DIGITS_MAX):
        raise RemoteProtocolError(f"the recall handle has no time: {time[:32]!r}")
    return RecallHandle(topic, broker_name, int(time), message_id)
