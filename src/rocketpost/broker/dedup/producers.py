"""Messages that idempotent producers have stored, by their sequence numbers.

A producer numbers its messages. For each producer id the broker keeps the epoch and the set of
sequences that are in its log. A sequence in the set is a duplicate, even if it names another queue.
Gaps and any order are allowed, unless a message names the sequence it must follow. A higher epoch
starts an empty set and fences off the lower ones.

All of this state is derived from the log. A message counts as soon as it is appended (a duplicate
may arrive in the same loop iteration), but stays uncommitted until the log is written, so that a
failed write can be undone. A snapshot covers the log up to a position; the rest is read from the
log.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from rocketpost.broker.dedup.sequences import SequenceSet
from rocketpost.codec.bodies.producers import ProducerSnapshot, ProducerState
from rocketpost.codec.faults import ProducerFenced, SequenceForgotten, SequenceOutOfOrder
from rocketpost.errors import StoreError
from rocketpost.model.stamp import Stamp, producer_id_problem
from rocketpost.store.draft import Appended

logger = logging.getLogger(__name__)

PLACES_MIN: Final = 8192
"""Minimum number of newest messages kept with their place; at most twice as many are kept. Older
ones are looked up in the index."""
SNAPSHOT_VERSION: Final = 1
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ProducerSnapshot)


class ProducerLimits(NamedTuple):
    """Bounds on the producer table."""

    producers_max: int = 20_000
    """Number of producers; beyond it, the producer that has been silent longest is forgotten."""
    idle_ms_max: int = 7 * 86_400_000
    """Silence after which a producer is forgotten."""
    runs_max: int = 16_384
    """Runs of sequences of one producer."""
    runs_total_max: int = 1_000_000
    """Runs of all producers; beyond it, the producer that has been silent longest is forgotten."""


class _Producer:
    __slots__ = ("epoch", "seen", "used_ms")

    def __init__(self, epoch: int, seen: SequenceSet, used_ms: int) -> None:
        self.epoch = epoch
        self.seen = seen
        self.used_ms = used_ms


class ProducerTable:
    """The producers of one broker, the most recently active last. Owned by the loop."""

    def __init__(self, limits: ProducerLimits | None = None) -> None:
        self.limits = limits or ProducerLimits()
        self._producers: OrderedDict[str, _Producer] = OrderedDict()
        self._runs_total = 0
        self._uncommitted: dict[Stamp, Appended] = {}
        self._uncommitted_epochs: dict[str, int] = {}
        self._places: dict[Stamp, Appended] = {}
        self._older_places: dict[Stamp, Appended] = {}
        self._anchor = (-1, 0)
        self.position = -1
        """Log position up to which the loaded snapshot reaches; -1 if there was none."""
        self.revision = 0
        """Number of changes; the saver compares it to tell whether to write the table."""
        self.duplicates = 0
        self.forgotten = 0
        """Number of producers that were forgotten for lack of room."""

    def __len__(self) -> int:
        return len(self._producers)

    # -- deciding

    def is_stored(self, stamp: Stamp, after: int | None = None) -> bool:
        """Tell whether this message is already in the log, counting uncommitted appends.

        Args:
            stamp: The message.
            after: The sequence that must be stored before it, if any.

        Raises:
            ProducerFenced: A later epoch has begun.
            SequenceForgotten: The sequence is too old to be known.
            SequenceOutOfOrder: The message is new, but the sequence before it is not stored.
        """
        if stamp in self._uncommitted:
            return True
        producer = self._producers.get(stamp.producer_id)
        epoch = producer.epoch if producer is not None else -1
        epoch = max(epoch, self._uncommitted_epochs.get(stamp.producer_id, -1))
        if epoch > stamp.epoch:
            raise ProducerFenced(
                f"the producer {stamp.producer_id} has begun epoch {epoch}; "
                f"epoch {stamp.epoch} may no longer send"
            )
        seen = producer.seen if producer is not None and producer.epoch == stamp.epoch else None
        if seen is not None:
            if stamp.sequence in seen:
                return True
            if stamp.sequence < seen.horizon:
                raise SequenceForgotten(
                    f"sequence {stamp.sequence} of the producer {stamp.producer_id} is lower than "
                    f"{seen.horizon}, the lowest that the broker remembers; it may be stored or not"
                )
        if after is not None and not self._has(stamp._replace(sequence=after), seen):
            raise SequenceOutOfOrder(
                f"sequence {stamp.sequence} of the producer {stamp.producer_id} must follow "
                f"{after}, which is not stored; send that one first"
            )
        return False

    def place(self, stamp: Stamp) -> Appended | None:
        """Return the place of a stored message, if it is still known here."""
        return (
            self._uncommitted.get(stamp) or self._places.get(stamp) or self._older_places.get(stamp)
        )

    # -- recording stored messages

    def take(self, stamp: Stamp, appended: Appended) -> None:
        """Record an appended message; :meth:`commit` or :meth:`undo` follows."""
        self._uncommitted[stamp] = appended
        self._uncommitted_epochs[stamp.producer_id] = stamp.epoch

    def commit(self) -> None:
        """Commit the appended messages: the log is written."""
        if not self._uncommitted:
            return
        for stamp, appended in self._uncommitted.items():
            self.replay(stamp, position=appended.position, store_ms=appended.store_ms)
            self._places[stamp] = appended
        if len(self._places) >= PLACES_MIN:
            self._older_places, self._places = self._places, {}
        self._uncommitted = {}
        self._uncommitted_epochs = {}

    def undo(self) -> None:
        """Undo the appends since the last commit: they could not be written."""
        self._uncommitted = {}
        self._uncommitted_epochs = {}

    def replay(self, stamp: Stamp, *, position: int, store_ms: int) -> None:
        """Record a message read from the log; repeating it has no effect."""
        producer = self._producers.get(stamp.producer_id)
        if producer is None or producer.epoch < stamp.epoch:
            if producer is not None:
                self._runs_total -= len(producer.seen)
            producer = _Producer(stamp.epoch, SequenceSet(), store_ms)
            self._producers[stamp.producer_id] = producer
        self._producers.move_to_end(stamp.producer_id)
        if stamp.epoch == producer.epoch and stamp.sequence >= producer.seen.horizon:
            before = len(producer.seen)
            producer.seen.add(stamp.sequence, runs_max=self.limits.runs_max)
            self._runs_total += len(producer.seen) - before
        producer.used_ms = max(producer.used_ms, store_ms)
        self._anchor = (position, store_ms)
        self.revision += 1
        if len(self._producers) > self.limits.producers_max:
            self._forget_for_room()
        while self._runs_total > self.limits.runs_total_max and len(self._producers) > 1:
            self._forget_for_room()

    def forget_before_log(self) -> None:
        """Note that the log begins too late to show every message of a producer."""
        for producer in self._producers.values():
            producer.seen.forget_below_first()
        self.revision += 1

    def add_silent(self, older: ProducerTable) -> None:
        """Add producers of an older snapshot that are missing here."""
        for producer_id, producer in reversed(older._producers.items()):
            if producer_id not in self._producers:
                self._producers[producer_id] = producer
                self._producers.move_to_end(producer_id, last=False)
                self._runs_total += len(producer.seen)
                self.revision += 1

    def expire(self, now_ms: int) -> None:
        """Forget producers that have been silent for too long."""
        limit_ms = now_ms - self.limits.idle_ms_max
        for producer_id, producer in list(self._producers.items()):
            if producer.used_ms >= limit_ms:
                return
            self._forget(producer_id)

    # -- inspecting and saving

    def states(self, producer_id: str | None = None) -> Iterator[ProducerState]:
        """Return the state of one producer, or of all, the most recent first."""
        ids = [producer_id] if producer_id is not None else reversed(self._producers)
        for each in ids:
            producer = self._producers.get(each)
            if producer is not None:
                yield ProducerState(
                    producer_id=each,
                    epoch=producer.epoch,
                    last_timestamp=producer.used_ms,
                    horizon=producer.seen.horizon,
                    runs=producer.seen.runs,
                )

    def to_json(self, position: int) -> bytes:
        """Return a snapshot that covers the log before ``position``."""
        assert not self._uncommitted
        anchor_position, anchor_timestamp = self._anchor
        return _encode(
            ProducerSnapshot(
                version=SNAPSHOT_VERSION,
                position=position,
                anchor_position=anchor_position,
                anchor_timestamp=anchor_timestamp,
                producers=list(self.states())[::-1],
            )
        )

    def load(self, data: bytes) -> None:
        """Load a snapshot.

        Raises:
            StoreError: The text is not a snapshot.
        """
        try:
            snapshot = _decoder.decode(data)
            if snapshot.version != SNAPSHOT_VERSION:
                raise StoreError(f"producerState.json has the unknown version {snapshot.version}")
            self._take_over(snapshot)
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreError(f"producerState.json cannot be read: {error}") from None

    @property
    def anchor(self) -> tuple[int, int]:
        """Position and store time of a message that the log must contain; -1 if there is none."""
        return self._anchor

    def _take_over(self, snapshot: ProducerSnapshot) -> None:
        for state in snapshot.producers:
            if problem := producer_id_problem(state.producer_id):
                raise ValueError(problem)
            seen = SequenceSet(state.runs, state.horizon)
            self._producers[state.producer_id] = _Producer(state.epoch, seen, state.last_timestamp)
            self._runs_total += len(seen)
        self._anchor = (snapshot.anchor_position, snapshot.anchor_timestamp)
        self.position = snapshot.position

    def _has(self, stamp: Stamp, seen: SequenceSet | None) -> bool:
        return (seen is not None and stamp.sequence in seen) or stamp in self._uncommitted

    def _forget_for_room(self) -> None:
        self.forgotten += 1
        oldest = next(iter(self._producers))
        logger.warning("producer forgotten for lack of room: id=%s", oldest)
        self._forget(oldest)

    def _forget(self, producer_id: str) -> None:
        self._runs_total -= len(self._producers.pop(producer_id).seen)
        self.revision += 1
