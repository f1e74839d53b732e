"""Changes of batches that are handed out in order. Each is a new record of a batch."""

from __future__ import annotations

from rocketpost.broker.pop.batch import Batch
from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.targets import Cursor
from rocketpost.store.draft import Draft


class BatchChange(Change):
    """A new record of a batch.

    Attributes:
        owner: The batch whose record it replaces: the same batch, or the one before it.
        replaced: The offset of that record in the revive queue; -1 if there is none.
    """

    __slots__ = ("batch", "cursor", "owner", "replaced", "revive_offset", "revive_queue")

    def __init__(
        self,
        drafts: list[Draft],
        cursor: Cursor,
        batch: Batch,
        *,
        owner: Batch,
        revive_queue: int,
        revive_offset: int,
    ) -> None:
        super().__init__(drafts, first_offset=revive_offset)
        self.cursor = cursor
        self.batch = batch
        self.owner = owner
        self.replaced = owner.revive_offset
        self.revive_queue = revive_queue
        self.revive_offset = revive_offset


class BatchDelivery(BatchChange):
    """A batch that is handed out, after another one or as the first.

    Attributes:
        before: The batch before it, if any.
        offset_before: The group's offset before it.
        is_reset: Whether it follows a reset, which ends the batch before it.
    """

    __slots__ = ("before", "is_reset", "offset_before")
    before: Batch | None
    offset_before: int
    is_reset: bool


class BatchAcknowledgement(BatchChange):
    """Acknowledgement of messages of a batch."""

    __slots__ = ("offsets",)
    offsets: list[int]


class BatchExtension(BatchChange):
    """A new redelivery time for a message of a batch."""

    __slots__ = ("before_ms", "invisible_ms", "offset", "pop_ms")
    offset: int
    before_ms: int | None
    pop_ms: int
    invisible_ms: int
