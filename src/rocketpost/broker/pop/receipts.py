"""Outcomes of popped messages: acknowledged, given another invisible time, or redelivered.

Each outcome is a change that is stored before it takes effect (``broker.pop.changes``). A
redelivered message is a copy in the group's retry topic for this topic. The copies of a checkpoint
and the record that ends it are written together, copies first, so that a crash in between repeats
some messages and loses none.

Invariants:

- A message is acknowledged, given another time or redelivered only while it is left, and is closing
  until that is stored: of several attempts, one succeeds.
- A message whose change could not be stored is left again, and falls due.
- A message that is given another time gets a new receipt; the old one is no longer valid.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Container, Sequence
from typing import Final, Protocol

from rocketpost.broker.pop.changes import Change
from rocketpost.broker.pop.in_flight import Checkpoint, InFlightTable, Key
from rocketpost.broker.pop.log import PopLog
from rocketpost.broker.pop.progress import PopProgress
from rocketpost.broker.pop.targets import Cursor, Targets
from rocketpost.broker.priority import has_levels
from rocketpost.codec.faults import NoMessage
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record
from rocketpost.errors import LocalProtocolError, RocketpostError
from rocketpost.model import properties as names
from rocketpost.model.clock import Clock
from rocketpost.model.names import RETRY_PREFIX
from rocketpost.model.topic import TopicConfig
from rocketpost.store.draft import Draft
from rocketpost.store.queue.consume_queue import ConsumeQueue

logger = logging.getLogger(__name__)

_CHANGES_MS_MAX: Final = 1000
"""Largest lead of a receipt over the clock from quick changes; beyond, the clock was set back."""
REVIVED_AT_ONCE: Final = 32
RETRY_MS: Final = 1000
"""Time before a failed change is tried again."""
_FIRST_POP_MS: Final = "1ST_POP_TIME"


class Store(Protocol):
    """The part of the store that this module uses."""

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue, or None if it never had a message."""
        ...

    def record_of(
        self, queue: ConsumeQueue, offset: int, position: int, size: int
    ) -> Record | None:
        """Return the record that a queue entry points to; None if it is gone or damaged."""
        ...


