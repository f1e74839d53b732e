"""Batches: messages of one queue that were handed out in order, and the table of them.

A group that pops in order has one batch of a queue at a time. The queue hands out nothing more
until every message of the batch is acknowledged or has timed out. Then the unacknowledged messages
are redelivered in order, before any others. The group's offset is that of the first of them.

RocketMQ forgets acknowledgements after an unacknowledged message and redelivers those messages.
Here they are remembered (*ahead*, if after the newest batch), so none of them is redelivered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Final

from rocketpost.broker.pop.targets import Cursor
from rocketpost.codec.bodies.pop_order import OrderInfo, decode_order_table, encode_order_table
from rocketpost.errors import RemoteProtocolError, StoreError

logger = logging.getLogger(__name__)

REMEMBERED_MAX: Final = 64
"""Messages of one batch, acknowledged or not: RocketMQ has this many bits."""
FORGOTTEN_AFTER_MS: Final = 24 * 3600 * 1000
"""Age at which an untouched batch is ignored, as in RocketMQ."""


class Batch:
    """Messages handed out in order. Belongs to :class:`Batches`."""

    __slots__ = (
        "acked",
        "ahead",
        "attempt_id",
        "counts",
        "invisible_ms",
        "offsets",
        "pop_ms",
        "revive_offset",
        "touched_ms",
        "visible_ms",
    )

    def __init__(
        self,
        offsets: list[int],
        *,
        pop_ms: int,
        invisible_ms: int,
        attempt_id: str = "",
    ) -> None:
        assert offsets
        self.offsets = offsets
        """Ascending; acknowledged ones are included."""
        self.pop_ms = pop_ms
        self.invisible_ms = invisible_ms
        self.attempt_id = attempt_id
        self.acked: set[int] = set()
        self.ahead: set[int] = set()
        """Offsets after this batch that were acknowledged in an earlier one."""
        self.counts: dict[int, int] = {}
        """Number of earlier deliveries of a message, if any."""
        self.visible_ms: dict[int, int] = {}
        """Time at which a message may be redelivered, if it was changed."""
        self.touched_ms = pop_ms
        self.revive_offset = -1
        """Revive offset of the newest record of this batch; -1 if there is none."""

    @property
    def left(self) -> list[int]:
        """Offsets that are not acknowledged."""
        return [offset for offset in self.offsets if offset not in self.acked]

    @property
    def is_over(self) -> bool:
        """Whether nothing needs to be remembered."""
        if len(self.acked) < len(self.offsets):
            return False
        following = self.next_offset
        return all(offset < following for offset in self.ahead)

    @property
    def next_offset(self) -> int:
        """The group's next offset: the first unacknowledged one, or the one after the batch."""
        for offset in self.offsets:
            if offset not in self.acked:
                return offset
        following = self.offsets[-1] + 1
        while following in self.ahead:
            following += 1
        return following

    @property
    def blocked_until_ms(self) -> int:
        """Time at which the last unacknowledged message may be redelivered; 0 if there is none."""
        usual_ms = self.pop_ms + self.invisible_ms
        return max((self.visible_ms.get(offset, usual_ms) for offset in self.left), default=0)

    @property
    def finished(self) -> set[int]:
        """Offsets that must not be redelivered."""
        return self.acked | self.ahead

    def to_info(self) -> OrderInfo:
        """Return the batch in RocketMQ's form."""
        first = self.offsets[0]
        bits = sum(1 << at for at, offset in enumerate(self.offsets) if offset in self.acked)
        return OrderInfo(
            a=self.attempt_id or None,
            cm=bits - (1 << 64) if bits >> 63 else bits,
            i=self.invisible_ms,
            l=self.touched_ms,
            o=[first, *(offset - first for offset in self.offsets[1:])],
            oc=self.counts,
            ot=self.visible_ms,
            pop_time=self.pop_ms,
        )


def batch_of(info: OrderInfo) -> Batch | None:
    """Return the batch that RocketMQ's form describes; None if it is not valid."""
    offsets = [info.o[0], *(info.o[0] + each for each in info.o[1:])] if info.o else []
    if not offsets or offsets != sorted(set(offsets)) or len(offsets) > REMEMBERED_MAX:
        return None
    batch = Batch(offsets, pop_ms=info.pop_time, invisible_ms=info.i, attempt_id=info.a or "")
    batch.acked = {offset for at, offset in enumerate(offsets) if info.cm >> at & 1}
    batch.counts = {offset: count for offset, count in info.oc.items() if offset in offsets}
    batch.visible_ms = {offset: ms for offset, ms in info.ot.items() if offset in offsets}
    batch.touched_ms = info.l
    return batch


class Batches:
    """The batches of one broker: ``consumerOrderInfo.json``. Owned by the event loop."""

    def __init__(self) -> None:
        self._batches: dict[Cursor, Batch] = {}
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[tuple[Cursor, Batch]]:
        return iter(list(self._batches.items()))

    def newest(self, cursor: Cursor) -> Batch | None:
        """Return the newest batch of a group in a queue, whether or not it still counts."""
        return self._batches.get(cursor)

    def find(self, cursor: Cursor, committed: int) -> Batch | None:
        """Return the current batch of a group; None if the group's offset was moved since."""
        batch = self._batches.get(cursor)
        return batch if batch is not None and batch.next_offset == committed else None

    def put(self, cursor: Cursor, batch: Batch | None) -> None:
        """Set the newest batch of a group in a queue; None removes it."""
        if batch is not None:
            self._batches[cursor] = batch
        else:
            self._batches.pop(cursor, None)
        self.revision += 1

    def touch(self) -> None:
        """Note that a batch has changed."""
        self.revision += 1

    def follow(self, data: bytes) -> None:
        """Apply the table of the master, as :meth:`to_json` returns it.

        Raises:
            StoreError: The text is not such a table.
        """
        self.load(data)
        self.revision += 1

    def to_json(self) -> bytes:
        """Return the text of ``consumerOrderInfo.json``."""
        rows: dict[str, dict[int, OrderInfo]] = {}
        for (topic, group, queue_id), batch in self._batches.items():
            rows.setdefault(f"{topic}@{group}", {})[queue_id] = batch.to_info()
        return encode_order_table(rows.items())

    def load(self, data: bytes) -> None:
        """Load the table from ``consumerOrderInfo.json``; invalid entries are dropped.

        Raises:
            StoreError: The text is not such a table.
        """
        try:
            table: Mapping[str, Mapping[int, OrderInfo]] = decode_order_table(data).table
        except RemoteProtocolError as error:
            raise StoreError(f"consumerOrderInfo.json cannot be read: {error}") from None
        self._batches.clear()
        for name, row in table.items():
            topic, _, group = name.partition("@")
            for queue_id, info in row.items():
                batch = batch_of(info)
                if batch is None or not group:
                    logger.warning("batch dropped: row=%r queue=%s", name, queue_id)
                else:
                    self._batches[Cursor(topic, group, queue_id)] = batch
