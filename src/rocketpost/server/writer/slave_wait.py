"""The wait for slaves: the last step before the sends of a SYNC_MASTER are answered.

Sends come here when they are visible, one group for each commit. A report of a slave releases all
those that it covers, so any number of them waits for one report:

    enough slaves have them                 stored
    too few slaves are in sync              SLAVE_NOT_AVAILABLE, at once
    no report in time                       FLUSH_SLAVE_TIMEOUT
    the disk was too slow                   FLUSH_DISK_TIMEOUT, unless too few slaves are in sync

In all cases the messages are in the log and visible, and are sent to slaves as soon as any connect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketpost.codec.codes import ResponseCode
from rocketpost.model.ids import Position
from rocketpost.server.writer.acknowledgement_rules import Replicated
from rocketpost.server.writer.pending_sends import PendingSend, WaitingSends

logger = logging.getLogger(__name__)

Acknowledge = Callable[[list[PendingSend]], None]
AnswerLate = Callable[[list[PendingSend], ResponseCode], None]


class SlaveWait:
    """Sends that wait for slaves. Owned by the loop.

    Args:
        rule: The rule that sends must meet.
        acknowledge: Answers sends that meet the rule.
        answer_late: Answers sends that do not.
        timeout_ms: The time that a send may wait.
    """

    def __init__(
        self,
        rule: Replicated,
        *,
        acknowledge: Acknowledge,
        answer_late: AnswerLate,
        timeout_ms: int,
    ) -> None:
        self._acknowledge = acknowledge
        self._answer_late = answer_late
        self._waiting = WaitingSends(
            on_timeout=self._time_out, timeout_ms=timeout_ms, keeps_patient=False
        )
        self._is_short = False
        self.rule = rule
        """The rule that sends must meet."""

    @property
    def client_count(self) -> int:
        """Number of clients' sends that wait."""
        return self._waiting.client_count

    def set_timeout(self, timeout_ms: int) -> None:
        """Set the time that sends may wait from now on."""
        self._waiting.set_timeout(timeout_ms)

    def take(self, sends: list[PendingSend]) -> None:
        """Answer visible sends, or let them wait."""
        self.rule.look()
        demand, met = self.rule.demand, self.rule.position
        if demand.slaves == 0:
            self._acknowledge(sends)
            return
        needy = [send for send in sends if send.awaits_slaves and send.end > met]
        if len(needy) < len(sends):
            self._acknowledge([send for send in sends if not send.awaits_slaves or send.end <= met])
        if not needy:
            return
        self._note_shortage(is_short=not demand.is_enough)
        if demand.is_enough:
            self._waiting.add(needy, max([send.end for send in needy]))
        else:
            self._answer_late(needy, ResponseCode.SLAVE_NOT_AVAILABLE)

    def take_unflushed(self, sends: list[PendingSend]) -> None:
        """Answer sends for which the disk was too slow; they wait no longer.

        Slaves get the log once it is visible here, so they cannot have these messages yet.
        """
        self.rule.look()
        status = ResponseCode.FLUSH_DISK_TIMEOUT
        if not self.rule.demand.is_enough:
            status = ResponseCode.SLAVE_NOT_AVAILABLE
        self._answer_late(sends, status)

    def advance(self, position: Position) -> None:
        """Answer the sends that enough slaves have."""
        released = self._waiting.release(position)
        if released:
            self._acknowledge(released)

    def end(self) -> None:
        """Answer all waiting sends: no more reports of slaves will arrive."""
        sends = self._waiting.drain()
        if sends:
            self._answer_late(sends, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def close(self) -> None:
        """Answer all waiting sends, and stop the timer."""
        self.end()
        self._waiting.close()

    def _time_out(self, sends: list[PendingSend]) -> None:
        count = sum(send.count for send in sends)
        logger.warning("slaves are slow: answered_with_timeout=%s", count)
        self._answer_late(sends, ResponseCode.FLUSH_SLAVE_TIMEOUT)

    def _note_shortage(self, *, is_short: bool) -> None:
        if is_short == self._is_short:
            return
        self._is_short = is_short
        if is_short:
            logger.warning(
                "too few slaves are in sync, so sends get SLAVE_NOT_AVAILABLE: needed=%s",
                self.rule.demand.slaves,
            )
        else:
            logger.info("enough slaves are in sync: needed=%s", self.rule.demand.slaves)
