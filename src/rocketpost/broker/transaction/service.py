"""Transactions: the messages that wait for their end, and the records that the end stores.

The log is the state. Halves and op messages arrive from it one by one while the broker runs, and
are read again after a restart, from the first offsets that are still needed. Pending halves are
checked by ``broker.transaction.checks``; the byte layouts are in ``broker.transaction.log``.

Commit and op message are two records. If only the first survives a crash, the half looks pending
again. So the commit of a half that was read from disk is looked up before the half is used. The
same look-up detects a transaction that is ended twice, which RocketMQ would commit twice.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.group.offsets import NO_OFFSET, OffsetTable
from rocketpost.broker.transaction.arrivals import Arrivals
from rocketpost.broker.transaction.evidence import Evidence
from rocketpost.broker.transaction.evidence import Store as EvidenceStore
from rocketpost.broker.transaction.log import (
    Identity,
    checks_of,
    commit_draft,
    destination,
    ended_offsets,
    first_offset,
    identity_of,
    immunity_ms,
    is_ended_by,
    op_draft,
    resumed_draft,
)
from rocketpost.broker.transaction.ops import UnwrittenOps
from rocketpost.broker.transaction.table import Fate, Half, PendingTable
from rocketpost.broker.transaction.tally import TransactionTally
from rocketpost.codec.faults import IllegalOperation, ServerError, SystemBusy, TopicNotExist
from rocketpost.codec.headers.transaction import EndTransaction
from rocketpost.codec.record import Record
from rocketpost.errors import Fault
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.names import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from rocketpost.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from rocketpost.model.topic import TopicConfig
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY

logger = logging.getLogger(__name__)

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
"""The group whose offsets record the progress in the half and op queues; RocketMQ's name."""

_READ_COUNT: Final = 1024
_FATES: Final = {TRANSACTION_COMMIT: Fate.COMMIT, TRANSACTION_ROLLBACK: Fate.ROLLBACK}


class Rules(NamedTuple):
    """Settings that may change while the broker runs."""

    timeout_ms: int = 6000
    check_max: int = 15
    check_interval_ms: int = 30_000
    op_chars_max: int = 4096
    op_interval_ms: int = 3000
    reserved_ms: int = 72 * 3_600_000


class Ending(NamedTuple):
    """The end of a transaction, to be stored; :meth:`TransactionService.note_stored` follows."""

    fate: Fate
    identity: Identity
    topic: str
    """Destination topic of the message."""
    half: Half | None
    """The pending half; None if it was discarded before."""
    drafts: list[Draft]
    offsets: list[int]
    """Offsets in the op message among the drafts."""


class Store(EvidenceStore, Protocol):
    """The part of the store that transactions use."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it never had a message."""
        ...

    def record_of(
        self, queue: ConsumeQueue, offset: int, position: int, size: int
    ) -> Record | None:
        """Return the record that a queue entry points to; None if it is gone or damaged."""
        ...

    def store_time_at(self, position: int) -> int:
        """Return the store time of the record at a position; -1 if it is gone."""
        ...


class Topics(Protocol):
    """The part of the topic table that transactions use."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of ``topic``."""
        ...

    def create_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        """Return a topic of the system, created if need be."""
        ...


