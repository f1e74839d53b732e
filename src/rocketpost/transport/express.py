"""The express way of a connection: requests that are taken as bytes, before they are decoded.

A server may give its connections a function that takes whole requests from the front of the bytes
that arrived, as many as it can, and tells how far it got. The next request is then decoded and
served the ordinary way, and the function is asked again. **Invariants:**

- Requests are taken and served in the order in which they arrived. While earlier ones wait, none is
  taken.
- Whatever the function leaves is decoded as if there were no such function.
- If it takes nothing twice in a row, the other bytes of this read are not offered: most connections
  bring requests of one kind, and those that bring none for it should not pay for it.
- If the time of this turn is over, the rest is not offered either, and is served in a later turn.

What the function takes is its own business; connections know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Protocol, TypeVar

from rocketpost.codec.frames import FrameDecoder, frame_end


class Receiver(Protocol):
    """The part of a connection that is used here."""

    @property
    def is_behind(self) -> bool:
        """Whether requests that arrived earlier must be served first."""
        ...

    def receive(self, data: bytes, deadline: float) -> None:
        """Decode bytes and serve the requests in them."""
        ...


R = TypeVar("R", bound=Receiver)
Express = Callable[[R, bytes, int], int]
"""Takes whole requests from an index on; returns the index of the first that it leaves."""


def offer(
    receiver: R, express: Express[R], decoder: FrameDecoder, data: bytes, deadline: float
) -> None:
    """Offer bytes that arrived to ``express``, and have the rest decoded.

    Args:
        receiver: The connection.
        express: Takes requests.
        decoder: The connection's decoder, which may hold the beginning of a request.
        data: The bytes.
        deadline: The time until which the connection may serve requests in this turn.
    """
    start = 0
    if decoder.held:
        frame, start = decoder.complete(data)
        if frame:
            _offer(receiver, express, frame, 0, deadline)
    if start < len(data):
        _offer(receiver, express, data, start, deadline)


def _offer(receiver: R, express: Express[R], data: bytes, at: int, deadline: float) -> None:
    size = len(data)
    has_missed = False
    while not receiver.is_behind:
        after = express(receiver, data, at)
        assert at <= after <= size
        if after == size:
            return
        if after == at and has_missed:
            break
        has_missed = after == at
        at = after
        if not has_missed and monotonic() > deadline:
            break
        end = frame_end(data, at)
        if not at < end < size:
            break  # the last one, incomplete or malformed
        receiver.receive(data[at:end], deadline)
        at = end
    receiver.receive(data[at:] if at else data, deadline)
