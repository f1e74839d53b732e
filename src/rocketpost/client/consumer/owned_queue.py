"""A queue owned by a consumer: its messages in hand, its lock and its flow control."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rocketpost.client.consumer.offset_tracker import OffsetTracker
from rocketpost.client.message import ReceivedMessage
from rocketpost.model.route import MessageQueue


class CacheBounds(NamedTuple):
    """Bounds on the messages of a queue in hand; fetching pauses beyond them."""

    count_max: int
    bytes_max: int
    span_max: int


class QueueLock:
    """The broker's permission to handle a queue in order. Belongs to the event loop.

    Brokers keep a lock for 60 s after its last renewal. We trust it for half of that, so that we
    stop before another member can begin.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._taken = asyncio.Event()
        self.renewed_ms = 0
        """Time of the broker's last grant."""
        self.losses = 0
        """Number of times that it was lost."""

    @property
    def held(self) -> bool:
        """Whether the queue may be handled now. Thread-safe."""
        return time.monotonic() < self._until

    def take(self, until: float) -> None:
        """Hold the lock until a time of the monotonic clock."""
        self._until = until
        self.renewed_ms = time.time_ns() // 1_000_000
        self._taken.set()

    def lose(self) -> None:
        """Give up the lock."""
        self.losses += 1
        self._until = 0.0
        self._taken.clear()

    async def wait(self) -> None:
        """Wait until the lock may be held; check :attr:`held` again afterwards."""
        if not self.held:
            self._taken.clear()
        await self._taken.wait()


class OwnedQueue:
    """A queue that the rebalance assigned to us. Belongs to the event loop.

    Args:
        queue: The queue.
        bounds: Returns the current bounds on messages in hand.
        lock: The broker's lock, if the queue is orderly.
    """

    def __init__(
        self,
        queue: MessageQueue,
        bounds: Callable[[], CacheBounds],
        *,
        lock: QueueLock | None = None,
    ) -> None:
        self.queue = queue
        self.lock = lock
        self.dropped = False
        """Whether we no longer own the queue; later results are ignored."""
        self.is_replaced = False
        """Whether we own the queue again, from another offset; our progress until then is void."""
        self.doubted = False
        """Whether another consumer may have owned the queue while its broker was unreachable."""
        self.tracker: OffsetTracker | None = None
        """None until the start offset is known."""
        self.persisted: int | None = None
        """The stored offset."""
        self.found_at: int | None = None
        """The group's offset when we got the queue; None until known, or after a seek."""
        self.pulled_ms = 0
        """Time of the last pull."""
        self.finished_ms = 0
        """Time at which a message was last finished."""
        self._hindrance: tuple[str, float] | None = None
        self._bounds = bounds
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()
        self._begun = asyncio.Event()

    def start_at(self, offset: int) -> None:
        """Start tracking at ``offset``."""
        self.tracker = OffsetTracker(offset)
        self._begun.set()

    def drop(self) -> None:
        """End our ownership."""
        self.dropped = True
        self._gone.set()
        self._begun.set()

    @contextlib.contextmanager
    def explain_pause(self, why: str) -> Iterator[None]:
        """Show operators, during the block, why nothing is fetched."""
        self._hindrance = why, time.monotonic()
        try:
            yield
        finally:
            self._hindrance = None

    @property
    def pause_reason(self) -> str:
        """The reason why nothing is fetched, and its duration; empty if there is none."""
        if self._hindrance is None:
            return ""
        why, since = self._hindrance
        return f"{why}, for {time.monotonic() - since:.0f} s"

    @property
    def may_handle(self) -> bool:
        """Whether a handler may be called with its messages now. Thread-safe."""
        return not self.dropped and (self.lock is None or self.lock.held)

    async def wait_until_begun(self) -> None:
        """Wait until its start offset is known or it is no longer ours."""
        await self._begun.wait()

    async def wait_until_gone(self, seconds: float) -> None:
        """Wait until our ownership ends, or for ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        except TimeoutError:
            return

    async def wait_until_locked(self) -> None:
        """Wait until it may be handled, or our ownership ends."""
        if self.dropped or self.lock is None or self.lock.held:
            return
        with self.explain_pause("its broker does not grant the lock"):
            await self._lock_or_end(self.lock)

    async def _lock_or_end(self, lock: QueueLock) -> None:
        while not self.dropped and not lock.held:
            waits = [
                asyncio.ensure_future(lock.wait()),
                asyncio.ensure_future(self._gone.wait()),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    def holds(self, message: ReceivedMessage) -> bool:
        """Tell whether a message is in hand and unfinished."""
        return self.tracker is not None and self.tracker.holds(message.queue_offset)

    @property
    def committable(self) -> int | None:
        """The offset to commit; None if unknown."""
        return self.tracker.committable if self.tracker is not None else None

    @property
    def is_untouched(self) -> bool:
        """Whether we have made no progress since we got the queue."""
        return self.found_at is not None and self.committable == self.found_at

    def take(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Add fetched messages; everything before ``next_offset`` has been seen."""
        assert self.tracker is not None
        offsets = [message.queue_offset for message in messages]
        self.tracker.add(offsets, [message.stored_bytes for message in messages])
        self.tracker.skip_to(next_offset)
        if self._is_full():
            self._room.clear()

    def finish(self, messages: Iterable[ReceivedMessage]) -> None:
        """Remove finished messages."""
        assert self.tracker is not None
        self.tracker.finish([message.queue_offset for message in messages])
        self.finished_ms = time.time_ns() // 1_000_000
        if not self._room.is_set() and not self._is_full():
            self._room.set()

    async def wait_for_room(self) -> None:
        """Wait until more may be fetched."""
        if self._room.is_set():
            return
        assert self.tracker is not None
        tracker = self.tracker
        held = f"{tracker.count} messages, {tracker.bytes_held} bytes, a span of {tracker.span}"
        with self.explain_pause(f"fetching pauses because of the messages in hand ({held})"):
            await self._room.wait()

    def _is_full(self) -> bool:
        tracker, bounds = self.tracker, self._bounds()
        assert tracker is not None
        return (
            tracker.count > bounds.count_max
            or tracker.bytes_held > bounds.bytes_max
            # In order, only the count matters: skipped messages would widen the span.
            or (self.lock is None and tracker.span > bounds.span_max)
        )
