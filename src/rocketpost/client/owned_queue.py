"""One queue while it is ours: what is in hand of it, and whether more may be fetched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rocketpost.client.config import PushConsumerConfig
from rocketpost.client.message import ReceivedMessage
from rocketpost.client.offset_tracker import OffsetTracker
from rocketpost.model.route import MessageQueue


class OwnedQueue:
    """A queue that the rebalance gave to us. Belongs to the event loop."""

    def __init__(self, queue: MessageQueue, config: PushConsumerConfig) -> None:
        self.queue = queue
        self.dropped = False
        """Whether it is ours no more; results that come later count for nothing."""
        self.tracker: OffsetTracker | None = None
        """None until the start offset is known."""
        self.persisted: int | None = None
        """The offset that the broker knows of."""
        self.pulled_ms = 0
        """When it was last pulled from."""
        self.finished_ms = 0
        """When a message of it was last done with."""
        self._config = config
        self._room = asyncio.Event()
        self._room.set()

    def start_at(self, offset: int) -> None:
        """Begin to track at ``offset``."""
        self.tracker = OffsetTracker(offset)

    def holds(self, message: ReceivedMessage) -> bool:
        """Whether a message is in hand and unfinished."""
        return self.tracker is not None and self.tracker.holds(message.record.queue_offset)

    @property
    def committable(self) -> int | None:
        """The offset to be committed; None if nothing is known yet."""
        return self.tracker.committable if self.tracker is not None else None

    def take(self, messages: Sequence[ReceivedMessage], next_offset: int) -> None:
        """Take fetched messages in hand; everything before ``next_offset`` has been seen."""
        assert self.tracker is not None
        self.tracker.add((m.record.queue_offset, len(m.record.body)) for m in messages)
        self.tracker.skip_to(next_offset)
        if self._is_full():
            self._room.clear()

    def finish(self, messages: Sequence[ReceivedMessage]) -> None:
        """Put messages away that are done with."""
        assert self.tracker is not None
        for message in messages:
            self.tracker.finish(message.record.queue_offset)
        self.finished_ms = time.time_ns() // 1_000_000
        if not self._room.is_set() and not self._is_full():
            self._room.set()

    async def wait_for_room(self) -> None:
        """Return once more may be fetched."""
        await self._room.wait()

    def _is_full(self) -> bool:
        tracker, config = self.tracker, self._config
        assert tracker is not None
        return (
            tracker.count > config.cached_count_max
            or tracker.bytes_held > config.cached_bytes_max
            or tracker.span > config.cached_span_max
        )
