"""Pending halves: decides when to check them with their producers, and when to give up.

A half is due when its immunity is over, and ``transactionCheckInterval`` after each check. It is
then stored again with a higher count, and a member of its producer group is asked. After
``transactionCheckMax`` checks, or when it is older than messages are kept, it is moved to
``TRANS_CHECK_MAX_TIME_TOPIC`` for operators.

Unlike RocketMQ, only checks that a producer could receive are counted: while no member of the group
is connected, its halves wait for one. No group has more than ``ASKED_MAX`` unanswered checks: a
Java client drops those beyond its queue of 2000, and each lost check would count.
"""

from __future__ import annotations

import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec

from rocketpost.broker.delivery import Wait
from rocketpost.broker.transaction.log import destination, discard_draft, renewed_draft
from rocketpost.broker.transaction.service import TransactionService
from rocketpost.broker.transaction.table import Fate, Half
from rocketpost.codec.record import Record
from rocketpost.errors import LocalProtocolError, RocketpostError
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.store.draft import Appended, Draft

logger = logging.getLogger(__name__)

ASKED_MAX: Final = 1000
"""Unanswered checks with one producer group."""
LAG_MAX: Final = 100_000
"""Lag of the oldest pending half behind the end of the queue; a start reads all of it."""
BATCH_COUNT_MAX: Final = 256
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
_LAG_A_HALF: Final = 4
_RETRY_MS: Final = 1000


class Work(NamedTuple):
    """Drafts to store now; :meth:`CheckService.note_stored` is then told the result."""

    drafts: list[Draft]
    """First a copy of each of ``halves``, then an op message if there are ``offsets``."""
    halves: list[Half]
    asked: list[bool]
    """For each half, whether it is asked about; the others are only kept or discarded."""
    offsets: list[int]


class Question(NamedTuple):
    """A question to a member of a producer group."""

    group: str
    record: Record
    """The half, with its destination topic and queue."""
    offset: int
    position: int
    unique_key: str


