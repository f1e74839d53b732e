"""Popping: messages handed out one by one to any client, and redelivered unless acknowledged.

A pop reads from the group's offset in each queue and has a checkpoint stored for the messages it
takes (``broker.pop.changes``). Once the checkpoint is stored, the messages are handed out and the
group's offset moves. While checkpoints of a queue are being stored, later pops continue after them,
so no pop waits for a queue. If storing one fails, every later one of the same queue fails as well
(there is one log), and the group's offset has not moved, so nothing is lost. ADR 0015 has the full
description.

Invariants:

- The claims of a group in a queue are in the order of their offsets, and settle in that order.
- The group's offset moves past a claim only when it and all earlier ones are stored.
- A receipt identifies one delivery: no two checkpoints in flight have the same key.
- The record of a checkpoint gets the revive offset that the checkpoint has.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketpost.broker.group.offsets import NO_OFFSET, OffsetTable
from rocketpost.broker.pop.changes import Change, ChangeSteps
from rocketpost.broker.pop.in_flight import Checkpoint, InFlightTable, Key
from rocketpost.broker.pop.log import PopLog
from rocketpost.broker.pop.progress import PopProgress
from rocketpost.broker.pop.scan import QueueScan, ScanResult
from rocketpost.broker.pop.targets import COUNT_MAX, Cursor, PopRequest, Targets
from rocketpost.broker.steps import QUEUES_AT_A_STEP, Steps
from rocketpost.codec.faults import SystemBusy
from rocketpost.errors import Fault, StoreError
from rocketpost.model.clock import Clock
from rocketpost.store.draft import Draft
from rocketpost.store.queue.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

FLIGHT_MAX: Final = 1_000_000
"""Messages in flight; beyond it nothing is handed out."""


class PoppedMessages(NamedTuple):
    """Messages from one queue; they may be handed out when their checkpoint is stored."""

    retry: int
    topic: str
    queue_id: int
    offsets: list[int]
    views: list[memoryview]
    change: Change
    counts: Mapping[int, int] = {}
    """Number of earlier deliveries of each message, if any and if it was popped in order."""

    @property
    def start_offset(self) -> int:
        """The start offset of the checkpoint, as in the receipts of these messages."""
        return self.offsets[0]


class PopResult(NamedTuple):
    """Result of a pop."""

    parts: list[PoppedMessages]
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    rest_count: int
    is_cut: bool
    """Whether there may be more messages although none was found."""


class Claim(Change):
    """Messages of a queue that are handed out once their checkpoint is stored."""

    __slots__ = ("checkpoint", "cursor", "moves_offset", "next_offset")

    def __init__(
        self, drafts: list[Draft], cursor: Cursor, checkpoint: Checkpoint, next_offset: int
    ) -> None:
        super().__init__(drafts, first_offset=checkpoint.revive_offset)
        self.cursor = cursor
        self.checkpoint = checkpoint
        self.next_offset = next_offset
        self.moves_offset = True
        """Whether the group's offset moves; not after a reset or a failed earlier claim."""


class _Skipped(NamedTuple):
    """Messages of a queue that the group does not want."""

    next_offset: int


