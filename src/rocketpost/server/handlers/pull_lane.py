"""The pull lane: pulls of known shapes, answered before they are decoded.

A connection offers what it has read before it decodes it (``transport.express``). Pulls whose shape
is known, and that can be answered at once, are answered here, all of one read in one write
(``broker.pull.known_pulls`` says which). The next request is decoded and served in the ordinary
way.

**Invariants:**

- Access: with access control on, only pulls are answered that the gate would admit
  (``server.access.logins``).
- Order: pulls are taken in the order of the connection.
- Back-pressure: a pull that is taken is answered in the same call, so it never counts as
  unanswered. Nothing is taken for a peer that does not read its answers. One call answers with
  ``ANSWER_BYTES_MAX`` at most, and one pull more.
"""

from __future__ import annotations

from typing import Final

from rocketpost.broker.pull.known_pulls import KnownPulls
from rocketpost.broker.stats import BrokerStats
from rocketpost.kernel.pull_lane import PullLane
from rocketpost.server.access.logins import Logins
from rocketpost.server.handlers.pull import PULL_ACCESS
from rocketpost.transport.connection import Connection
from rocketpost.transport.express import Data

ANSWER_BYTES_MAX: Final = 1024 * 1024
"""Bytes of answers after which a connection's other requests have their turn."""


class PullExpress:
    """Takes pulls from connections, and answers them. Owned by the loop.

    Args:
        pulls: Answers pulls of known shapes.
        stats: Has the times of requests.
        logins: Knows whose pulls are admitted; None if access control is off.
    """

    def __init__(self, pulls: KnownPulls, stats: BrokerStats, logins: Logins | None = None) -> None:
        self._pulls = pulls
        self._stats = stats
        self._logins = logins
        self._lane = PullLane()
        self.is_on = False
        """Whether pulls are taken."""

    def take(self, connection: Connection, data: Data, at: int, end: int) -> int:
        """Answer pulls from ``at`` on; returns the index of the first request left.

        See ``transport.express``.
        """
        if not self.is_on:
            return at
        lane, pulls, logins = self._lane, self._pulls, self._logins
        is_signed = logins is not None
        shape = lane.split(data, at, end, is_signed)
        if shape is None or not connection.is_writable:
            return at
        times, code = self._stats.times, lane.code
        since = 0.0 if times is None else times.now()
        answers: list[bytes] = []
        left = ANSWER_BYTES_MAX
        try:
            while shape is not None and left > 0 and lane.code == code:
                if logins is not None and not logins.may_pull(
                    connection, pulls.find(shape, lane), lane, PULL_ACCESS
                ):
                    break
                answer = pulls.answer(shape, lane)
                if answer is None:
                    break
                answers.append(answer)
                left -= len(answer)
                at, connection.encoding = lane.end, lane.encoding
                shape = lane.split(data, at, end, is_signed)
        finally:
            pulls.end()
        if answers:
            connection.send_at_once(answers)  # none of them was counted
            if times is not None:
                times.pulls.count(code, times.now() - since, len(answers))
        return at
