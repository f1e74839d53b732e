"""Halves and op messages that have arrived, and their records, which may not be readable at once.

A read may fail for a moment, for example when descriptors have run out. The listeners of arrivals
cannot wait, and a half that was left out would never be checked. So its record is read later, and
so are those after it: the copies of a half are processed in their order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rocketpost.codec.record import Record
from rocketpost.store.dispatch.arrival import Arrival

logger = logging.getLogger(__name__)


class Arrived(NamedTuple):
    """A message that has arrived."""

    topic: str
    queue_offset: int
    record: Record | None
    """None if it is damaged."""
    is_late: bool
    """Whether it could not be read at once; the transaction may have ended meanwhile."""


class Arrivals:
    """Messages that have arrived and are not processed yet. Owned by the loop.

    Args:
        record_at: Returns the record at a position; None if it is gone or damaged.
    """

    def __init__(self, record_at: Callable[[int], Record | None]) -> None:
        self._record_at = record_at
        self._unread: deque[tuple[str, int, int]] = deque()
        self._late_count = 0

    @property
    def are_late(self) -> bool:
        """Whether there are messages that could not be read at once."""
        return self._late_count > 0

    def add(self, arrival: Arrival) -> None:
        """Add the messages of an arrival."""
        first, positions = arrival.first_offset, arrival.positions
        self._unread.extend(
            (arrival.topic, queue_offset, position)
            for queue_offset, position in enumerate(positions, start=first)
        )

    def read(self) -> Iterator[Arrived]:
        """Yield the messages, in the order of their arrival, up to one that cannot be read now."""
        while self._unread:
            topic, queue_offset, position = self._unread[0]
            try:
                record = self._record_at(position)
            except OSError as error:
                if not self._late_count:
                    logger.warning(
                        "transactions not read, will be tried again: position=%s reason=%s",
                        position, error,
                    )  # fmt: skip
                self._late_count = len(self._unread)
                return
            self._unread.popleft()
            is_late = self._late_count > 0
            self._late_count -= is_late
            yield Arrived(topic, queue_offset, record, is_late)