class PopService:
    """Hands out messages. Owned by the event loop; waits for nothing.

    Args:
        revive_queue_count: Number of queues of the revive topic.
    """

    def __init__(
        self,
        *,
        scan: QueueScan,
        targets: Targets,
        offsets: OffsetTable,
        in_flight: InFlightTable,
        log: PopLog,
        progress: PopProgress,
        clock: Clock,
        revive_queue_count: int,
    ) -> None:
        self._scan = scan
        self._targets = targets
        self._offsets = offsets
        self._in_flight = in_flight
        self._log = log
        self._progress = progress
        self._clock = clock
        self._revive_queue_count = revive_queue_count
        self.unacked_max: int | None = None
        """Number of unacknowledged messages of a queue at which a group gets no more."""
        self._turn = 0
        self._claims: dict[Cursor, deque[Claim | _Skipped]] = {}

    @property
    def claim_count(self) -> int:
        """Number of claims that wait for their checkpoints, or for earlier claims."""
        return sum(map(len, self._claims.values()))

    def pop_steps(self, request: PopRequest) -> ChangeSteps[PopResult]:
        """Take messages for a group.

        Other pops may run in between: messages of one queue are taken within one step.

        Raises:
            SystemBusy: Too many messages are in flight.
            StoreError: The checkpoint cannot be stored.
        """
        if self._in_flight.count >= FLIGHT_MAX:
            raise SystemBusy(
                f"[OVERLOAD]{self._in_flight.count} popped messages are not acknowledged yet"
            )
        self._turn = (self._turn + 1) % self._revive_queue_count
        pop_ms, revive_queue = self._clock.now_ms(), self._turn
        parts: list[PoppedMessages] = []
        count, size, rest = min(request.count_max, COUNT_MAX), self._scan.bytes_max, 0
        is_cut = False
        for number, target in enumerate(self._targets.find(request), 1):
            if number % QUEUES_AT_A_STEP == 0:
                yield None
            queue = self._scan.queue(target.topic, target.queue_id)
            cursor = target.cursor(request.group)
            if queue is None:
                if request.fixes_start and self._offsets.query(*cursor) == NO_OFFSET:
                    self._commit(cursor, 0)
                continue
            if request.from_end and self._offsets.query(*cursor) == NO_OFFSET:
                # Commit now, or the group would skip messages that arrive before its first read.
                self._commit(cursor, self._scan.initial(cursor, queue, request))
            if count > 0 and size > 0 and not self._has_too_many(cursor):
                found = self._find(cursor, queue, request, count_max=count, bytes_max=size)
                is_cut = is_cut or found.is_cut
                key = Key(*cursor, found.offsets[0], pop_ms) if found.offsets else None
                if key is not None and self._in_flight.find(key) is None:
                    claim = self._claim(cursor, key, found, request, revive_queue)
                    try:
                        yield claim
                    except StoreError:
                        if not parts:
                            raise
                        break  # the messages claimed so far are handed out
                    parts.append(PoppedMessages(*target, found.offsets, found.views, claim))
                    count -= len(found.offsets)
                    size -= sum(map(len, found.views))
                elif key is None:
                    self._skip(cursor, found.next_offset)
                else:
                    is_cut = True  # after a reset: a receipt must not identify two deliveries
                if request.is_filtered:
                    yield None  # a search with a filter costs more
            rest += max(0, queue.end - self._position(cursor, queue, request))
        return PopResult(parts, pop_ms, request.invisible_ms, revive_queue, rest, is_cut)

    def peek(self, request: PopRequest) -> Steps[tuple[list[memoryview], int]]:
        """Return the messages that a pop would take now, and how many more there are."""
        views: list[memoryview] = []
        rest, size = 0, self._scan.bytes_max
        for number, target in enumerate(self._targets.find(request), 1):
            if number % QUEUES_AT_A_STEP == 0:
                yield
            queue = self._scan.queue(target.topic, target.queue_id)
            if queue is None:
                continue
            cursor = target.cursor(request.group)
            offset = self._position(cursor, queue, request)
            count = request.count_max - len(views)
            if count > 0 and size > 0:
                found = self._scan.find(queue, offset, request, count_max=count, bytes_max=size)
                views += found.views
                size -= sum(map(len, found.views))
                offset = found.next_offset
            rest += max(0, queue.end - offset)
        return views, rest

    def has_message(self, request: PopRequest) -> Steps[bool]:
        """Tell whether a pop might find a message now."""
        for number, target in enumerate(self._targets.find(request), 1):
            if number % QUEUES_AT_A_STEP == 0:
                yield
            queue = self._scan.queue(target.topic, target.queue_id)
            cursor = target.cursor(request.group)
            if queue is not None and self._position(cursor, queue, request) < queue.end:
                return True
        return False

    def _has_too_many(self, cursor: Cursor) -> bool:
        return self.unacked_max is not None and self._in_flight.count_in(cursor) > self.unacked_max

    # A group's place in a queue.

    def _position(self, cursor: Cursor, queue: ConsumeQueue, request: PopRequest) -> int:
        claims = self._claims.get(cursor)
        offset = claims[-1].next_offset if claims else self._offsets.query(*cursor)
        if offset == NO_OFFSET:
            offset = self._scan.initial(cursor, queue, request)
        return min(max(offset, int(queue.first)), int(queue.end))

    def _find(
        self,
        cursor: Cursor,
        queue: ConsumeQueue,
        request: PopRequest,
        *,
        count_max: int,
        bytes_max: int,
    ) -> ScanResult:
        reset = self._offsets.take_reset(*cursor)
        if reset is not None:
            self._abandon(cursor)
            self._commit(cursor, reset)
        offset = self._position(cursor, queue, request)
        return self._scan.find(queue, offset, request, count_max=count_max, bytes_max=bytes_max)

    # Claims that are not stored yet.

    def settle(self, claim: Change) -> None:
        """Hand out the messages of a stored claim; forget a failed one."""
        assert isinstance(claim, Claim)
        if claim.is_stored:
            self._settle_stored(claim)
        else:
            self._settle_failed(claim)

    def _claim(
        self,
        cursor: Cursor,
        key: Key,
        found: ScanResult,
        request: PopRequest,
        revive_queue: int,
    ) -> Claim:
        checkpoint = Checkpoint(
            key,
            invisible_ms=request.invisible_ms,
            offsets=found.offsets,
            revive_queue=revive_queue,
            revive_offset=self._progress.next_offset(revive_queue),
        )
        draft = self._log.checkpoint_draft(checkpoint, now_ms=key.pop_ms, moves_offset=True)
        claim = Claim([draft], cursor, checkpoint, found.next_offset)
        self._in_flight.add(checkpoint)
        claims = self._claims.setdefault(cursor, deque())
        assert not claims or claims[-1].next_offset <= found.offsets[0]
        claims.append(claim)
        return claim

    def _skip(self, cursor: Cursor, next_offset: int) -> None:
        """Skip messages that the group does not want; that needs no checkpoint."""
        claims = self._claims.get(cursor)
        if claims:
            claims.append(_Skipped(next_offset))
        elif self._offsets.query(*cursor) != next_offset:
            self._commit(cursor, next_offset)

    def _settle_stored(self, claim: Claim) -> None:
        if claim.moves_offset:
            claims = self._claims[claim.cursor]
            assert claims[0] is claim, "claims must settle in their order"
            claims.popleft()
            self._commit(claim.cursor, claim.next_offset)
            while claims and isinstance(claims[0], _Skipped):
                self._commit(claim.cursor, claims.popleft().next_offset)
            if not claims:
                del self._claims[claim.cursor]
        self._in_flight.launch(claim.checkpoint)
        self._progress.note_launched(claim.checkpoint)

    def _settle_failed(self, claim: Claim) -> None:
        self._in_flight.discard(claim.checkpoint)
        if not claim.moves_offset:
            return
        claims = self._claims[claim.cursor]
        while claims[-1] is not claim:
            # There is one log: later claims are not stored either.
            behind = claims.pop()
            if isinstance(behind, Claim):
                behind.moves_offset = False
        claims.pop()
        if not claims:
            del self._claims[claim.cursor]

    def _abandon(self, cursor: Cursor) -> None:
        """Leave the group's offset, which was reset. Messages in flight are still redelivered."""
        for claim in self._claims.pop(cursor, ()):
            if isinstance(claim, Claim):
                claim.moves_offset = False

    def _commit(self, cursor: Cursor, offset: int) -> None:
        try:
            self._offsets.commit(*cursor, offset)
        except Fault as error:
            # The messages are in flight anyway; the group will receive them once more.
            logger.warning("offset not committed: cursor=%s reason=%s", cursor, error)