class TransactionService:
    """Tracks the transactions of one broker and ends them. Owned by the loop; never waits.

    Args:
        offsets: Holds the progress in both queues.
        store_host: The address of this broker, for the ids of its records.
        new_unique_id: Creates the ids of op messages.
    """

    def __init__(
        self,
        *,
        store: Store,
        topics: Topics,
        offsets: OffsetTable,
        clock: Clock,
        store_host: bytes,
        new_unique_id: Callable[[], str],
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clock = clock
        self._store_host = store_host
        self._new_unique_id = new_unique_id
        self._evidence = Evidence(store)
        self.arrivals = Arrivals(lambda position: store.record_at(position))
        self._unconfirmed: deque[Half] = deque()
        self._late: set[Identity] = set()
        self.table = PendingTable()
        self.ops = UnwrittenOps()
        self.rules = Rules()
        self.tally = TransactionTally()
        self.on_answer: Callable[[Half], None] = _do_nothing
        """Called when the producer of a half has answered."""
        self.on_end: Callable[[Half], None] = _do_nothing
        """Called when a half is no longer pending."""

    # From the log.

    def note_arrivals(self, arrivals: Iterable[Arrival]) -> bool:
        """Process messages that became visible; return whether any concerns transactions."""
        for arrival in arrivals:
            if arrival.topic in (HALF_TOPIC, OP_HALF_TOPIC):
                self.arrivals.add(arrival)
        return self.read_arrivals()

    def read_arrivals(self) -> bool:
        """Process messages that have arrived; return whether there are halves, or some unread."""
        has_halves = False
        for topic, offset, record, is_late in self.arrivals.read():
            if topic == OP_HALF_TOPIC:
                self.table.note_op(offset, ended_offsets(record) if record is not None else [])
            elif record is not None:
                self._add_copy(record, is_confirmed=not is_late)
                has_halves = True
        return has_halves or self.arrivals.are_late

    def recover(self) -> None:
        """Read both queues again, from the first offsets that are still needed."""
        halves, ops = self._store.queue(HALF_TOPIC, 0), self._store.queue(OP_HALF_TOPIC, 0)
        half_start, op_start = (
            self._saved_offset(HALF_TOPIC, halves),
            self._saved_offset(OP_HALF_TOPIC, ops),
        )
        self.table.start_at(
            int(halves.end) if halves is not None else 0, int(ops.end) if ops is not None else 0
        )
        finished: set[int] = set()
        for op_offset, record in self._records(ops, OP_HALF_TOPIC, op_start, frozenset()):
            offsets = [offset for offset in ended_offsets(record) if offset >= half_start]
            finished.update(offsets)
            self.table.note_op(op_offset, offsets)
        for _, record in self._records(halves, HALF_TOPIC, half_start, finished):
            self._add_copy(record, is_confirmed=False)
        self._unconfirmed.extend(self.table)
        if self._unconfirmed:
            logger.info("transactions pending after the start: count=%s", len(self._unconfirmed))

    def look_up_commits(self, count: int) -> bool:
        """Look up the commits of some halves read from disk; return False once all are done."""
        for _ in range(min(count, len(self._unconfirmed))):
            self.confirm_pending(self._unconfirmed.popleft())
        return bool(self._unconfirmed)

    def confirm_pending(self, half: Half) -> bool:
        """Return whether a half is really pending; finish it if a crash hid its commit."""
        if half.is_confirmed or not half.is_open:
            return half.is_open
        record = self._store.record_at(half.position)
        target = destination(record.properties) if record is not None else None
        is_over = target and self._evidence.commit_of(target[0], half.identity) is not None
        half.is_confirmed = True  # not before: reading may fail
        if not is_over:
            return True
        logger.info("committed before the crash: key=%s", half.identity.unique_key)
        self.finish(half, proof=int(half.position))
        return False

    def advance_progress(self, durable: int) -> None:
        """Advance the saved offsets past everything that is done and on disk."""
        half_floor = self.table.half_floor(durable)
        self._save(HALF_TOPIC, half_floor)
        self._save(OP_HALF_TOPIC, self.table.op_floor(half_floor))

    # Ends.

    def end(self, header: EndTransaction) -> Ending | None:
        """Return the end of a transaction; None if it has already ended in that way.

        Raises:
            Fault: There is no such half, or this producer may not end it, or not in this way.
        """
        fate = _FATES.get(header.commit_or_rollback)
        if fate is None:
            raise ServerError(
                f"commitOrRollback={header.commit_or_rollback} is neither a commit "
                f"({TRANSACTION_COMMIT}) nor a rollback ({TRANSACTION_ROLLBACK})"
            )
        if self.arrivals.are_late:
            self.read_arrivals()
        record, properties = self._require_half(header)
        identity, topic = identity_of(record, properties), properties.get(names.REAL_TOPIC, "")
        half = self.table.find(identity)
        if half is not None:
            self.on_answer(half)
            # The pending one may be a copy that was sent again, and came after the end of this one.
            half.is_confirmed &= half.position == record.position
        if half is not None and half.ending is not None and half.ending is not Fate.DISCARD:
            if half.ending is fate:
                raise SystemBusy("the end of this transaction is already being stored")
            raise IllegalOperation(f"the transaction is already being {half.ending.value}")
        if half is None or not self.confirm_pending(half):
            return self._late_end(record, properties, identity, fate)
        if fate is Fate.COMMIT:
            drafts = [self._commit(record, properties)]
            if self._evidence.is_available:
                half.ending = fate
                return Ending(fate, identity, topic, half, drafts, [])
        else:
            drafts = []
        # If the commit cannot be looked up after a crash, only the op message shows the end.
        offsets = [half.offset, *self.ops.take()]
        half.ending = fate
        return Ending(fate, identity, topic, half, [*drafts, self.op_draft(offsets)], offsets)

    def note_stored(self, ending: Ending, stored: list[Appended]) -> bool:
        """Note how many drafts of an end were stored; return whether the transaction is over."""
        half = ending.half
        written = len(stored) == len(ending.drafts)
        for offset in ending.offsets if not written else ():
            if half is None or offset != half.offset:
                self.add_to_ops(offset)
        self._late.discard(ending.identity)
        if not stored:
            if half is not None and half.is_open and half.ending is ending.fate:
                half.ending = None
                self.table.schedule(half, self._clock.now_ms() + self.rules.timeout_ms)
            return False
        after_ms = None if half is None else self._clock.now_ms() - half.since_ms
        self.tally.count(ending.fate, ending.topic, after_ms)
        if half is not None:
            is_marked = written and half.offset in ending.offsets
            self.finish(half, proof=int(stored[-1].end), is_marked=is_marked)
        return True

    def note_unknown(self, header: EndTransaction) -> None:
        """Note that a producer was asked and does not know the outcome yet."""
        record = self._store.record_at(header.commit_log_offset)
        if record is None or record.topic != HALF_TOPIC:
            return
        if is_ended_by(header, record.properties):
            half = self.table.find(identity_of(record, record.properties))
            if half is not None:
                self.on_answer(half)

    def finish(self, half: Half, *, proof: int, is_marked: bool = False) -> None:
        """Forget a half whose end is in the log before ``proof``."""
        if half.is_open:
            self.table.remove(half, proof=proof)
            if not is_marked:
                self.add_to_ops(half.offset)
            self.on_end(half)

    def add_to_ops(self, offset: int) -> None:
        """Add an offset that is done to the next op message."""
        self.ops.add(offset, now_ms=self._clock.now_ms())

    def op_draft(self, offsets: list[int]) -> Draft:
        """Return the op message that names these offsets."""
        return op_draft(
            offsets,
            now_ms=self._clock.now_ms(),
            store_host=self._store_host,
            unique_key=self._new_unique_id(),
        )

    def require_discard_topic(self) -> None:
        """Create the topic of discarded halves, so that operators can read it."""
        if self._topics.find(CHECK_MAX_TOPIC) is None:
            self._topics.create_internal(CHECK_MAX_TOPIC, queue_nums=1)

    def resume(self, position: int) -> Draft:
        """Return the new half of a discarded transaction.

        Raises:
            Fault: It cannot be asked about again.
        """
        record = self._store.record_at(position) if position >= 0 else None
        if record is None or record.topic != CHECK_MAX_TOPIC:
            raise ServerError(
                f"there is no discarded transaction at position {position}; the id is the message "
                f"id of a message in {CHECK_MAX_TOPIC}"
            )
        properties = record.properties
        target = destination(properties)
        if target is None:
            raise ServerError("the message names no destination, so it cannot be committed")
        identity = identity_of(record, properties)
        if self.table.find(identity) is not None:
            raise IllegalOperation("the transaction is already pending")
        if self._evidence.commit_of(target[0], identity) is not None:
            raise IllegalOperation("the transaction has been committed since")
        return resumed_draft(record, store_host=self._store_host)

    # Inside.

    def _require_half(self, header: EndTransaction) -> tuple[Record, dict[str, str]]:
        position = header.commit_log_offset
        record = self._store.record_at(position) if position >= 0 else None
        if record is None or record.topic != HALF_TOPIC:
            raise ServerError(f"there is no half message at position {position}")
        properties = record.properties
        if not header.from_transaction_check and names.TRANSACTION_IMMUNITY in properties:
            age_ms = self._clock.now_ms() - record.store_ms
            if age_ms > immunity_ms(properties, default_ms=self.rules.timeout_ms):
                raise IllegalOperation("the immunity of the half is over; answer the check instead")
        if not is_ended_by(header, properties):
            group = properties.get(names.PRODUCER_GROUP)
            raise ServerError(f"the half message belongs to the group {group}, or another topic")
        # A power cut may remove a half and store another in its place.
        given = {header.msg_id, header.transaction_id} - {"", None}
        if given and properties.get(names.UNIQUE_KEY) not in given:
            raise ServerError(f"the half message at position {position} is not {header.msg_id}")
        if record.queue_offset != header.tran_state_table_offset:
            raise ServerError(
                f"the half message at position {position} has the queue offset "
                f"{record.queue_offset}, not {header.tran_state_table_offset}"
            )
        return record, properties

    def _late_end(
        self, record: Record, properties: dict[str, str], identity: Identity, fate: Fate
    ) -> Ending | None:
        """Return the end of a transaction that is no longer pending."""
        target = destination(properties)
        is_committed = (
            target is not None and self._evidence.commit_of(target[0], identity) is not None
        )
        if fate is Fate.ROLLBACK:
            if is_committed:
                raise IllegalOperation("the transaction was already committed")
            return None
        if is_committed:
            return None
        if identity in self._late:
            raise SystemBusy("the end of this transaction is already being stored")
        if not self._evidence.was_discarded(identity):
            raise IllegalOperation("the transaction was already rolled back")
        draft = self._commit(record, properties)
        self._late.add(identity)
        return Ending(fate, identity, draft.topic, None, [draft], [])

    def _commit(self, record: Record, properties: dict[str, str]) -> Draft:
        target = destination(properties)
        if target is None:
            raise ServerError("the half message names no destination")
        topic, queue_id = target
        config = self._topics.find(topic)
        if config is None:
            raise TopicNotExist(f"the topic {topic} has been deleted; create it again to commit")
        if queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            queue_id %= max(1, config.write_queue_nums)  # the topic has fewer queues now
        return commit_draft(record, topic=topic, queue_id=queue_id, store_host=self._store_host)

    def _add_copy(self, record: Record, *, is_confirmed: bool) -> None:
        """Add a copy of a half, the first or a newer one."""
        properties = record.properties
        identity = identity_of(record, properties)
        checks = checks_of(properties)
        offset, position = record.queue_offset, record.position
        half = self.table.find(identity)
        is_first = first_offset(record, properties) == offset
        if half is None:
            since_ms = self._since_ms(record, properties, checks)
        else:
            since_ms = record.store_ms if is_first and not checks else half.since_ms
        due_ms = self._due_ms(record, properties, checks=checks, since_ms=since_ms)
        if half is None:
            half = Half(
                identity,
                offset=offset,
                position=position,
                group=properties.get(names.PRODUCER_GROUP, ""),
                checks=checks,
                since_ms=since_ms,
                due_ms=due_ms,
                is_confirmed=is_confirmed and is_first and not checks,
                topic=properties.get(names.REAL_TOPIC, ""),
            )
            self.table.add(half)
            return
        before, half.checks, half.since_ms = half.offset, checks, since_ms
        self.table.move(half, offset=offset, position=position, proof=position + record.size)
        if half.covered != before:
            self.add_to_ops(before)
        half.covered = -1
        self.table.schedule(half, due_ms)

    def _since_ms(self, record: Record, properties: dict[str, str], checks: int) -> int:
        """Return the store time of the first copy of a half; estimated if that copy is gone."""
        first = first_offset(record, properties)
        if first == record.queue_offset and not checks:
            return record.store_ms
        queue = self._store.queue(HALF_TOPIC, 0)
        entry = queue.entry(first) if queue is not None and first != record.queue_offset else None
        since_ms = self._store.store_time_at(entry[0]) if entry is not None else -1
        return min(since_ms if since_ms > 0 else record.born_ms, record.store_ms)

    def _due_ms(
        self, record: Record, properties: dict[str, str], *, checks: int, since_ms: int
    ) -> int:
        immune_ms = immunity_ms(properties, default_ms=self.rules.timeout_ms)
        if checks:
            start_ms, wait_ms = record.store_ms, self.rules.check_interval_ms
        else:
            start_ms, wait_ms = since_ms, immune_ms
        # The clock may have been set back: nothing waits longer than its time from now.
        return min(start_ms, self._clock.now_ms()) + wait_ms

    def _saved_offset(self, topic: str, queue: ConsumeQueue | None) -> int:
        saved = self._offsets.query(topic, TRANSACTION_GROUP, 0)
        if queue is None:
            return 0
        first, end = int(queue.first), int(queue.end)
        if saved != NO_OFFSET and not first <= saved <= end:
            logger.warning(
                "progress of transactions corrected: topic=%s saved=%s first=%s end=%s",
                topic, saved, first, end,
            )  # fmt: skip
        return min(max(saved, first), end)

    def _save(self, topic: str, offset: int) -> None:
        if offset == self._offsets.query(topic, TRANSACTION_GROUP, 0):
            return
        try:
            self._offsets.commit(topic, TRANSACTION_GROUP, 0, offset)
        except Fault as error:
            # After a restart, more than needed is read, but never less.
            logger.warning("progress of transactions not saved: reason=%s", error)

    def _records(
        self,
        queue: ConsumeQueue | None,
        topic: str,
        offset: int,
        skipped: frozenset[int] | set[int],
    ) -> Iterator[tuple[int, Record]]:
        """Yield the records of a queue from an offset on, except those at skipped offsets."""
        while queue is not None and offset < queue.end:
            data = queue.read(offset, min(_READ_COUNT, int(queue.end) - offset))
            count = len(data) // ENTRY.size
            if not count:
                return
            for position, size, _ in ENTRY.iter_unpack(data[: count * ENTRY.size]):
                if offset not in skipped:
                    record = self._store.record_of(queue, offset, position, size)
                    if record is not None:
                        yield offset, record
                offset += 1


def _do_nothing(half: Half) -> None:
    """Do nothing."""
