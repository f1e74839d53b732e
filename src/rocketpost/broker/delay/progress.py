"""Delivery progress of each delay level, and the part of it that may be saved."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rocketpost.codec.bodies.delay import decode_delay_offsets, encode_delay_offsets
from rocketpost.errors import RemoteProtocolError, StoreError
from rocketpost.model.clock import Clock
from rocketpost.model.ids import Position
from rocketpost.model.topic import DataVersion


class DelayProgress:
    """Delivery progress of each level; the table of ``delayOffset.json``.

    An offset is saved only once the delivered copies before it are on disk. Otherwise a power cut
    could lose a copy that would never be made again.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._next_offsets: dict[int, int] = {}
        self._safe: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._safe_positions: dict[int, int] = {}
        self._unsafe: deque[tuple[Position, int, int]] = deque()
        self._revision = 0
        self.durable: Callable[[], Position] = lambda: Position(0)
        self.version = DataVersion()

    @property
    def revision(self) -> int:
        """Number of changes of the offsets to save."""
        self._settle()
        return self._revision

    def next_offset(self, level: int) -> int:
        """Return the queue offset of the first undelivered message of a level."""
        return self._next_offsets.get(level, 0)

    def advance(self, level: int, offset: int, *, position: Position) -> None:
        """Note that a level is delivered up to ``offset``, by copies before ``position``."""
        self._next_offsets[level] = offset
        self._positions[level] = max(position, self._positions.get(level, 0))
        self._unsafe.append((position, level, offset))

    def delivered_before(self, level: int) -> int:
        """Return a position after all the copies counted by :meth:`next_offset`.

        A copy after it belongs to a message that is not counted yet. 0 if nothing is known.
        """
        return self._positions.get(level, 0)

    def body(self) -> bytes:
        """Return the body of GET_ALL_DELAY_OFFSET."""
        self._settle()
        return encode_delay_offsets(self.version, self._safe)

    def to_json(self) -> bytes:
        """Return the text of ``delayOffset.json``."""
        self._settle()
        return encode_delay_offsets(self.version, self._safe, self._safe_positions)

    def load(self, data: bytes) -> None:
        """Load the table from ``delayOffset.json``.

        Raises:
            StoreError: The text is not such a table.
        """
        try:
            table = decode_delay_offsets(data)
        except RemoteProtocolError as error:
            raise StoreError(f"delayOffset.json cannot be read: {error}") from None
        self.version = table.data_version
        self._safe = {level: max(0, at) for level, at in table.offset_table.items() if level > 0}
        self._next_offsets = dict(self._safe)
        self._positions = dict(table.delivered_before)
        self._safe_positions = dict(table.delivered_before)

    def follow(self, data: bytes) -> None:
        """Apply the progress of the master, once the log has the copies that it delivered.

        Args:
            data: The text of its ``delayOffset.json``, or of GET_ALL_DELAY_OFFSET.

        Raises:
            StoreError: The text is not such a table.
        """
        before = self._safe, self._safe_positions, self.version
        self._unsafe.clear()
        self.load(data)
        self._revision += (self._safe, self._safe_positions, self.version) != before

    def _settle(self) -> None:
        durable = self.durable()
        while self._unsafe and self._unsafe[0][0] <= durable:
            position, level, offset = self._unsafe.popleft()
            self._safe[level] = offset
            if position:
                before = self._safe_positions.get(level, 0)
                self._safe_positions[level] = max(position, before)
            self._revision += 1
            self.version = self.version.next(self._clock.now_ms())