class CheckService:
    """Decides about halves that are due. Owned by the event loop; never waits.

    Args:
        has_producer: Whether a member of a group is connected and can be asked.
    """

    def __init__(
        self,
        *,
        transactions: TransactionService,
        record_at: Callable[[int], Record | None],
        clock: Clock,
        store_host: bytes,
        has_producer: Callable[[str], bool],
    ) -> None:
        self._transactions = transactions
        self._table = transactions.table
        self._record_at = record_at
        self._clock = clock
        self._store_host = store_host
        self._has_producer = has_producer
        self._asked: dict[str, int] = {}
        # Ordered, because a plain dictionary walks over all deleted entries to find its first.
        self._waiting: dict[str, OrderedDict[Half, None]] = {}
        self._moved_at = 0
        self._seen_ms = clock.now_ms()
        self.questions = 0
        transactions.on_answer = self._note_answer
        transactions.on_end = self._note_end

    @property
    def waiting(self) -> dict[str, int]:
        """Number of halves that wait for a producer, by group."""
        return {group: len(halves) for group, halves in self._waiting.items() if halves}

    def next(self) -> Work | Wait:
        """Return the drafts to store now, or how long there are none."""
        now_ms = self._read_clock()
        self._transactions.read_arrivals()
        with self._collecting(now_ms) as batch:
            self._move_oldest(batch)
            while not batch.is_full:
                half = self._table.take_due(now_ms)
                if half is None:
                    break
                try:
                    self._decide(half, batch, now_ms)
                except (RocketpostError, OSError) as error:
                    logger.warning(
                        "transaction not checked, will be tried again: group=%s key=%s reason=%s",
                        half.group, half.identity.unique_key, error,
                    )  # fmt: skip
                    self._postpone(half, now_ms)
        ops, rules = self._transactions.ops, self._transactions.rules
        ops_ms = ops.due_ms(chars_max=rules.op_chars_max, interval_ms=rules.op_interval_ms)
        if batch.halves or (ops_ms is not None and ops_ms <= now_ms):
            return self._work(batch)
        retry_ms = now_ms + _RETRY_MS if self._transactions.arrivals.are_late else None
        due_ms = [ms for ms in (ops_ms, self._table.next_due_ms(), retry_ms) if ms is not None]
        return Wait(max(0, min(due_ms) - now_ms) if due_ms else None)

    def flush(self) -> Work | None:
        """Return the op message that must be stored before the broker stops, if any."""
        return self._work(_Batch()) if len(self._transactions.ops) else None

    def move_halves_before(self, position: int) -> Work | None:
        """Return drafts that move halves out of positions that are about to be deleted, if any."""
        now_ms = self._read_clock()
        with self._collecting(now_ms) as batch:
            for half in self._table.find_before(position=position):
                if batch.is_full:
                    break
                if half.ending is None and not half.is_moving:
                    self._move_or_discard(half, batch, now_ms)
        return self._work(batch) if batch.halves else None

    def is_needed_before(self, position: int) -> bool:
        """Tell whether there are halves before a position; if so, it may not be deleted."""
        return bool(self._table.find_before(position=position))

    def note_stored(self, work: Work, stored: list[Appended]) -> list[Question]:
        """Note how many drafts of a work were stored; return the questions to ask now."""
        now_ms = self._clock.now_ms()
        is_marked = bool(work.offsets) and len(stored) == len(work.drafts)
        questions = []
        for at, (half, is_asked) in enumerate(zip(work.halves, work.asked, strict=True)):
            if at >= len(stored):
                self._postpone(half, now_ms)
                continue
            if not is_marked:
                self._transactions.add_to_ops(work.offsets[at])
            if half.ending is Fate.DISCARD:
                self._transactions.tally.count(Fate.DISCARD, half.topic)
                self._transactions.finish(half, proof=int(stored[at].end), is_marked=True)
            elif is_asked and half.is_open and half.ending is None:
                question = self._question(half)
                if question is not None:
                    questions.append(question)
        if not is_marked:
            for offset in work.offsets[len(work.halves) :]:
                self._transactions.add_to_ops(offset)
        self.questions += len(questions)
        return questions

    def note_producer(self, group: str) -> bool:
        """Schedule the halves that wait for this group; return whether there are any."""
        return self._release(group)

    # Inside.

    @contextlib.contextmanager
    def _collecting(self, now_ms: int) -> Iterator[_Batch]:
        """Collect halves to store; if that fails, let all of them wait for a later try."""
        batch = _Batch()
        try:
            yield batch
        except Exception:
            for half in batch.halves:
                self._postpone(half, now_ms)
            raise

    def _read_clock(self) -> int:
        now_ms = self._clock.now_ms()
        if now_ms < self._seen_ms:
            self._table.shift(self._seen_ms - now_ms)
        self._seen_ms = now_ms
        return now_ms

    def _move_oldest(self, batch: _Batch) -> None:
        """Move halves that block the progress of the whole queue to its end."""
        end = self._table.half_end
        # Many halves need much room anyway; moving them would only make the queue longer.
        limit = end - max(LAG_MAX, _LAG_A_HALF * len(self._table))
        if limit <= self._table.half_floor(0) or end - self._moved_at < LAG_MAX // 10:
            return
        for half in self._table.find_before(offset=limit):
            if batch.is_full:
                return  # the others follow next time
            record = self._record_at(half.position)
            if record is not None and half.ending is None and not half.is_moving:
                self._renew(half, record, batch)
        self._moved_at = end

    def _decide(self, half: Half, batch: _Batch, now_ms: int) -> None:
        """Ask about a half, discard it, or let it wait."""
        if half.is_moving:
            return  # scheduled again when its copy is stored or has failed
        self._note_answer(half)  # if it was asked about before, that question no longer counts
        half.is_confirmed &= half.checks > 0  # it may have been sent again, and come after the end
        if not self._transactions.confirm_pending(half):
            return
        rules = self._transactions.rules
        if half.checks >= rules.check_max or self._is_too_old(half, now_ms):
            self._discard(half, batch)
        elif not self._has_producer(half.group) or self._asked.get(half.group, 0) >= ASKED_MAX:
            self._waiting.setdefault(half.group, OrderedDict())[half] = None
            self._table.schedule(half, half.since_ms + rules.reserved_ms + 1)
        else:
            record = self._read(half)
            if record is not None:
                self._renew(half, record, batch, is_asked=True)

    def _move_or_discard(self, half: Half, batch: _Batch, now_ms: int) -> None:
        """Discard a half that is older than messages are kept; keep a younger one."""
        if not self._transactions.confirm_pending(half):
            return
        if self._is_too_old(half, now_ms):
            self._discard(half, batch)
            return
        record = self._read(half)
        if record is not None:
            self._renew(half, record, batch)

    def _renew(self, half: Half, record: Record, batch: _Batch, *, is_asked: bool = False) -> None:
        """Store a half again; discard it at once if it has no room for the count."""
        try:
            draft = renewed_draft(
                record, checks=half.checks + is_asked, store_host=self._store_host
            )
        except LocalProtocolError as error:
            logger.warning("transaction cannot be checked: reason=%s", error)
            self._discard(half, batch)
            return
        batch.add(half, draft, is_asked=is_asked)
        if is_asked:
            half.is_asked = True
            self._asked[half.group] = self._asked.get(half.group, 0) + 1

    def _is_too_old(self, half: Half, now_ms: int) -> bool:
        return now_ms - half.since_ms > self._transactions.rules.reserved_ms

    def _discard(self, half: Half, batch: _Batch) -> None:
        record = self._read(half)
        if record is None:
            return
        logger.warning(
            "transaction discarded, see mqadmin transactions -d: group=%s key=%s checks=%s",
            half.group, half.identity.unique_key, half.checks,
        )  # fmt: skip
        self._transactions.require_discard_topic()
        half.ending = Fate.DISCARD
        batch.add(half, discard_draft(record, store_host=self._store_host))

    def _read(self, half: Half) -> Record | None:
        record = self._record_at(half.position)
        if record is None:
            logger.error(
                "pending transaction lost, its segment was deleted: group=%s key=%s",
                half.group, half.identity.unique_key,
            )  # fmt: skip
            self._transactions.finish(half, proof=0)
        return record

    def _work(self, batch: _Batch) -> Work:
        offsets = [*(half.offset for half in batch.halves), *self._transactions.ops.take()]
        drafts = [*batch.drafts, self._transactions.op_draft(offsets)]
        return Work(drafts, batch.halves, batch.asked, offsets)

    def _question(self, half: Half) -> Question | None:
        """Return the question about a half that was stored again; None if it cannot be asked."""
        try:
            record = self._record_at(half.position)
        except OSError as error:
            logger.warning(
                "transaction not asked about before its next check: group=%s key=%s reason=%s",
                half.group, half.identity.unique_key, error,
            )  # fmt: skip
            return None
        properties = record.properties if record is not None else {}
        target = destination(properties)
        if record is None or target is None:
            return None
        record = msgspec.structs.replace(record, topic=target[0], queue_id=target[1])
        key = properties.get(names.UNIQUE_KEY, "")
        return Question(half.group, record, half.offset, half.position, key)

    def _postpone(self, half: Half, now_ms: int) -> None:
        half.covered = -1
        if half.ending is Fate.DISCARD:
            half.ending = None
        self._note_answer(half)
        if half.is_open and half.ending is None:
            self._table.schedule(half, max(half.due_ms, now_ms + _RETRY_MS))

    def _note_answer(self, half: Half) -> None:
        if half.is_asked:
            half.is_asked = False
            left = self._asked.get(half.group, 0) - 1
            if left > 0:
                self._asked[half.group] = left
            else:
                self._asked.pop(half.group, None)
            self._release(half.group)

    def _note_end(self, half: Half) -> None:
        self._note_answer(half)
        waiting = self._waiting.get(half.group)
        if waiting is not None:
            waiting.pop(half, None)
            if not waiting:
                del self._waiting[half.group]

    def _release(self, group: str) -> bool:
        """Schedule as many waiting halves as may be asked about."""
        waiting = self._waiting.get(group)
        if not waiting:
            return False
        room = ASKED_MAX - self._asked.get(group, 0)
        released = list(islice(waiting, max(0, room)))
        for half in released:
            del waiting[half]
            if half.is_open and half.ending is None:
                self._table.schedule(half, self._clock.now_ms())
        if not waiting:
            del self._waiting[group]
        return bool(released)


class _Batch:
    """Copies of halves to be stored together."""

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.halves: list[Half] = []
        self.asked: list[bool] = []
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        return len(self.halves) >= BATCH_COUNT_MAX or self._bytes >= BATCH_BYTES_MAX

    def add(self, half: Half, draft: Draft, *, is_asked: bool = False) -> None:
        half.covered = half.offset
        self.halves.append(half)
        self.drafts.append(draft)
        self.asked.append(is_asked)
        self._bytes += len(draft.body)
