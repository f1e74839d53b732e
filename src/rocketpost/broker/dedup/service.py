"""Deduplication: decides which sends are duplicates, and finds their originals.

A duplicate is recognised in one of two ways: by the producer's own numbering
(``broker.dedup.producers``), which lasts for days and survives crashes of both sides, or by the
unique key that every client sets (``broker.dedup.unique_keys``), for a limited time in topics that
ask for it. The answer to a duplicate is that of the original: its queue, offset and id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.dedup.producers import ProducerTable
from rocketpost.broker.dedup.unique_keys import Key, KeyWindow
from rocketpost.broker.kinds import WAITING_TOPICS
from rocketpost.codec.faults import InvalidParameter, MessageIllegal
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX
from rocketpost.codec.record import Record
from rocketpost.model import properties as names
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.names import HALF_TOPIC, is_retry_or_dlq
from rocketpost.model.stamp import Stamp, parse_field, parse_property
from rocketpost.store.draft import Appended, Draft

NOWHERE: Final = QueueOffset(-1)
"""Queue offset of an original that is certainly stored but can no longer be found."""

_ANY_TIME: Final = 2**63 - 1
_LOOK_UP_MAX: Final = 32


class SendHeader(Protocol):
    """The fields of a send header that deduplication reads."""

    topic: str
    queue_id: int
    sequence: str | None


class Records(Protocol):
    """The part of the store that finds messages by key."""

    @property
    def written_position(self) -> Position:
        """Position before which everything is in the files."""
        ...

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        """Return positions of messages that may have this key."""
        ...

    def record_at(self, position: int) -> Record | None:
        """Return the record at ``position``."""
        ...


class Admission(NamedTuple):
    """Decision about one message of a send."""

    stamp: Stamp | None = None
    key: Key | None = None
    original: Appended | None = None
    """Place of the original, if the message is already stored."""
    twin: int = -1
    """Index of the earlier message of the batch that it duplicates; -1 for none."""

    @property
    def is_new(self) -> bool:
        """Whether the message is to be stored."""
        return self.original is None and self.twin < 0


class DedupService:
    """Tells new messages from duplicates. Owned by the loop."""

    def __init__(self, *, producers: ProducerTable, keys: KeyWindow, records: Records) -> None:
        self.producers = producers
        self.keys = keys
        self._records = records
        self._has_taken = False  # since the last commit

    def admit(self, header: SendHeader, drafts: Sequence[Draft]) -> list[Admission]:
        """Decide about each message of a send; mark new stamped ones for the log.

        Raises:
            Fault: The whole send is refused; nothing was changed.
        """
        if header.sequence is None:
            return self._admit_keyed(header, drafts)
        try:
            first, after = parse_field(header.sequence)
        except ValueError as error:
            raise InvalidParameter(f"the header field sequence is not valid: {error}") from None
        admitted = []
        for at, draft in enumerate(drafts):
            stamp = first.plus(at)
            _mark(draft, stamp)
            original = None
            if self.producers.is_stored(stamp, after):
                original = self.producers.place(stamp) or self._look_up(header, draft, stamp)
            admitted.append(Admission(stamp=stamp, original=original))
            after = None  # the messages of a batch follow each other anyway
        return admitted

    def take(self, admitted: Sequence[Admission], new: Sequence[Appended]) -> list[Appended]:
        """Record the new messages as appended; return the place of each message of the send."""
        fresh = iter(new)
        places: list[Appended] = []
        for each in admitted:
            if each.twin >= 0:
                places.append(places[each.twin])
                self.keys.duplicates += 1
            elif each.original is not None:
                places.append(each.original)
                counter = self.producers if each.stamp is not None else self.keys
                counter.duplicates += 1
            else:
                appended = next(fresh)
                places.append(appended)
                self._has_taken = True
                if each.stamp is not None:
                    self.producers.take(each.stamp, appended)
                elif each.key is not None:
                    self.keys.take(each.key, appended)
        return places

    def commit(self) -> None:
        """Commit the recorded messages: the log is written."""
        if self._has_taken:
            self._has_taken = False
            self.producers.commit()
            self.keys.commit()

    def undo(self) -> None:
        """Undo the records since the last commit: the messages could not be written."""
        self.producers.undo()
        self.keys.undo()

    def _admit_keyed(self, header: SendHeader, drafts: Sequence[Draft]) -> list[Admission]:
        topic = header.topic
        admitted: list[Admission] = []
        if not self.keys.window_ms(topic) or is_retry_or_dlq(topic):
            return [Admission()] * len(drafts)
        of_batch: dict[str, int] = {}
        for at, draft in enumerate(drafts):
            unique_key = draft.keys[0]
            twin = of_batch.setdefault(unique_key, at)
            if draft.reconsume_times > 0:  # a consumer resends it on purpose
                admitted.append(Admission())
            elif twin != at:
                admitted.append(Admission(twin=twin))
            else:
                key = (topic, unique_key)
                admitted.append(Admission(key=key, original=self.keys.original(key)))
        return admitted

    def _look_up(self, header: SendHeader, draft: Draft, stamp: Stamp) -> Appended:
        unique_key = draft.keys[0]
        for topic in (header.topic, *WAITING_TOPICS):
            for position in self._records.find(
                topic, unique_key, count_max=_LOOK_UP_MAX, begin_ms=0, end_ms=_ANY_TIME
            ):
                record = self._records.record_at(position)
                if record is not None and stamp_of(record) == stamp:
                    return _place(record, draft)
        # Its place in the log is unknown, so it is durable only once all of the log is.
        end = self._records.written_position
        return Appended(
            Position(0), end, NOWHERE, 0, header.topic, max(0, header.queue_id), 0, draft.keys, None
        )


def stamp_of(record: Record) -> Stamp | None:
    """Return the stamp of a message that an idempotent producer stored; None for others."""
    if record.reconsume_times > 0 or is_retry_or_dlq(record.topic):
        return None  # a copy made to be consumed again
    text = record.properties.get(names.PRODUCER_SEQUENCE)
    if text is None:
        return None
    try:
        return parse_property(text)
    except ValueError:
        return None


def sent_queue_id(record: Record) -> int:
    """Return the queue that a message was sent to, even while it waits in another topic."""
    text = record.properties.get(names.REAL_QUEUE_ID, "")
    if record.topic in WAITING_TOPICS and text.isascii() and text.isdecimal():
        return int(text)
    return record.queue_id


def _place(record: Record, draft: Draft) -> Appended:
    return Appended(
        Position(record.position),
        record.size,
        QueueOffset(record.queue_offset),
        record.store_ms,
        draft.topic,
        sent_queue_id(record),
        0,
        draft.keys,
        None,
    )


def _mark(draft: Draft, stamp: Stamp) -> None:
    """Write the stamp into a message."""
    if draft.topic == HALF_TOPIC:
        raise MessageIllegal(
            "a transactional message cannot have a sequence; its transaction identifies it"
        )
    if draft.reconsume_times > 0 or is_retry_or_dlq(draft.topic):
        raise MessageIllegal("a message that is retried cannot have a sequence")
    text = f"{names.PRODUCER_SEQUENCE}\x01{stamp.to_property()}\x02".encode()
    joint = b"" if draft.properties.endswith(b"\x02") else b"\x02"
    if len(draft.properties) + len(joint) + len(text) > PROPERTIES_BYTES_MAX:
        raise MessageIllegal(
            f"the message properties take more than {PROPERTIES_BYTES_MAX} bytes with the sequence"
        )
    draft.properties += joint + text
