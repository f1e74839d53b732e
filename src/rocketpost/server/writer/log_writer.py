"""The log writer: append, commit, confirm and acknowledge, for every message in the log.

Clients' sends and the broker's own messages take the same path:

    append    the store gives a message its position; it is in memory only
    submit    a pending send names its submitter, its end position and its term
    commit    at the end of the event loop's iteration, one write for all sends
    confirm   messages that meet the rules for visibility are shown to consumers
    answer    their senders are answered, oldest first

With ``Written`` as the only rule (ASYNC_FLUSH) the last three happen in one call. With ``Flushed``
(SYNC_FLUSH) sends wait for the ``fdatasync`` that covers them. With ``Replicated`` (SYNC_MASTER)
the answer, and nothing else, also waits for slaves (``server.writer.slave_wait``).

With ``Committed`` (the leader of a group) every answer waits for the group, even if the sender does
not wait for the flush. A message that was written, but is not committed when its time or its term
ends, may or may not be kept: its sender gets ``OutcomeUnknown``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import OutcomeUnknown, StoreBroken, StoreError, TermEnded
from rocketpost.model.ids import Position
from rocketpost.server.writer.acknowledgement_rules import (
    AcknowledgementRule,
    Committed,
    Flushed,
    Replicated,
    Written,
)
from rocketpost.server.writer.internal_sends import (
    InternalSend,
    InternalSends,
    SlaveTicket,
    Stored,
)
from rocketpost.server.writer.pending_sends import PendingSend, WaitingSends, split_by_submitter
from rocketpost.server.writer.slave_wait import SlaveWait
from rocketpost.server.writer.write_times import SLOW_SECONDS, WriteTimes
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore

logger = logging.getLogger(__name__)

NO_TERM: Final = 0
"""The term of a writer that accepts no messages."""

ArrivalListener = Callable[[list[Arrival]], None]
"""Receives messages that became visible. It must not use the log writer before it returns."""

_PERHAPS_STORED: Final = "the message may or may not be stored"


class Ledger(Protocol):
    """A table that is kept in step with the log."""

    def commit(self) -> None:
        """Keep the entries since the last commit: the log is written."""

    def undo(self) -> None:
        """Drop the entries since the last commit: the log could not be written."""


class LogWriter:
    """The only object that appends and commits to the store. Owned by the loop.

    Rule 1: every appended message is submitted before control returns to the event loop.
    Rule 2: the confirmed position is the least of the rules' positions; it only grows in a term.
    Rule 3: a send is acknowledged when its end is confirmed and on enough slaves, or, if so
        requested, written.
    Rule 4: the submitter gets exactly one call for each send, oldest first.
    Rule 5: no send is acknowledged in another term than the one in which it was submitted.
    Rule 6: after a failed write or flush, none of the messages concerned is acknowledged.
    Rule 7: a group's leader acknowledges nothing that is not committed.

    Args:
        rules: The rules for visibility; ``Written`` is the first.
        ledger: The table that must follow the log at every commit.
        timeout_ms: The time that a send may wait for the disk before it is answered late.
        replicated: The additional rule for answers, if this broker is a SYNC_MASTER.
        slave_timeout_ms: The time that a send may then wait for slaves.
    """

    append: Callable[[Draft], Appended]
    """Gives a message its position; raises ``StoreError`` if it cannot be stored."""

    append_batch: Callable[[Sequence[Draft]], list[Appended]]
    """Gives several messages adjacent positions: all of them or none."""

    def __init__(
        self,
        *,
        store: MessageStore,
        rules: Sequence[AcknowledgementRule],
        ledger: Ledger,
        timeout_ms: int,
        replicated: Replicated | None = None,
        slave_timeout_ms: int = 3000,
    ) -> None:
        assert isinstance(rules[0], Written)
        self._loop = asyncio.get_running_loop()
        self._store = store
        self._refusals = store.refuses_new
        self._rules = {type(rule): rule for rule in rules}
        self._written = rules[0]
        self._is_of_group = Committed in self._rules
        self._ledger = ledger
        self._internal = InternalSends()
        self._appended: list[PendingSend] = []
        self._duplicates: list[PendingSend] = []
        self._waiting = WaitingSends(on_timeout=self._time_out, timeout_ms=timeout_ms)
        self._slaves: SlaveWait | None = None
        if replicated is not None:
            self._slaves = SlaveWait(
                replicated,
                acknowledge=self._acknowledge,
                answer_late=self._answer_late,
                timeout_ms=slave_timeout_ms,
            )
        self._answer = self._acknowledge if self._slaves is None else self._slaves.take
        self._is_scheduled = False
        self._is_closed = False
        self._last_term = NO_TERM
        self.term = NO_TERM
        """The term in which messages are accepted now, or NO_TERM."""
        self.waits = len(rules) > 1 or replicated is not None
        """Whether sends wait for more than the write."""
        self.is_paused = False
        """Whether messages are refused for a moment, although the term goes on."""
        self.is_short = False
        """Whether sends that wait for slaves must be refused: too few replicas are in sync."""
        self.write_times = WriteTimes()
        self.confirmed = Position(0)
        """Every message that ends at or before this position is visible."""
        self.arrival_listeners: Sequence[ArrivalListener] = ()
        """Called with messages that became visible, before their senders are answered."""
        self.on_growth: Callable[[Position], None] = _nobody
        """Called with the end of messages that become visible together, to send them to slaves.

        It is called before they are visible, so that slaves work at the same time."""
        self._stop_taking("the broker is starting")

    @property
    def waiting_count(self) -> int:
        """Number of clients' sends that are written and wait for the disk."""
        return self._waiting.client_count

    @property
    def awaiting_slaves_count(self) -> int:
        """Number of clients' sends that are visible and wait for slaves."""
        return 0 if self._slaves is None else self._slaves.client_count

    # Terms.

    def begin_term(self, term: int) -> None:
        """Begin to accept messages, and show those that meet the rules already.

        Args:
            term: The number of the term; later terms have higher ones.
        """
        assert self.term == NO_TERM
        assert term > self._last_term
        assert not self._appended
        assert not len(self._waiting)
        if not self._is_of_group:  # else the group hears the reports, in every role
            self._store.report_to(
                on_durable=partial(self.advance_from_thread, Flushed),
                on_broken=self.fail_from_thread,
            )
        for rule in self._rules.values():
            rule.start()
        if self._slaves is not None:
            self._slaves.rule.start()
            self._look_at_slaves()
        self.confirmed = self._least()
        if self.confirmed > self._store.confirmed_position:
            self._store.confirm(self.confirmed)  # met the rules after its own term
        self.term = self._last_term = term
        self.append = self._store.append
        self.append_batch = self._store.append_batch

    def end_term(self, reason: str) -> None:
        """Stop accepting messages; write the submitted ones, and refuse those still waiting."""
        self.commit()
        self._stop_taking(reason)
        self._refuse(self._waiting.drain(), self._unmet(TermEnded(reason)))
        if self._slaves is not None:
            self._slaves.end()

    def pause(self, reason: str) -> None:
        """Refuse messages until :meth:`resume`; the term goes on, and waiting sends are answered.

        The leader of a group does so while another member takes over.
        """
        self.commit()
        if self.term != NO_TERM:
            self.is_paused = True
            self.append = self.append_batch = _refusal(reason)

    def resume(self) -> None:
        """Accept messages again after :meth:`pause`."""
        if self.is_paused and self.term != NO_TERM:
            self.is_paused = False
            self.append = self._store.append
            self.append_batch = self._store.append_batch

    # Accepting messages.

    def submit(self, send: PendingSend) -> None:
        """Write appended messages at the end of this iteration, then answer their sender."""
        self._appended.append(send)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.commit)

    def submit_duplicate(self, send: PendingSend) -> None:
        """Register a send whose messages were all appended before, so that it is answered."""
        self._duplicates.append(send)
        self._schedule()

    def put(self, drafts: Sequence[Draft]) -> Stored:
        """Store the broker's own messages, together with the sends of this iteration.

        The result lists the stored messages: all, or the first few if the store becomes full. It
        fails with a ``StoreError`` if they are not stored, or may not be.

        Raises:
            StoreError: No message can be stored now.
        """
        assert drafts
        stored = [self.append(drafts[0])]
        try:
            for draft in drafts[1:]:
                stored.append(self.append(draft))
        except StoreError as error:
            logger.warning("stored in part: count=%s reason=%s", len(stored), error)
        done: Stored = self._loop.create_future()
        self.submit(InternalSend(self._internal, stored, self.term, False, done))
        return done

    async def wait_kept(self) -> bool:
        """Wait until everything written so far is in the log for good; tell whether it is.

        Only the leader of a group may have to give up what it has written.
        """
        if not self._is_of_group or self._store.confirmed_position >= self._written.position:
            return True
        if self.term == NO_TERM:
            return False
        done: Stored = self._loop.create_future()
        end = self._written.position
        self.submit_duplicate(SlaveTicket(self._internal, [], self.term, False, done, end))
        try:
            await done
        except OutcomeUnknown:
            return False
        return True

    # From the write to the answer.

    def commit(self) -> None:
        """Write the submitted messages, then answer their sends or let them wait.

        Nothing else may commit to the store: if that fails, only the pending sends tell whose
        messages are lost.
        """
        self._is_scheduled = False
        sends, self._appended = self._appended, []
        duplicates, self._duplicates = self._duplicates, []
        if not sends and not duplicates:
            return
        assert not sends or sends[0].term == sends[-1].term == self.term
        try:
            end = self._write(sends)
        except StoreError as error:
            count = sum(send.count for send in sends)
            logger.error("messages refused: count=%s reason=%s", count, error)
            self._ledger.undo()
            for submitter, run in split_by_submitter(sends):
                submitter.refuse_unwritten(run, error)
            self._refuse(duplicates, error)
            return
        self._ledger.commit()
        self.advance(Written, end)
        if sends and self.waits:
            self._acknowledge_or_wait(sends, end)
        elif sends:
            self._acknowledge(sends)
        if duplicates:
            self._answer_duplicates(duplicates)
        if self.waits:  # the write needs no pursuing
            for rule in self._rules.values():
                rule.pursue()
            if self._slaves is not None:
                self.is_short = self._slaves.rule.is_refusing

    def advance(self, rule: type[AcknowledgementRule], position: Position) -> None:
        """Record that a rule for visibility is met up to a position: show confirmed messages.

        A rule that is not in force changes nothing.
        """
        met = self._rules.get(rule)
        if met is None or position <= met.position or self._is_closed:
            return
        met.position = position
        confirmed = position if len(self._rules) == 1 else self._least()
        if confirmed <= self.confirmed:
            return
        assert confirmed <= self._written.position
        self.confirmed = confirmed
        self._show(confirmed)
        if self._waiting.groups and (released := self._waiting.release(confirmed)):
            self._answer(released)

    def advance_from_thread(self, rule: type[AcknowledgementRule], position: Position) -> None:
        """Report from any thread that a rule is met up to a position."""
        if rule in self._rules:
            self._call_from_thread(self.advance, rule, position)

    def slaves_changed(self) -> None:
        """Answer the sends that enough slaves now have.

        To be called after a slave has reported, has connected or is gone, and when the settings or
        the number of living replicas have changed.
        """
        if self._slaves is None or self._is_closed or self.term == NO_TERM:
            return
        rule = self._slaves.rule
        self._look_at_slaves()
        position = rule.measure()
        if position > rule.position:
            rule.position = position
            self._slaves.advance(position)

    async def wait_for_slaves(self) -> None:
        """Wait until enough slaves have what is visible now; at most as long as a send waits.

        For answers to clients that rely on messages of the broker's own.
        """
        if self._slaves is None:
            return
        done: Stored = self._loop.create_future()
        self._slaves.take([SlaveTicket(self._internal, [], self.term, False, done, self.confirmed)])
        await done

    def set_slave_timeout(self, timeout_ms: int) -> None:
        """Set the time that sends may wait for slaves from now on."""
        if self._slaves is not None:
            self._slaves.set_timeout(timeout_ms)

    # Endings.

    def fail(self, reason: str) -> None:
        """Refuse all waiting sends: their messages may be lost in a crash."""
        self._refuse(self._waiting.drain(), self._unmet(StoreBroken(reason)))

    def fail_from_thread(self, reason: str) -> None:
        """Report, from the flusher's thread, that the log cannot be made durable any more."""
        self._call_from_thread(self.fail, reason)

    def close(self) -> None:
        """Write submitted messages, refuse waiting sends, and stop using the store.

        A thread closes the store next, and nothing else may use it by then.
        """
        self.commit()
        self.fail("the broker is shutting down")
        self._stop_taking("the broker is shutting down")
        self._waiting.close()
        if self._slaves is not None:
            self._slaves.close()
        if not self._is_of_group:
            self._store.report_to()
        self._is_closed = True

    def _call_from_thread(self, method: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(method, *arguments)
        except RuntimeError:
            # The loop is closed: the process is stopping and no send waits.
            logger.debug("report after the loop closed: %s%s", method.__name__, arguments)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self.commit)

    def _stop_taking(self, reason: str) -> None:
        self.term = NO_TERM
        self.is_paused = False
        self.append = self.append_batch = _refusal(reason)

    def _write(self, sends: list[PendingSend]) -> Position:
        began = time.monotonic()
        end = self._store.commit()
        spent = time.monotonic() - began
        if spent >= SLOW_SECONDS:
            self.write_times.count(spent, sum(send.count for send in sends))
        if self._refusals and self._store.broken:
            # A flush failed since the append: the written messages may be lost in a crash.
            reason = self._store.why_not_writable or "the store is broken"
            raise self._unmet(StoreBroken(reason))
        if sends and sends[-1].end > end:
            raise StoreBroken("messages were withdrawn while their sends waited for the write")
        return end

    def _unmet(self, error: StoreError) -> StoreError:
        """Return the error for messages that are written, but must not be acknowledged."""
        return OutcomeUnknown(f"{error}; {_PERHAPS_STORED}") if self._is_of_group else error

    def _show(self, confirmed: Position) -> None:
        self.on_growth(confirmed)
        arrivals = self._store.confirm(confirmed)
        if arrivals:
            for listener in self.arrival_listeners:
                listener(arrivals)

    def _least(self) -> Position:
        return min([rule.position for rule in self._rules.values()])

    def _look_at_slaves(self) -> None:
        if self._slaves is not None:
            self._slaves.rule.look()
            self.is_short = self._slaves.rule.is_refusing

    def _acknowledge_or_wait(self, sends: list[PendingSend], end: Position) -> None:
        is_hidden = end > self.confirmed
        if is_hidden and self._is_of_group:
            self._waiting.add(sends, sends[-1].end)
            return
        if is_hidden or self._slaves is not None:
            patient = [send for send in sends if not send.acked_before_flush]
            if patient and is_hidden:
                self._waiting.add(patient, patient[-1].end)
            elif patient:
                self._answer(patient)
            if len(patient) == len(sends):
                return
            sends = [send for send in sends if send.acked_before_flush]
        self._acknowledge(sends)

    def _answer_duplicates(self, sends: list[PendingSend]) -> None:
        """Answer duplicates as safely as their originals."""
        early = [send for send in sends if send.acked_before_flush and not self._is_of_group]
        patient = [send for send in sends if not send.acked_before_flush or self._is_of_group]
        visible = [send for send in patient if send.end <= self.confirmed]
        hidden = [send for send in patient if send.end > self.confirmed]
        if hidden:
            self._waiting.add(hidden, max([send.end for send in hidden]))
        if early:
            self._acknowledge(early)
        if visible:
            self._answer(visible)

    def _acknowledge(self, sends: list[PendingSend]) -> None:
        assert sends[0].term == sends[-1].term == self.term
        for submitter, run in split_by_submitter(sends):
            submitter.acknowledge(run)

    def _refuse(self, sends: list[PendingSend], error: StoreError) -> None:
        for submitter, run in split_by_submitter(sends):
            submitter.refuse(run, error)

    def _time_out(self, sends: list[PendingSend]) -> None:
        count = sum(send.count for send in sends)
        if self._is_of_group:
            logger.warning("not committed in time: answered_with_error=%s", count)
            self._refuse(sends, self._unmet(StoreError("a majority of the group has not answered")))
            return
        logger.warning("disk flush is slow: answered_with_timeout=%s", count)
        if self._slaves is None:
            self._answer_late(sends, ResponseCode.FLUSH_DISK_TIMEOUT)
        else:
            self._slaves.take_unflushed(sends)

    def _answer_late(self, sends: list[PendingSend], status: ResponseCode) -> None:
        for submitter, run in split_by_submitter(sends):
            submitter.answer_late(run, status)


def _refusal(reason: str) -> Callable[[object], Any]:
    """Return a function in place of an append that refuses all messages."""

    def refuse(_: object) -> Any:
        raise TermEnded(reason)

    return refuse


def _nobody(position: Position) -> None:
    """Ignore that the log grew: there are no slaves."""
