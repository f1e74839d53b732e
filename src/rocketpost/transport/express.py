"""The express path of a connection: requests that are taken as bytes, before they are decoded.

A server may give its connections a function that takes whole requests from the front of the bytes
that arrived, as many as it can, and returns how far it got. The next request is then decoded and
served in the ordinary way, and the function is called again. **Invariants:**

- Requests are taken and served in the order in which they arrived. While earlier ones wait, none is
  taken.
- Requests that the function leaves are decoded as if there were no such function.
- If it takes nothing twice in a row, the other bytes of this read are not offered: most connections
  bring requests of one kind, and those that bring none for it should not become slower.
- If the time of this turn is over, the rest is not offered either, and is served in a later turn.

The function decides which requests it takes; connections do not look at them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from rocketpost.codec.frames import frame_end


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
Data = bytes | bytearray
Express = Callable[[R, Data, int, int], int]
"""Takes whole requests between two indexes; returns the index of the first that it leaves.

It must not keep the data, which may be a buffer that is used again.
"""


def offer(
    receiver: R,
    express: Express[R],
    data: Data,
    at: int,
    end: int,
    budget: float,
    taken: int | None = None,
) -> None:
    """Offer bytes that arrived to ``express``, and have the rest decoded.

    Args:
        receiver: The connection.
        express: Takes requests.
        data: The buffer with the bytes.
        at: The start of a request.
        end: The end of the bytes that arrived.
        budget: The seconds for which the connection may serve requests in this turn.
        taken: The index that ``express`` has returned, if it was asked already.
    """
    deadline = 0.0
    has_missed = False
    while taken is not None or not receiver.is_behind:
        after = express(receiver, data, at, end) if taken is None else taken
        taken = None
        assert at <= after <= end
        if after == end:
            return
        deadline = deadline or time.monotonic() + budget
        if after == at and has_missed:
            break
        has_missed = after == at
        at = after
        if not has_missed and time.monotonic() > deadline:
            break
        request_end = frame_end(data, at, end)
        if not at < request_end < end:
            break  # the last one, incomplete or malformed
        receiver.receive(bytes(memoryview(data)[at:request_end]), deadline)
        at = request_end
    receiver.receive(bytes(memoryview(data)[at:end]), deadline or time.monotonic() + budget)