class Topics(Protocol):
    """The part of the topic table that this module uses."""

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of ``topic``."""
        ...

    def create_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        """Return a retry topic, created if need be."""
        ...

    def widen_internal(self, topic: str, *, queue_nums: int) -> TopicConfig:
        """Return a retry topic with at least that many queues."""
        ...


class Groups(Protocol):
    """The part of the group table that this module uses."""

    def find(self, group: str) -> object | None:
        """Return the configuration of ``group``."""
        ...


class Acknowledgement(Change):
    """The end of processed messages."""

    __slots__ = ("checkpoint", "offsets")

    def __init__(self, drafts: list[Draft], checkpoint: Checkpoint, offsets: Sequence[int]) -> None:
        super().__init__(drafts)
        self.checkpoint = checkpoint
        self.offsets = offsets


class Extension(Change):
    """A new invisible time for one message; its new receipt is valid once this is stored."""

    __slots__ = ("new", "offset", "old")

    def __init__(self, drafts: list[Draft], old: Checkpoint, new: Checkpoint, offset: int) -> None:
        super().__init__(drafts, first_offset=new.revive_offset)
        self.old = old
        self.new = new
        self.offset = offset

    @property
    def pop_ms(self) -> int:
        """The time in the new receipt."""
        return self.new.key.pop_ms

    @property
    def revive_queue(self) -> int:
        """The revive queue in the new receipt."""
        return self.new.revive_queue


class Redelivery(Change):
    """Copies of messages to redeliver, and the end of the originals."""

    __slots__ = ("checkpoint", "copied", "offsets")

    def __init__(
        self,
        drafts: list[Draft],
        checkpoint: Checkpoint,
        offsets: Sequence[int],
        copied: Sequence[int],
    ) -> None:
        super().__init__(drafts)
        self.checkpoint = checkpoint
        self.offsets = offsets
        self.copied = copied
        """The copied messages, one record each, before the record that ends all of them."""


class ReceiptService:
    """Ends checkpoints. Owned by the event loop; waits for nothing.

    Args:
        store_host: The address of this broker, for the ids of copies.
    """

    def __init__(
        self,
        *,
        store: Store,
        topics: Topics,
        groups: Groups,
        in_flight: InFlightTable,
        log: PopLog,
        progress: PopProgress,
        targets: Targets,
        clock: Clock,
        store_host: bytes,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._in_flight = in_flight
        self._log = log
        self._progress = progress
        self._targets = targets
        self._clock = clock
        self._store_host = store_host
        self.acknowledged: Counter[tuple[str, str]] = Counter()
        """Number of acknowledgements that were stored, by topic and group."""
        self.redelivered: Counter[tuple[str, str]] = Counter()
        """Number of messages that were stored again, by topic and group."""

    def ack(self, key: Key, offsets: Container[int]) -> Change | None:
        """Acknowledge messages; None if nothing is left to store, which is not an error.

        If another request is already ending them, that change is returned: it must be stored before
        this request is answered.
        """
        checkpoint = self._in_flight.find(key)
        if checkpoint is None:
            return None
        left = sorted(each for each in checkpoint.left if each in offsets)
        if not left:
            closing = [change for each, change in checkpoint.closing.items() if each in offsets]
            return closing[-1] if closing else None
        draft = self._log.ack_draft(checkpoint, left, now_ms=self._clock.now_ms())
        change = Acknowledgement([draft], checkpoint, left)
        self._in_flight.begin_close(checkpoint, left, change)
        return change

    def change_invisible_time(self, key: Key, offset: int, invisible_ms: int) -> Extension:
        """Set the redelivery of a message to ``invisible_ms`` from now.

        Raises:
            NoMessage: The receipt is no longer valid: acknowledged, changed or handed out again.
        """
        if self._groups.find(key.group) is None:
            # A new checkpoint would bring the group back at the next start.
            raise NoMessage(f"the group {key.group} was deleted, and its receipts with it")
        old = self._in_flight.find(key)
        if old is None or offset not in old.left:
            raise NoMessage("the receipt is no longer valid: acknowledged, or its time is over")
        now_ms = pop_ms = self._clock.now_ms()
        if now_ms <= key.pop_ms < now_ms + _CHANGES_MS_MAX:
            # Names of ended checkpoints must not be reused: their acknowledgements are in the log.
            pop_ms = key.pop_ms + 1
        while self._in_flight.find(key._replace(start_offset=offset, pop_ms=pop_ms)) is not None:
            pop_ms += 1
        new = Checkpoint(
            key._replace(start_offset=offset, pop_ms=pop_ms),
            invisible_ms=invisible_ms,
            offsets=[offset],
            revive_queue=old.revive_queue,
            revive_offset=self._progress.next_offset(old.revive_queue),
        )
        drafts = [
            self._log.checkpoint_draft(new, now_ms=now_ms, moves_offset=False),
            self._log.ack_draft(old, [offset], now_ms=now_ms),
        ]
        change = Extension(drafts, old, new, offset)
        self._in_flight.add(new)
        self._in_flight.begin_close(old, [offset], change)
        return change

    def until_ms(self, cursor: Cursor, offset: int) -> int | None:
        """Return the time until which a message is handed out; None if it is not."""
        checkpoint = self._in_flight.find_message(cursor, offset)
        return None if checkpoint is None else checkpoint.due_ms

    def next_due_ms(self) -> int | None:
        """Return when the next message is redelivered; None if none is in flight."""
        return self._in_flight.next_due_ms()

    def revive(self) -> list[Change]:
        """Return changes that redeliver some of the messages that are due."""
        due = self._in_flight.take_due(self._clock.now_ms(), count_max=REVIVED_AT_ONCE)
        changes = [self._revive(checkpoint) for checkpoint in due]
        return [change for change in changes if change is not None]

    def settle(self, change: Change) -> None:
        """End the messages of a stored change; have the others redelivered."""
        if isinstance(change, Acknowledgement):
            if change.is_stored:
                key = change.checkpoint.key
                self.acknowledged[key.topic, key.group] += 1
                self._close(change.checkpoint, change.offsets)
            else:
                self._reopen(change.checkpoint, change.offsets, change.checkpoint.due_ms)
        elif isinstance(change, Extension):
            self._settle_extension(change)
        else:
            assert isinstance(change, Redelivery)
            self._settle_redelivery(change)

    # Redelivery.

    def _revive(self, checkpoint: Checkpoint) -> Redelivery | None:
        offsets = sorted(checkpoint.left)
        try:
            copies = self._copies(checkpoint, offsets)
            ack = self._log.ack_draft(checkpoint, offsets, now_ms=self._clock.now_ms())
        except (RocketpostError, OSError) as error:
            logger.warning(
                "popped messages not redelivered, will be tried again: topic=%s group=%s reason=%s",
                checkpoint.key.topic, checkpoint.key.group, error,
            )  # fmt: skip
            self._in_flight.arm(checkpoint, self._clock.now_ms() + RETRY_MS)
            return None
        change = Redelivery([*copies.values(), ack], checkpoint, offsets, list(copies))
        self._in_flight.begin_close(checkpoint, offsets, change)
        return change

    def _copies(self, checkpoint: Checkpoint, offsets: Sequence[int]) -> dict[int, Draft]:
        """Return the copies to store for messages that are left, by their offsets."""
        key = checkpoint.key
        if self._topics.find(key.topic) is None or self._groups.find(key.group) is None:
            logger.info(
                "popped messages dropped, topic or group deleted: topic=%s group=%s",
                key.topic,
                key.group,
            )
            return {}
        topic = self._targets.written_retry_topic(key.topic, key.group)
        queue_id = self._retry_queue(key, topic)
        copies: dict[int, Draft] = {}
        for offset in offsets:
            record = self._record(key, offset)
            if record is None:
                logger.warning("popped message is gone or damaged: key=%s offset=%s", key, offset)
            else:
                copies[offset] = self._copy(record, topic, queue_id, key.pop_ms)
        return copies

    def _retry_queue(self, key: Key, topic: str) -> int:
        """Return the queue of the retry topic that keeps the priority of a message."""
        if key.topic == topic:  # it was redelivered before
            return key.queue_id
        config = self._topics.find(key.topic)
        if config is not None and has_levels(config):
            self._topics.widen_internal(topic, queue_nums=config.write_queue_nums)
            return key.queue_id
        if self._topics.find(topic) is None:
            self._topics.create_internal(topic, queue_nums=1)
        return 0

    def _record(self, key: Key, offset: int) -> Record | None:
        queue = self._store.queue(key.topic, key.queue_id)
        if queue is None or not queue.first <= offset < queue.end:
            return None
        entry = queue.entry(offset)
        return None if entry is None else self._store.record_of(queue, offset, *entry[:2])

    def _copy(self, record: Record, topic: str, queue_id: int, pop_ms: int) -> Draft:
        properties = record.properties
        encoded = record.properties_bytes
        more = {_FIRST_POP_MS: str(pop_ms)}
        if not record.topic.startswith(RETRY_PREFIX):
            more[names.RETRY_TOPIC] = record.topic  # for readers of retries and dead letters
        if not more.keys() <= properties.keys():
            with contextlib.suppress(LocalProtocolError):  # stored without them if there is no room
                encoded = encode_properties(more | properties)
        return Draft.copy_of(
            record,
            topic=topic,
            queue_id=queue_id,
            store_host=self._store_host,
            reconsume_times=record.reconsume_times + 1,
            properties=encoded,
        )

    # Settled changes.

    def _settle_extension(self, change: Extension) -> None:
        old, new, offset = change.old, change.new, change.offset
        if not change.is_stored:
            self._in_flight.discard(new)
            self._reopen(old, [offset], old.due_ms)
            return
        # If only the first record fitted, a crash redelivers the message once more than asked.
        self._in_flight.launch(new)
        self._progress.note_launched(new)
        self._close(old, [offset])

    def _settle_redelivery(self, change: Redelivery) -> None:
        copied = change.copied
        done = change.offsets if change.count > len(copied) else copied[: change.count]
        left = [offset for offset in change.offsets if offset not in done]
        key = change.checkpoint.key
        self.redelivered[key.topic, key.group] += min(change.count, len(copied))
        if left:
            self._reopen(change.checkpoint, left, self._clock.now_ms() + RETRY_MS)
        self._close(change.checkpoint, done)

    def _close(self, checkpoint: Checkpoint, offsets: Sequence[int]) -> None:
        self._in_flight.close(checkpoint, offsets)
        self._progress.note_ended(checkpoint.revive_queue)

    def _reopen(self, checkpoint: Checkpoint, offsets: Sequence[int], due_ms: int) -> None:
        self._in_flight.reopen(checkpoint, offsets, due_ms=due_ms)
        self._progress.on_due()
