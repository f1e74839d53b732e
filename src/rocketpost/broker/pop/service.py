"""Popping: messages are handed out one by one, whoever asks, and come again unless acknowledged.

A pop reads on from the group's offset in each queue and stores a checkpoint for what it takes. The
messages are handed out once the checkpoint is stored, and the group's offset moves then. While
checkpoints of a queue are on their way to the disk, later pops go on behind them: nobody waits for
a queue. If storing one fails, every later one of the same queue fails as well (there is one log),
and the group's offset never moved: nothing is lost. ADR 0015 has the whole picture.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from rocketpost.broker.group.offsets import NO_OFFSET, OffsetTable
from rocketpost.broker.pop.in_flight import Checkpoint, InFlightTable, Key, Put, Stored, has_failed
from rocketpost.broker.pop.log import PopLog
from rocketpost.broker.pop.progress import PopProgress
from rocketpost.broker.pop.scan import Found, QueueScan
from rocketpost.broker.pop.targets import COUNT_MAX, Cursor, PopRequest, Targets
from rocketpost.broker.steps import QUEUES_AT_A_STEP, Steps, finish
from rocketpost.codec.faults import SystemBusy
from rocketpost.errors import Fault, StoreError
from rocketpost.model.clock import Clock
from rocketpost.store.queue.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

FLIGHT_MAX: Final = 1_000_000
"""Messages in flight; beyond it nothing is handed out."""


class Part(NamedTuple):
    """Messages from one queue; they may be handed out when their checkpoint is stored."""

    retry: int
    topic: str
    queue_id: int
    offsets: list[int]
    views: list[memoryview]
    stored: Stored
    counts: Mapping[int, int] = {}
    """How often a message came before, if it did and was popped in order."""

    @property
    def start_offset(self) -> int:
        """The checkpoint that the receipts of these messages name."""
        return self.offsets[0]


class Popped(NamedTuple):
    """Result of a pop."""

    parts: list[Part]
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    rest_count: int
    is_cut: bool
    """Whether there may be more to find although nothing was found."""


class _Claim(NamedTuple):
    """A part of a queue that is handed out, or passed over if there is no checkpoint."""

    next_offset: int
    checkpoint: Checkpoint | None
    stored: Stored | None


class PopService:
    """Hands out messages. Owned by the event loop; waits for nothing.

    Args:
        put: Stores checkpoints.
        revive_queue_count: How many queues the revive topic has.
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
        put: Put,
        clock: Clock,
        revive_queue_count: int,
    ) -> None:
        self._scan = scan
        self._targets = targets
        self._offsets = offsets
        self._in_flight = in_flight
        self._log = log
        self._progress = progress
        self._put = put
        self._clock = clock
        self._revive_queue_count = revive_queue_count
        self.unacked_max: int | None = None
        """How many messages of one queue a group may have in hand before it gets no more."""
        self._turn = 0
        self._claims: dict[Cursor, deque[_Claim]] = {}

    def pop(self, request: PopRequest) -> Popped:
        """Take messages for a group, in one go."""
        return finish(self.pop_steps(request))

    def pop_steps(self, request: PopRequest) -> Steps[Popped]:
        """Take messages for a group.

        Others may pop in between: what is taken of a queue is taken within a step.

        Raises:
            SystemBusy: Too many messages are in flight.
            StoreError: The checkpoint cannot be stored.
        """
        if self._in_flight.count >= FLIGHT_MAX:
            raise SystemBusy(f"[OVERLOAD]{self._in_flight.count} popped messages await their ack")
        self._turn = (self._turn + 1) % self._revive_queue_count
        pop_ms, revive_queue = self._clock.now_ms(), self._turn
        parts: list[Part] = []
        count, size, rest = min(request.count_max, COUNT_MAX), self._scan.bytes_max, 0
        is_cut = False
        for number, target in enumerate(self._targets.of(request), 1):
            if number % QUEUES_AT_A_STEP == 0:
                yield
            queue = self._scan.queue(target.topic, target.queue_id)
            cursor = target.cursor(request.group)
            if queue is None:
                if request.fixes_start and self._offsets.query(*cursor) == NO_OFFSET:
                    self._commit(cursor, 0)
                continue
            if request.from_end and self._offsets.query(*cursor) == NO_OFFSET:
                # At once, else it would begin behind what arrives until it is looked at.
                self._commit(cursor, self._scan.initial(cursor, queue, request))
            if count > 0 and size > 0 and not self._has_too_many(cursor):
                found = self._find(cursor, queue, request, count_max=count, bytes_max=size)
                is_cut = is_cut or found.is_cut
                key = Key(*cursor, found.offsets[0], pop_ms) if found.offsets else None
                if key is not None and self._in_flight.find(key) is None:
                    try:
                        stored = self._claim(cursor, key, found, request, revive_queue)
                    except StoreError:
                        if not parts:
                            raise
                        break  # what is claimed already is handed out
                    parts.append(Part(*target, found.offsets, found.views, stored))
                    count -= len(found.offsets)
                    size -= sum(map(len, found.views))
                elif key is None:
                    self._pass(cursor, found.next_offset)
                else:
                    is_cut = True  # after a reset: a receipt must not name two deliveries
                if request.is_picky:
                    yield  # looking for what is wanted costs more than looking for anything
            rest += max(0, queue.end - self._position(cursor, queue, request))
        return Popped(parts, pop_ms, request.invisible_ms, revive_queue, rest, is_cut)

    def peek(self, request: PopRequest) -> Steps[tuple[list[memoryview], int]]:
        """Return what a pop would take now, and how much more there is; takes nothing."""
        views: list[memoryview] = []
        rest, size = 0, self._scan.bytes_max
        for number, target in enumerate(self._targets.of(request), 1):
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
        """Tell whether a pop might find something now."""
        for number, target in enumerate(self._targets.of(request), 1):
            if number % QUEUES_AT_A_STEP == 0:
                yield
            queue = self._scan.queue(target.topic, target.queue_id)
            cursor = target.cursor(request.group)
            if queue is not None and self._position(cursor, queue, request) < queue.end:
                return True
        return False

    def _has_too_many(self, cursor: Cursor) -> bool:
        return self.unacked_max is not None and self._in_flight.count_in(cursor) > self.unacked_max

    # Where a group is in a queue.

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
    ) -> Found:
        self._settle(cursor)
        reset = self._offsets.take_reset(*cursor)
        if reset is not None:
            self._abandon(cursor)
            self._commit(cursor, reset)
        offset = self._position(cursor, queue, request)
        return self._scan.find(queue, offset, request, count_max=count_max, bytes_max=bytes_max)

    # What is handed out, and not stored yet.

    def _claim(
        self, cursor: Cursor, key: Key, found: Found, request: PopRequest, revive_queue: int
    ) -> Stored:
        checkpoint = Checkpoint(
            key,
            invisible_ms=request.invisible_ms,
            offsets=found.offsets,
            revive_queue=revive_queue,
            revive_offset=self._progress.next_offset(revive_queue),
        )
        draft = self._log.checkpoint_draft(checkpoint, now_ms=key.pop_ms, moves_offset=True)
        stored = self._put([draft])
        self._in_flight.add(checkpoint)
        claims = self._claims.setdefault(cursor, deque())
        claims.append(_Claim(found.next_offset, checkpoint, stored))
        stored.add_done_callback(lambda _: self._settle(cursor))
        return stored

    def _pass(self, cursor: Cursor, next_offset: int) -> None:
        """Go on behind messages that the group does not want; that needs no checkpoint."""
        claims = self._claims.get(cursor)
        if claims:
            claims.append(_Claim(next_offset, None, None))
        elif self._offsets.query(*cursor) != next_offset:
            self._commit(cursor, next_offset)

    def _settle(self, cursor: Cursor) -> None:
        """Move the group's offset behind what is stored by now."""
        claims = self._claims.get(cursor)
        if claims is None:
            return
        while claims and (claims[0].stored is None or claims[0].stored.done()):
            claim = claims.popleft()
            if claim.stored is not None and has_failed(claim.stored):
                # There is one log: what was claimed behind this is not stored either.
                self._discard([claim, *claims])
                claims.clear()
                break
            self._commit(cursor, claim.next_offset)
            self._launch(claim)
        if not claims:
            del self._claims[cursor]

    def _abandon(self, cursor: Cursor) -> None:
        """Let the group's offset be: it was reset. What is in flight comes again all the same."""
        for claim in self._claims.pop(cursor, ()):
            if claim.stored is not None:
                claim.stored.add_done_callback(partial(self._end_abandoned, claim))

    def _end_abandoned(self, claim: _Claim, _: Stored) -> None:
        assert claim.stored is not None
        if has_failed(claim.stored):
            self._discard([claim])
        else:
            self._launch(claim)

    def _launch(self, claim: _Claim) -> None:
        if claim.checkpoint is not None:
            self._in_flight.launch(claim.checkpoint)
            self._progress.launched(claim.checkpoint)

    def _discard(self, claims: Sequence[_Claim]) -> None:
        for claim in claims:
            if claim.checkpoint is not None:
                self._in_flight.discard(claim.checkpoint)

    def _commit(self, cursor: Cursor, offset: int) -> None:
        try:
            self._offsets.commit(*cursor, offset)
        except Fault as error:
            # The messages are in flight all the same; the group will see them once more.
            logger.warning("offset not kept: cursor=%s reason=%s", cursor, error)
