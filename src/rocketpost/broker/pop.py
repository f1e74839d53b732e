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
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.offset import NO_OFFSET, OffsetTable
from rocketpost.broker.pop_flight import Checkpoint, Flight, Key, Put, Stored, has_failed
from rocketpost.broker.pop_log import PopLog
from rocketpost.broker.pop_progress import PopProgress
from rocketpost.broker.pull import QUEUE_UNIT_BYTES, PullLimits, choose
from rocketpost.broker.record_filter import WORK_MAX, Judge
from rocketpost.codec.faults import SystemBusy
from rocketpost.codec.headers.pop import IN_RETRY_TOPIC, IN_TOPIC, pop_retry_topic
from rocketpost.errors import Fault, StoreError
from rocketpost.kernel.queue_scan import scan_units
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.topic import TopicConfig
from rocketpost.store.consume_queue import ConsumeQueue
from rocketpost.store.queue_files import FILLER_SIZE

logger = logging.getLogger(__name__)

COUNT_MAX: Final = 32
"""Messages that one pop may ask for."""
FLIGHT_MAX: Final = 1_000_000
"""Messages in flight; beyond it nothing is handed out."""
SCAN_MAX: Final = 32_000
"""Queue entries that one pop looks at while none has a wanted tag."""
RETRY_FIRST_PERCENT: Final = 20
_QUEUES_EXPECTED: Final = 4
"""Queues that share what one pop may spend on judging."""


class Wish(NamedTuple):
    """What a pop asks for."""

    topic: TopicConfig
    group: str
    queue_id: int
    """One queue, or -1 for all."""
    count_max: int = COUNT_MAX
    invisible_ms: int = 60_000
    tags: AbstractSet[int] = frozenset()
    judge: Judge | None = None
    from_end: bool = False
    """Whether a group that is new to a queue starts at its end."""

    @property
    def queue_ids(self) -> range:
        """The queues wanted."""
        if self.queue_id < 0:
            return range(self.topic.read_queue_nums)
        return range(self.queue_id, self.queue_id + 1)


class Part(NamedTuple):
    """Messages from one queue; they may be handed out when their checkpoint is stored."""

    retry: int
    topic: str
    queue_id: int
    offsets: list[int]
    views: list[memoryview]
    stored: Stored

    @property
    def start_offset(self) -> int:
        """What the receipts of these messages call their checkpoint."""
        return self.offsets[0]


class Popped(NamedTuple):
    """What a pop came to."""

    parts: list[Part]
    pop_ms: int
    invisible_ms: int
    revive_queue: int
    rest_count: int
    is_cut: bool
    """Whether there may be more to find although nothing was found."""


class Store(Protocol):
    """The store, as far as popping needs it."""

    @property
    def end_position(self) -> Position:
        """One past the newest byte."""
        ...  # pragma: no cover

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it never had a message."""
        ...  # pragma: no cover

    def view(self, position: Position, size: int) -> memoryview | None:
        """Return bytes of the log; None if they are gone."""
        ...  # pragma: no cover


class Topics(Protocol):
    """The topic table, as far as popping needs it."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of ``topic``."""
        ...  # pragma: no cover


class _Target(NamedTuple):
    retry: int
    topic: str
    queue_id: int


class _Cursor(NamedTuple):
    topic: str
    group: str
    queue_id: int


class _Claim(NamedTuple):
    """A part of a queue that is handed out, or passed over if there is no checkpoint."""

    next_offset: int
    checkpoint: Checkpoint | None
    stored: Stored | None


class _Found(NamedTuple):
    offsets: list[int]
    views: list[memoryview]
    next_offset: int
    is_cut: bool


