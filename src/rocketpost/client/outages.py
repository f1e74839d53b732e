"""Logging of broker failures, limited to a few lines however long an outage lasts.

Every queue of an unreachable broker fails every few seconds. One line is logged at the beginning,
one per minute with the number of failures, and one at the end. A broker that is lost and found
again and again gets at most one beginning and one end per minute.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from rocketpost.errors import Fault, RocketpostError
from rocketpost.model.route import MessageQueue

logger = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 60.0
_KEPT_MAX: Final = 4096

_Key = tuple[str, str]
"""A broker, and the topic of its refusals; no topic if it does not answer at all."""


class _Outage:
    """Failures of one kind."""

    __slots__ = ("began", "failures", "is_logged", "is_over", "told")

    def __init__(self, now: float) -> None:
        self.began = now
        self.told = now - AGAIN_SECONDS
        self.failures = 0
        self.is_over = False
        self.is_logged = False
        """Whether the beginning of the outage was logged."""


class Outages:
    """Current failures of brokers. Belongs to the event loop.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._outages: dict[_Key, _Outage] = {}

    def report_failure(self, what: str, queue: MessageQueue, error: RocketpostError) -> None:
        """Log or count a failure in a queue.

        Args:
            what: The start of the log line: what failed.
            queue: The queue.
            error: The reason. A refusal concerns the topic, any other error the whole broker.
        """
        topic = queue.topic if isinstance(error, Fault) else ""
        self._count((queue.broker_name, topic), what, f"queue={queue}", error)

    def report_broker_failure(self, what: str, broker_name: str, error: RocketpostError) -> None:
        """Log or count a failure of a broker."""
        self._count((broker_name, ""), what, f"broker={broker_name}", error)

    def report_success(self, broker_name: str, topic: str = "") -> None:
        """Record that a broker answered; log it if a failure was logged."""
        if not self._outages:  # the usual case, for every pull
            return
        self._end((broker_name, ""))
        if topic:
            self._end((broker_name, topic))

    def _count(self, key: _Key, what: str, where: str, error: RocketpostError) -> None:
        now = self._clock()
        outage = self._outages.get(key)
        if outage is None:
            self._make_room()
            outage = self._outages[key] = _Outage(now)
        elif outage.is_over:
            outage.began, outage.is_over, outage.is_logged = now, False, False
        outage.failures += 1
        if now - outage.told < AGAIN_SECONDS:
            return
        outage.told = now
        if outage.failures == 1:
            logger.warning("%s: %s reason=%s", what, where, error)
        else:
            logger.warning(
                "%s: %s reason=%s seconds=%.0f failures=%s",
                what, where, error, now - outage.began, outage.failures,
            )  # fmt: skip
        outage.is_logged = True

    def _end(self, key: _Key) -> None:
        outage = self._outages.get(key)
        if outage is None or outage.is_over:
            return
        outage.is_over = True
        now = self._clock()
        if outage.is_logged:
            broker_name, topic = key
            logger.warning(
                "broker answers again: broker=%s topic=%s seconds=%.0f failures=%s",
                broker_name, topic or "all", now - outage.began, outage.failures,
            )  # fmt: skip
            outage.failures = 0
        if now - outage.told >= AGAIN_SECONDS:
            del self._outages[key]

    def _make_room(self) -> None:
        if len(self._outages) >= _KEPT_MAX:
            del self._outages[next(iter(self._outages))]
