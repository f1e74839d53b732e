"""Index entries of confirmed messages, in log order, and of those that found no room.

When a new index file cannot be made, messages stay visible but unindexed. They wait here until
:meth:`Indexing.retry` finds room; meanwhile the store accepts no messages, so they are few.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.store.dispatch.row_span import PAIR, RowSpan
from rocketpost.store.draft import Appended
from rocketpost.store.index.key_index import KeyIndex

logger = logging.getLogger(__name__)


class _Unindexed(NamedTuple):
    hashes: list[int]
    position: Position
    store_ms: int


class Indexing:
    """Puts messages into the key index. Owned by the loop thread."""

    def __init__(self, index: KeyIndex) -> None:
        self.index = index
        self.why_not: str | None = None
        """Reason why no entries can be added; None if they can."""
        self._unindexed: list[_Unindexed] = []

    @property
    def first_unindexed(self) -> Position | None:
        """Position of the oldest message that waits for room; None if none does."""
        return self._unindexed[0].position if self._unindexed else None

    def put_messages(self, messages: list[Appended]) -> None:
        """Index ordinary messages."""
        done, count = 0, len(messages)
        while done < count:
            if self.why_not is None and count > 1:
                done += self.index.put_all(messages[done:] if done else messages)
            if done < count:  # a new file may be needed, and making it may fail
                message = messages[done]
                if message.keys:
                    hashes = self.index.hashes_of(message.topic, message.keys)
                    self._put(hashes, message.position, message.store_ms)
                done += 1

    def put_rows(self, span: RowSpan) -> None:
        """Index the messages of a span."""
        keys, at, end = span.keys, span.first_key, span.key_end
        while at < end:
            stop, store_ms = end, span.store_ms
            # Entries have whole seconds, so the messages of one second go together.
            if span.times is not None and store_ms >= self.index.end_of_second(
                span.times[span.first_row]
            ):
                second_end = self.index.end_of_second(span.time_of_key(at))
                stop, store_ms = span.keys_before(at, second_end)
            if self.why_not is None:
                at = self.index.put_pairs(keys, at, stop, store_ms)
            if at < stop:  # as above
                store_ms = span.time_of_key(at)
                position = keys[at * PAIR + 1]
                hashes = []
                while at < end and keys[at * PAIR + 1] == position:
                    hashes.append(keys[at * PAIR])
                    at += 1
                self._put(hashes, Position(position), store_ms)

    def retry(self) -> bool:
        """Index the messages that had no room; True if none is left."""
        waiting, self._unindexed = self._unindexed, []
        if not waiting:
            return self.why_not is None
        self.why_not = None
        for message in waiting:
            self._put(*message)
        return self.why_not is None

    def forget_from(self, position: int) -> None:
        """Forget the messages at ``position`` or later, where the log was cut."""
        self._unindexed = [each for each in self._unindexed if each.position < position]

    def _put(self, hashes: list[int], position: Position, store_ms: int) -> None:
        if self.why_not is None:
            try:
                self.index.put_hashes(hashes, position, store_ms)
                return
            except StoreError as error:
                logger.error("key index not written position=%s reason=%s", position, error)
                self.why_not = str(error)
        self._unindexed.append(_Unindexed(hashes, position, store_ms))