class PopService:
    """Hands out messages. Owned by the event loop; waits for nothing.

    Args:
        put: Stores checkpoints.
        limits: Returns how much one pop may return.
        random_below: Says where to begin.
        revive_queue_count: How many queues the revive topic has.
    """

    def __init__(
        self,
        *,
        store: Store,
        topics: Topics,
        offsets: OffsetTable,
        flight: Flight,
        log: PopLog,
        progress: PopProgress,
        put: Put,
        clock: Clock,
        limits: Callable[[], PullLimits],
        random_below: Callable[[int], int],
        revive_queue_count: int,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._flight = flight
        self._log = log
        self._progress = progress
        self._put = put
        self._clock = clock
        self._limits = limits
        self._random_below = random_below
        self._revive_queue_count = revive_queue_count
        self._turn = 0
        self._claims: dict[_Cursor, deque[_Claim]] = {}

    def pop(self, wish: Wish) -> Popped:
        """Take messages for a group.

        Raises:
            SystemBusy: Too many messages are in flight.
            StoreError: The checkpoint cannot be stored.
        """
        if self._flight.count >= FLIGHT_MAX:
            raise SystemBusy(f"[OVERLOAD]{self._flight.count} popped messages await their ack")
        self._turn = (self._turn + 1) % self._revive_queue_count
        pop_ms, revive_queue = self._clock.now_ms(), self._turn
        parts: list[Part] = []
        count, size, rest = min(wish.count_max, COUNT_MAX), self._limits().bytes_in_memory, 0
        is_cut = False
        for target in self._targets(wish):
            queue = self._store.queue(target.topic, target.queue_id)
            if queue is None or not queue.end:
                continue
            cursor = _Cursor(target.topic, wish.group, target.queue_id)
            if wish.from_end and self._offsets.query(*cursor) == NO_OFFSET:
                # At once, else it would begin behind what arrives until it is looked at.
                self._commit(cursor, self._initial(cursor, queue, wish))
            if count > 0 and size > 0:
                found = self._find(cursor, queue, wish, count_max=count, bytes_max=size)
                is_cut = is_cut or found.is_cut
                key = Key(*cursor, found.offsets[0], pop_ms) if found.offsets else None
                if key is not None and self._flight.find(key) is None:
                    try:
                        stored = self._claim(cursor, key, found, wish, revive_queue)
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
            rest += max(0, queue.end - self._position(cursor, queue, wish))
        return Popped(parts, pop_ms, wish.invisible_ms, revive_queue, rest, is_cut)

    def peek(self, wish: Wish) -> tuple[list[memoryview], int]:
        """Return what a pop would take now, and how much more there is; takes nothing."""
        views: list[memoryview] = []
        rest, size = 0, self._limits().bytes_in_memory
        for target in self._targets(wish):
            queue = self._store.queue(target.topic, target.queue_id)
            if queue is None or not queue.end:
                continue
            cursor = _Cursor(target.topic, wish.group, target.queue_id)
            offset = self._position(cursor, queue, wish)
            count = wish.count_max - len(views)
            if count > 0 and size > 0:
                found = self._scan(queue, offset, wish, count_max=count, bytes_max=size)
                views += found.views
                size -= sum(map(len, found.views))
                offset = found.next_offset
            rest += max(0, queue.end - offset)
        return views, rest

    def has_message(self, wish: Wish) -> bool:
        """Whether a pop might find something now."""
        for target in self._targets(wish):
            queue = self._store.queue(target.topic, target.queue_id)
            cursor = _Cursor(target.topic, wish.group, target.queue_id)
            if queue is not None and self._position(cursor, queue, wish) < queue.end:
                return True
        return False

    def retry_topic(self, topic: str, group: str) -> str | None:
        """Return where messages of ``topic`` come again for ``group``; None for retry topics."""
        return None if topic.startswith(RETRY_PREFIX) else pop_retry_topic(group, topic)

    def _targets(self, wish: Wish) -> Iterator[_Target]:
        """Return the queues to look at, the retry topic's sometimes first, else last."""
        topic = wish.topic.topic_name
        again = self._retry_targets(topic, wish.group)
        is_first = bool(again) and self._random_below(100) < RETRY_FIRST_PERCENT
        if is_first:
            yield from again
        ids = wish.queue_ids
        begin = self._random_below(len(ids)) if len(ids) > 1 else 0
        for queue_id in (*ids[begin:], *ids[:begin]):
            yield _Target(IN_TOPIC, topic, queue_id)
        if not is_first:
            yield from again

    def _retry_targets(self, topic: str, group: str) -> Sequence[_Target]:
        retry_topic = self.retry_topic(topic, group)
        config = self._topics.find(retry_topic) if retry_topic is not None else None
        if config is None:
            return ()
        count = config.read_queue_nums
        return [_Target(IN_RETRY_TOPIC, config.topic_name, each) for each in range(count)]

    # Where a group is in a queue.

    def _position(self, cursor: _Cursor, queue: ConsumeQueue, wish: Wish) -> int:
        claims = self._claims.get(cursor)
        offset = claims[-1].next_offset if claims else self._offsets.query(*cursor)
        if offset == NO_OFFSET:
            offset = self._initial(cursor, queue, wish)
        return min(max(offset, int(queue.first)), int(queue.end))

    def _initial(self, cursor: _Cursor, queue: ConsumeQueue, wish: Wish) -> int:
        """Return where a group begins that is new to a queue."""
        if not wish.from_end or cursor.topic != wish.topic.topic_name:
            return int(queue.first)
        first = queue.entry(0) if queue.first == 0 else None
        memory = self._limits().memory_bytes
        if first is not None and self._store.end_position - first[0] <= memory:
            return 0  # a topic so young that its first messages are new to everybody
        return max(int(queue.first), int(queue.end) - 1)

    def _find(
        self, cursor: _Cursor, queue: ConsumeQueue, wish: Wish, *, count_max: int, bytes_max: int
    ) -> _Found:
        self._settle(cursor)
        reset = self._offsets.take_reset(*cursor)
        if reset is not None:
            self._abandon(cursor)
            self._commit(cursor, reset)
        offset = self._position(cursor, queue, wish)
        return self._scan(queue, offset, wish, count_max=count_max, bytes_max=bytes_max)

    def _scan(
        self,
        queue: ConsumeQueue,
        offset: int,
        wish: Wish,
        *,
        count_max: int,
        bytes_max: int,
    ) -> _Found:
        """Look for messages from ``offset`` on."""
        limits = self._limits()
        judge, is_picky = wish.judge, wish.tags or wish.judge is not None
        step = max(limits.scan_bytes // QUEUE_UNIT_BYTES, count_max) if is_picky else count_max
        # What a judge may cost is bounded for one step.
        until = min(int(queue.end), offset + (SCAN_MAX if judge is None else step))
        offsets: list[int] = []
        views: list[memoryview] = []
        while offset < until and not offsets:
            units = queue.read(offset, min(step, until - offset))
            if judge is None:
                chosen, passed = scan_units(
                    units, wish.tags, count_max=count_max, bytes_max=bytes_max
                )
            else:
                chosen, passed = choose(
                    units,
                    judge,
                    self._store.view,
                    count_max=count_max,
                    bytes_max=bytes_max,
                    work_max=WORK_MAX // _QUEUES_EXPECTED,
                )
            if not passed:
                break
            for ordinal, position, size in chosen:
                view = self._store.view(Position(position), size) if size != FILLER_SIZE else None
                if view is not None:
                    offsets.append(offset + ordinal)
                    views.append(view)
            offset += passed
            if judge is not None:
                break
        return _Found(offsets, views, offset, not offsets and offset < queue.end)

    # What is handed out, and not stored yet.

    def _claim(
        self, cursor: _Cursor, key: Key, found: _Found, wish: Wish, revive_queue: int
    ) -> Stored:
        checkpoint = Checkpoint(
            key,
            invisible_ms=wish.invisible_ms,
            offsets=found.offsets,
            revive_queue=revive_queue,
            revive_offset=self._progress.next_offset(revive_queue),
        )
        draft = self._log.checkpoint_draft(checkpoint, now_ms=key.pop_ms, moves_offset=True)
        stored = self._put([draft])
        self._flight.add(checkpoint)
        claims = self._claims.setdefault(cursor, deque())
        claims.append(_Claim(found.next_offset, checkpoint, stored))
        stored.add_done_callback(lambda _: self._settle(cursor))
        return stored

    def _pass(self, cursor: _Cursor, next_offset: int) -> None:
        """Go on behind messages that the group does not want; that needs no checkpoint."""
        claims = self._claims.get(cursor)
        if claims:
            claims.append(_Claim(next_offset, None, None))
        elif self._offsets.query(*cursor) != next_offset:
            self._commit(cursor, next_offset)

    def _settle(self, cursor: _Cursor) -> None:
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

    def _abandon(self, cursor: _Cursor) -> None:
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
            self._flight.launch(claim.checkpoint)
            self._progress.launched(claim.checkpoint)

    def _discard(self, claims: Sequence[_Claim]) -> None:
        for claim in claims:
            if claim.checkpoint is not None:
                self._flight.discard(claim.checkpoint)

    def _commit(self, cursor: _Cursor, offset: int) -> None:
        try:
            self._offsets.commit(*cursor, offset)
        except Fault as error:
            # The messages are in flight all the same; the group will see them once more.
            logger.warning("offset not kept: cursor=%s reason=%s", cursor, error)
