"""Popping in order: one batch of a queue at a time, and nothing after it until it is finished.

Every change of a batch (handed out, acknowledged, given more time) is a record of the revive topic,
stored before it takes effect. Records of one queue and group share a revive queue, so the newest
record is the last that is read after a crash. ``broker.pop.batch`` describes batches.

Invariants:

- A group has one current batch of a queue, and the queue hands out nothing after it.
- The times of the batches of a queue increase: a receipt identifies one delivery.
- The newest stored record of an unfinished batch is needed after a crash; older ones are not.
- A change that fails leaves the batch and the group's offset unchanged.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Container
from typing import Final, TypeVar

from rocketpost.broker.group.offsets import NO_OFFSET, OffsetTable
from rocketpost.broker.pop.batch import FORGOTTEN_AFTER_MS, REMEMBERED_MAX, Batch, Batches
from rocketpost.broker.pop.batch_changes import (
    BatchAcknowledgement,
    BatchChange,
    BatchDelivery,
    BatchExtension,
)
from rocketpost.broker.pop.changes import Change, ChangeSteps
from rocketpost.broker.pop.log import PopLog
from rocketpost.broker.pop.progress import PopProgress
from rocketpost.broker.pop.scan import QueueScan
from rocketpost.broker.pop.service import PoppedMessages, PopResult
from rocketpost.broker.pop.targets import COUNT_MAX, Cursor, PopRequest, Target, Targets
from rocketpost.broker.pop.watermark import ReviveWatermark
from rocketpost.broker.steps import QUEUES_AT_A_STEP, Steps
from rocketpost.codec.faults import MessageIllegal, NoMessage, SystemBusy
from rocketpost.codec.headers.pop import ORDER_QUEUE
from rocketpost.errors import Fault, StoreError
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.clock import Clock
from rocketpost.store.queue.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

BATCHES_MAX: Final = 100_000
"""Batches of all groups in all queues; beyond it no new one is handed out."""
_RELEASED_AT_ONCE: Final = 256
_STALE_MAX: Final = 1024


B = TypeVar("B", bound=BatchChange)


class OrderService:
    """Hands out messages in order. Owned by the event loop; waits for nothing.

    Args:
        watermark: Tracks the needed records of the revive topic.
        revive_queue_count: Number of queues of the revive topic.
    """

    def __init__(
        self,
        *,
        scan: QueueScan,
        targets: Targets,
        offsets: OffsetTable,
        batches: Batches,
        watermark: ReviveWatermark,
        log: PopLog,
        progress: PopProgress,
        clock: Clock,
        revive_queue_count: int,
    ) -> None:
        self._scan = scan
        self._targets = targets
        self._offsets = offsets
        self._batches = batches
        self._watermark = watermark
        self._log = log
        self._progress = progress
        self._clock = clock
        self._revive_queue_count = revive_queue_count
        self._blocked: list[tuple[int, Cursor]] = []
        self._storing: dict[Cursor, Change] = {}
        self.on_release: Callable[[str, int], None] = _do_nothing
        """Called with topic and number of a queue that may hand out messages again."""
        self.on_due: Callable[[], None] = lambda: None
        """Called when another queue may be the next to be released."""
        for cursor, batch in batches:
            self._watch(cursor, batch)

    def pop_steps(self, request: PopRequest) -> ChangeSteps[PopResult]:
        """Take the next batch of each queue that has no current one.

        Raises:
            SystemBusy: Too many batches are unfinished.
            StoreError: The batch cannot be stored.
        """
        now_ms, targets = self._clock.now_ms(), list(self._targets.find(request))
        pop_ms = yield from self._pop_ms(targets, request.group, now_ms)
        parts: list[PoppedMessages] = []
        count, size, rest, is_cut = (
            min(request.count_max, COUNT_MAX),
            self._scan.bytes_max,
            0,
            False,
        )
        for number, target in enumerate(targets, 1):
            if number % QUEUES_AT_A_STEP == 0:
                yield None
            queue = self._scan.queue(target.topic, target.queue_id)
            cursor = target.cursor(request.group)
            if queue is None:
                if request.fixes_start and self._offsets.query(*cursor) == NO_OFFSET:
                    self._commit(cursor, 0)
                continue
            if self._is_newer(cursor, pop_ms):
                is_cut = True  # another pop ran between two steps; receipts must differ
                continue
            has_room = count > 0 and size > 0
            # A reset has already set the offset. It ends the batch before, even at its offset.
            is_reset = has_room and self._offsets.has_reset(*cursor)
            offset = self._position(cursor, queue, request)
            self._commit(cursor, offset)
            before = None if is_reset else self._batches.find(cursor, offset)
            if has_room and not _is_blocked(before, request, now_ms):
                room = count, size
                part, passed = self._take(
                    target, queue, offset, request, before, is_reset, room=room, pop_ms=pop_ms
                )
                if part is not None:
                    try:
                        yield part.change
                    except StoreError:
                        if not parts:
                            raise
                        break  # the batches taken so far are handed out
                if part is not None:
                    parts.append(part)
                    count -= len(part.offsets)
                    size -= sum(map(len, part.views))
                is_cut = is_cut or (part is None and passed < queue.end)
                offset = passed
                if request.is_filtered:
                    yield None
            rest += max(0, int(queue.end) - offset)
        return PopResult(parts, pop_ms, request.invisible_ms, ORDER_QUEUE, rest, is_cut)

    def has_message(self, request: PopRequest) -> Steps[bool]:
        """Tell whether a pop might find a message now."""
        now_ms = self._clock.now_ms()
        for number, target in enumerate(self._targets.find(request), 1):
            if number % QUEUES_AT_A_STEP == 0:
                yield
            queue = self._scan.queue(target.topic, target.queue_id)
            cursor = target.cursor(request.group)
            if queue is None:
                continue
            offset = self._position(cursor, queue, request)
            is_reset = self._offsets.has_reset(*cursor)
            batch = None if is_reset else self._batches.find(cursor, offset)
            if offset < queue.end and not _is_blocked(batch, request, now_ms):
                return True
        return False

    def ack(self, cursor: Cursor, pop_ms: int, offset: int) -> Change | None:
        """Acknowledge a message; None if nothing is left to store, which is not an error.

        If another request is already acknowledging it, that change is returned.

        Raises:
            MessageIllegal: The message is not handed out.
        """
        committed = self._offsets.query(*cursor)
        if offset < committed:
            return self._storing.get(cursor)
        batch = self._batches.find(cursor, committed)
        if batch is None or offset not in batch.offsets:
            raise MessageIllegal(f"the message at {offset} was not popped in order")
        return self._ack(cursor, batch, [offset]) if batch.pop_ms == pop_ms else None

    def ack_all(self, cursor: Cursor, pop_ms: int, offsets: Container[int]) -> Change | None:
        """Acknowledge the messages of a batch that are in ``offsets``."""
        batch = self._batches.find(cursor, self._offsets.query(*cursor))
        if batch is None or batch.pop_ms != pop_ms:
            return None
        return self._ack(cursor, batch, [each for each in batch.offsets if each in offsets])

    def change_invisible_time(
        self, cursor: Cursor, pop_ms: int, offset: int, invisible_ms: int
    ) -> BatchExtension:
        """Set the redelivery of an unacknowledged message to ``invisible_ms`` from now.

        Raises:
            NoMessage: The receipt is no longer valid: acknowledged, or handed out again.
        """
        batch = self._batches.find(cursor, self._offsets.query(*cursor))
        if batch is None or batch.pop_ms != pop_ms or offset not in batch.left:
            raise NoMessage("the receipt is no longer valid: acknowledged, or its time is over")
        before_ms = batch.visible_ms.get(offset)
        visible_ms = batch.visible_ms[offset] = self._clock.now_ms() + invisible_ms
        change = self._change(BatchExtension, cursor, batch)
        change.offset, change.before_ms = offset, before_ms
        change.pop_ms, change.invisible_ms = pop_ms, visible_ms - pop_ms
        return change

    def settle(self, change: Change) -> None:
        """Apply a stored change of a batch, or undo a failed one."""
        assert isinstance(change, BatchChange)
        self._settle_record(change)
        if isinstance(change, BatchDelivery):
            self._settle_delivery(change)
        elif isinstance(change, BatchAcknowledgement):
            self._settle_acknowledgement(change)
        else:
            assert isinstance(change, BatchExtension)
            if not change.is_stored:
                _restore(change.batch.visible_ms, change.offset, change.before_ms)
            self._watch(change.cursor, change.batch)

    def until_ms(self, cursor: Cursor, offset: int) -> int | None:
        """Return the time until which a message is handed out; None if it is not."""
        batch = self._batches.find(cursor, self._offsets.query(*cursor))
        if batch is None or offset not in batch.left:
            return None
        return batch.visible_ms.get(offset, batch.pop_ms + batch.invisible_ms)

    # Release of blocked queues.

    @property
    def release_count(self) -> int:
        """Number of times at which a queue may have to be released."""
        return len(self._blocked)

    def next_due_ms(self) -> int | None:
        """Return when the next queue may hand out messages again; None if none is blocked."""
        while self._blocked:
            until_ms, cursor = self._blocked[0]
            if self._is_awaited(until_ms, cursor):
                return until_ms
            heapq.heappop(self._blocked)
        return None

    def revive(self) -> list[Change]:
        """Report queues that may hand out messages again; nothing is stored for that."""
        now_ms = self._clock.now_ms()
        for _ in range(_RELEASED_AT_ONCE):
            due_ms = self.next_due_ms()
            if due_ms is None or due_ms > now_ms:
                break
            cursor = heapq.heappop(self._blocked)[1]
            self.on_release(cursor.topic, cursor.queue_id)
        return []

    def clean(self) -> None:
        """Remove batches that have not changed for long, or that are no longer current."""
        oldest_ms = self._clock.now_ms() - FORGOTTEN_AFTER_MS
        for cursor, batch in self._batches:
            is_moved = batch.next_offset != self._offsets.query(*cursor)
            if (is_moved and cursor not in self._storing) or batch.touched_ms < oldest_ms:
                self._forget(cursor, batch)

    # Taking.

    def _pop_ms(self, targets: list[Target], group: str, now_ms: int) -> Steps[int]:
        """Return a time that no earlier batch of these queues has, to tell receipts apart."""
        pop_ms = now_ms
        for number, target in enumerate(targets, 1):
            if number % QUEUES_AT_A_STEP == 0:
                yield
            earlier = self._batches.newest(target.cursor(group))
            if earlier is not None:
                pop_ms = max(pop_ms, earlier.pop_ms + 1)
        return pop_ms

    def _is_newer(self, cursor: Cursor, pop_ms: int) -> bool:
        batch = self._batches.newest(cursor)
        return batch is not None and batch.pop_ms >= pop_ms

    def _position(self, cursor: Cursor, queue: ConsumeQueue, request: PopRequest) -> int:
        offset = self._offsets.query(*cursor)
        if offset == NO_OFFSET:
            offset = self._scan.initial(cursor, queue, request)
        return min(max(offset, int(queue.first)), int(queue.end))

    def _take(
        self,
        target: Target,
        queue: ConsumeQueue,
        offset: int,
        request: PopRequest,
        before: Batch | None,
        is_reset: bool,
        *,
        room: tuple[int, int],
        pop_ms: int,
    ) -> tuple[PoppedMessages | None, int]:
        """Take a batch after ``before``; return it, and where the search in the queue ended.

        A pending reset has taken effect then.
        """
        cursor = target.cursor(request.group)
        replaced = self._batches.newest(cursor)
        if replaced is None and len(self._batches) >= BATCHES_MAX:
            raise SystemBusy(f"[OVERLOAD]{len(self._batches)} ordered batches are unfinished")
        finished = {each for each in before.finished if each >= offset} if before else set()
        count_max = min(room[0], REMEMBERED_MAX - min(len(finished), REMEMBERED_MAX - 1))
        found = self._scan.find(
            queue, offset, request, count_max=count_max + len(finished), bytes_max=room[1]
        )
        if is_reset:  # not before the queue has been read: that may fail
            self._offsets.take_reset(*cursor)
            self._commit(cursor, offset)
        chosen = [
            (each, view)
            for each, view in zip(found.offsets, found.views, strict=True)
            if each not in finished
        ][:count_max]
        if not chosen:
            if found.next_offset > offset:
                self._commit(cursor, found.next_offset)
                if replaced is not None:
                    self._forget(cursor, replaced)
            return None, found.next_offset
        offsets = [each for each, _ in chosen]
        batch = _successor(before, offsets, finished, request, pop_ms)
        batch.touched_ms = self._clock.now_ms()
        self._batches.put(cursor, batch)
        self._commit(cursor, batch.next_offset)  # skips unwanted messages before the batch
        change = self._change(BatchDelivery, cursor, batch, replaced)
        change.before, change.offset_before, change.is_reset = replaced, offset, is_reset
        views = [view for _, view in chosen]
        return PoppedMessages(*target, offsets, views, change, batch.counts), offsets[-1] + 1

    def _settle_delivery(self, change: BatchDelivery) -> None:
        cursor, before = change.cursor, change.before
        if change.is_stored:
            self._watch(cursor, change.batch)
        elif self._batches.newest(cursor) is change.batch:
            self._batches.put(cursor, before)
            if self._offsets.query(*cursor) == change.batch.next_offset:
                self._commit(cursor, change.offset_before)
                if change.is_reset:  # it still has to end the batch before
                    self._offsets.reset(*cursor, change.offset_before)
            if before is not None and before.blocked_until_ms > self._clock.now_ms():
                self._watch(cursor, before)

    def _ack(self, cursor: Cursor, batch: Batch, offsets: list[int]) -> Change | None:
        fresh = [each for each in offsets if each not in batch.acked]
        if not fresh:
            # Another request acknowledged it; its change must be stored before this answer.
            return self._storing.get(cursor)
        batch.acked.update(fresh)
        batch.touched_ms = self._clock.now_ms()
        change = self._change(BatchAcknowledgement, cursor, batch)
        change.offsets = fresh
        self._commit(cursor, batch.next_offset)
        return change

    def _settle_acknowledgement(self, change: BatchAcknowledgement) -> None:
        cursor, batch = change.cursor, change.batch
        if not change.is_stored:
            batch.acked.difference_update(change.offsets)
            self._commit(cursor, batch.next_offset)
            self._watch(cursor, batch)
            return
        if batch.is_over and self._batches.newest(cursor) is batch:
            self._forget(cursor, batch)
        if self._clock.now_ms() >= batch.blocked_until_ms:
            self.on_release(cursor.topic, cursor.queue_id)
        else:
            self._watch(cursor, batch)

    # Records.

    def _change(
        self, kind: type[B], cursor: Cursor, batch: Batch, replaced: Batch | None = None
    ) -> B:
        """Return a change that stores the batch's state, replacing its or another's record."""
        revive_queue = self._revive_queue(cursor)
        drafts = [self._log.order_draft(cursor, batch, revive_queue, self._clock.now_ms())]
        revive_offset = self._progress.next_offset(revive_queue)
        change = kind(
            drafts,
            cursor,
            batch,
            owner=replaced or batch,
            revive_queue=revive_queue,
            revive_offset=revive_offset,
        )
        assert revive_offset > change.replaced, "a record replaces an older one"
        self._watermark.add(revive_queue, revive_offset, batch)
        batch.revive_offset = revive_offset
        self._storing[cursor] = change
        self._batches.touch()
        return change

    def _settle_record(self, change: BatchChange) -> None:
        batch, revive_queue = change.batch, change.revive_queue
        if self._storing.get(change.cursor) is change:
            del self._storing[change.cursor]
        if not change.is_stored:
            self._watermark.discard(revive_queue, change.revive_offset, batch)
            # If several changes fail in turn, the record that the first one replaces stays valid.
            stored = change.replaced if change.owner is batch else -1
            batch.revive_offset = min(batch.revive_offset, stored)
            return
        self._progress.note_applied(revive_queue, change.revive_offset)
        if change.replaced >= 0:
            self._watermark.end(revive_queue, change.replaced, change.owner)
            self._progress.note_ended(revive_queue)

    def _forget(self, cursor: Cursor, batch: Batch) -> None:
        self._batches.put(cursor, None)
        if batch.revive_offset >= 0:
            revive_queue = self._revive_queue(cursor)
            self._watermark.end(revive_queue, batch.revive_offset, batch)
            self._progress.note_ended(revive_queue)

    def _revive_queue(self, cursor: Cursor) -> int:
        return string_hash("@".join(map(str, cursor))) % self._revive_queue_count

    def _watch(self, cursor: Cursor, batch: Batch) -> None:
        until_ms = batch.blocked_until_ms
        if until_ms:
            heapq.heappush(self._blocked, (until_ms, cursor))
            if len(self._blocked) > 2 * len(self._batches) + _STALE_MAX:
                # Most batches are finished long before the end of their time.
                self._blocked = [each for each in set(self._blocked) if self._is_awaited(*each)]
                heapq.heapify(self._blocked)
            self.on_due()

    def _is_awaited(self, until_ms: int, cursor: Cursor) -> bool:
        batch = self._batches.newest(cursor)
        return batch is not None and batch.blocked_until_ms == until_ms

    def _commit(self, cursor: Cursor, offset: int) -> None:
        if offset == self._offsets.query(*cursor):
            return
        try:
            self._offsets.commit(*cursor, offset)
        except Fault as error:
            # The messages are handed out anyway; the group will receive them once more.
            logger.warning("offset not committed: cursor=%s reason=%s", cursor, error)


def _is_blocked(batch: Batch | None, request: PopRequest, now_ms: int) -> bool:
    """Tell whether a queue with this current batch hands out nothing more now."""
    if batch is None or (request.attempt_id and request.attempt_id == batch.attempt_id):
        return False
    return now_ms < batch.blocked_until_ms


def _successor(
    before: Batch | None, offsets: list[int], finished: set[int], request: PopRequest, pop_ms: int
) -> Batch:
    """Return the batch of ``offsets`` that follows ``before``, or is the first."""
    last = offsets[-1]
    within = {each for each in finished if each < last}
    batch = Batch(
        sorted({*offsets, *within}),
        pop_ms=pop_ms,
        invisible_ms=request.invisible_ms,
        attempt_id=request.attempt_id,
    )
    batch.acked = within
    batch.ahead = {each for each in finished if each > last}
    if before is not None:
        is_same = bool(request.attempt_id) and request.attempt_id == before.attempt_id
        for offset in offsets:
            if offset in before.offsets:
                count = before.counts.get(offset, 0) + (not is_same)
                if count:
                    batch.counts[offset] = count
    return batch


def _restore(table: dict[int, int], key: int, value: int | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _do_nothing(_: str, __: int) -> None:
    """Do nothing."""
