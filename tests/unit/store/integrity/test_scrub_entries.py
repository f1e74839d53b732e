"""Comparison of records with their queue entries: what is mended, reported and left alone.

The tests of the whole scrub are beside these, in ``test_scrub.py``.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from rocketpost.kernel.record_scan import MAGIC_V2
from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.apply import NOT_IN_QUEUE
from rocketpost.store.integrity import scrub_entries
from rocketpost.store.integrity.record_evidence import FoundRecord, read_record
from rocketpost.store.integrity.scrub_entries import BLOCK_COUNT, EntryCheck
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.consume_queue import ConsumeQueue
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES
from store.conftest import Opener, Roomy, draft

COUNT = 300
DELAYS_MS = (1000, 5000)
CODE = 3027034
Entry = tuple[int, int, int]


class Disk(Roomy):
    """A disk that tells of each file that is opened."""

    on_open: Callable[[], None] | None = None

    def open(self, path: str, *, write: bool = False, create: bool = False) -> int:
        if self.on_open is not None:
            self.on_open()
        return super().open(path, write=write, create=create)


class Store:
    """A store with messages of some topics, opened again, so that all entries are in files."""

    def __init__(self, opener: Opener, count: int = COUNT) -> None:
        self._opener = opener
        self.disk = Disk()
        self.store = store = opener(files=self.disk)
        for number in range(count):
            properties = b"TAGS\x01blue\x02"
            store.append(draft(b"body%03d" % number, properties=properties, tags_code=CODE))
            store.append(draft(b"other%03d" % number, topic="Other"))
        store.append(draft(topic=SCHEDULE_TOPIC, queue_id=1, properties=b"DELAY\x012\x02"))
        self.store = self.reopen()
        self.visible_end = store.end_position
        self.check = self.make_check()

    def reopen(self) -> MessageStore:
        self.store.confirm(self.store.commit())
        self.store.close_blocking()
        self._opener.stores.remove(self.store)
        return self._opener(files=self.disk)

    def make_check(self) -> EntryCheck:
        return EntryCheck(
            self.store.files,
            segments=self.store.segments,
            queues=self.store.queues,
            deleted_topics=self.store._parts.deleted_topics,
            delays_ms=DELAYS_MS,
            visible_end=lambda: self.visible_end,
        )

    def queue(self, topic: str = "TopicA", queue_id: int = 0) -> ConsumeQueue:
        queue = self.store.queue(topic, queue_id)
        assert queue is not None
        return queue

    def entry(self, offset: int, topic: str = "TopicA", queue_id: int = 0) -> Entry:
        found = self.queue(topic, queue_id).entry(offset)
        assert found is not None
        return found

    def overwrite(
        self, offset: int, wrong: Entry, topic: str = "TopicA", queue_id: int = 0
    ) -> None:
        """Damage an entry in its file."""
        start = offset * ENTRY_BYTES // 2000 * 2000
        path = f"{self.store.config.root}/consumequeue/{topic}/{queue_id}/{start:020d}"
        fd = os.open(path, os.O_RDWR)
        try:
            os.pwrite(fd, ENTRY.pack(*wrong), offset * ENTRY_BYTES - start)
        finally:
            os.close(fd)

    def record(self, entry: Entry) -> tuple[FoundRecord, bytes]:
        """Return the record that an entry points to, as the scrub reads it."""
        position, size, _ = entry
        segment = self.store.segments.find(position)
        assert segment is not None
        at = position - segment.start
        data = bytes(segment.view()[at : at + size])
        found = read_record(data, 0, position)
        assert found is not None
        return found, data

    def compare(
        self, offset: int, topic: str = "TopicA", queue_id: int = 0, **changes: object
    ) -> str | None:
        """Check the record of an entry, or one with some other fields."""
        return self.compare_record(self.entry(offset, topic, queue_id), **changes)

    def compare_record(self, entry: Entry, **changes: object) -> str | None:
        found, data = self.record(entry)
        return self.check.check_from_thread(found._replace(**changes), data)


@pytest.fixture
def made(opener: Opener) -> Store:
    return Store(opener)


def test_records_with_their_entries_are_sound(made: Store) -> None:
    for offset in range(COUNT):
        assert made.compare(offset) is None
        assert made.compare(offset, "Other") is None
    assert made.compare(0, SCHEDULE_TOPIC, 1) is None
    assert made.check.mended_count == 0


WRONG: dict[str, Callable[[Store, Entry], Entry]] = {
    "another size": lambda made, right: (right[0], right[1] + 1, right[2]),
    "the middle of a record": lambda made, right: (right[0] + 3, right[1], right[2]),
    "no segment": lambda made, right: (2**40, right[1], right[2]),
    "the end of a segment": lambda made, right: (16384 - 100, 101, right[2]),
    "less than a record": lambda made, right: (right[0], 90, right[2]),
    "zeros": lambda made, right: (0, 0, 0),
    "a record of another topic": lambda made, right: made.entry(70, "Other"),
    "another code": lambda made, right: (right[0], right[1], right[2] + 1),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_damaged_entry_is_mended(
    made: Store, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    right = made.entry(70)
    wrong = WRONG[kind](made, right)
    made.overwrite(70, wrong)
    assert made.entry(70) == wrong
    assert made.compare_record(right) is None
    assert made.entry(70) == right
    assert made.check.mended_count == 1
    [line] = caplog.messages
    assert line == (
        f"queue entry was damaged and is mended topic=TopicA queue=0 offset=70 position={right[0]}"
    )
    assert made.compare_record(right) is None
    assert made.check.mended_count == 1


def test_the_code_of_an_entry_of_a_java_broker_may_be_an_address(made: Store) -> None:
    position, size, _ = made.entry(70)
    address = (position, size, -(2**63) + 5)
    made.overwrite(70, address)
    assert made.compare(70) is None
    assert made.entry(70) == address
    made.overwrite(70, (position, size, -(2**62) + 1))
    made.check.forget_entries()
    assert made.compare(70) is None
    assert made.entry(70) == (position, size, CODE)


def test_an_entry_of_a_delayed_message_has_the_time_at_which_it_is_due(made: Store) -> None:
    right = made.entry(0, SCHEDULE_TOPIC, 1)
    found, _ = made.record(right)
    # The entry has the delay of the store's settings, and the check has delays of its own.
    assert made.compare(0, SCHEDULE_TOPIC, 1) is None
    assert made.entry(0, SCHEDULE_TOPIC, 1) == right  # the levels may have been changed since
    made.overwrite(0, (2**40, 0, 0), SCHEDULE_TOPIC, 1)
    made.check.forget_entries()
    assert made.compare_record(right) is None
    assert made.entry(0, SCHEDULE_TOPIC, 1) == (*right[:2], found.store_ms + DELAYS_MS[1])


def test_a_record_that_has_no_entry_yet_or_never_is_not_compared(made: Store) -> None:
    right = made.entry(70)
    made.overwrite(70, (0, 0, 0))
    assert made.compare_record(right, sys_flag=NOT_IN_QUEUE) is None
    assert made.compare_record(right, topic="Gone") is None
    assert made.compare_record(right, queue_id=5) is None
    made.visible_end = right[0]
    assert made.compare_record(right) is None
    assert made.check.mended_count == 0
    made.visible_end = right[0] + 1
    assert made.compare_record(right) is None
    assert made.check.mended_count == 1


def test_records_before_the_beginning_of_their_queue_are_left_alone(made: Store) -> None:
    right = made.entry(70)
    made.queue().raise_first(made.entry(71)[0])
    assert made.queue().first == 71
    made.overwrite(70, (0, 0, 0))
    assert made.compare_record(right) is None
    assert made.check.mended_count == 0


def test_records_of_a_deleted_topic_are_left_alone(made: Store) -> None:
    right = made.entry(70)
    queue = made.queue()
    made.overwrite(70, (0, 0, 0))
    queue.is_deleted = True  # just now, in another thread
    assert made.compare_record(right) is None
    assert made.compare_record(right, queue_offset=COUNT) is None
    queue.is_deleted = False
    made.store._parts.deleted_topics.add("TopicA", right[0] + 1, {}, serial=1)
    assert made.compare_record(right) is None
    assert made.compare_record(right, queue_offset=COUNT) is None
    assert made.check.mended_count == 0


def test_an_offset_that_the_queue_does_not_have_is_damage(made: Store) -> None:
    reason = made.compare(70, queue_offset=COUNT)
    assert reason == f"it states the queue offset {COUNT}, which its queue does not have"


def test_an_offset_of_an_earlier_record_is_damage(made: Store) -> None:
    reason = made.compare(70, queue_offset=69)
    assert reason == "it states the queue offset 69, which belongs to another record"
    assert made.compare(70, queue_offset=71) is None  # the later record has the same offset
    assert made.check.mended_count == 0


def test_records_from_before_a_deletion_by_java_are_left_alone(made: Store) -> None:
    """They are older than all records of the queue, which counts from 0 again."""
    old = [made.entry(offset) for offset in range(COUNT)]
    made.queue().begin_again()
    for number in range(5):
        made.store.append(draft(b"again%03d" % number))
    made.store = made.reopen()
    made.visible_end = made.store.end_position
    made.check = made.make_check()
    assert made.queue().end == 5
    made.overwrite(3, (2**40, 100, 0))
    for entry in old:
        assert made.compare_record(entry) is None  # offsets in the queue and beyond its end
    assert made.entry(3) == (2**40, 100, 0)
    assert made.check.mended_count == 0


def test_without_the_first_entry_in_a_file_no_record_is_called_damaged(made: Store) -> None:
    right = made.entry(70)
    made.queue().begin_again()
    made.store.append(draft(b"again"))
    made.store.confirm(made.store.commit())
    assert made.queue().unsaved_bytes == ENTRY_BYTES
    assert made.compare_record(right) is None  # beyond the end of the queue
    assert made.compare_record(right, queue_offset=0) is None  # its entry is in memory, too
    assert made.check.mended_count == 0


def test_an_entry_of_a_queue_that_was_deleted_meanwhile_is_not_mended(made: Store) -> None:
    right = made.entry(70)
    made.overwrite(70, (0, 0, 0))
    queue = made.queue()

    def delete() -> None:
        queue.is_deleted = True

    found, data = made.record(right)
    made.disk.on_open = delete  # the check opens the queue's file after its look at the queue
    assert made.check.check_from_thread(found, data) is None
    assert queue.is_deleted
    assert made.entry(70) == (0, 0, 0)
    assert made.check.mended_count == 0


def test_entries_are_read_in_blocks_until_they_are_forgotten(made: Store) -> None:
    entries = {offset: made.entry(offset) for offset in (5, 6, BLOCK_COUNT)}
    assert made.compare(5) is None
    for offset in (6, BLOCK_COUNT):
        made.overwrite(offset, (0, 0, 0))
    assert made.compare_record(entries[6]) is None
    assert made.check.mended_count == 0  # its entry was read with that of 5
    assert made.compare_record(entries[BLOCK_COUNT]) is None
    assert made.check.mended_count == 1  # another block, and after a change all are read again
    assert made.compare_record(entries[6]) is None
    assert made.check.mended_count == 2
    made.overwrite(6, (0, 0, 0))
    assert made.compare(5) is None
    made.check.forget_entries()
    assert made.compare_record(entries[6]) is None
    assert made.check.mended_count == 3


def test_the_oldest_block_is_forgotten_when_there_are_too_many(
    made: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_entries, "BLOCKS_MAX", 1)
    right = made.entry(6)
    assert made.compare(5) is None
    made.overwrite(6, (0, 0, 0))
    assert made.compare(5, "Other") is None
    assert made.compare_record(right) is None
    assert made.check.mended_count == 1


def head_of(made: Store, entry: Entry) -> bytes:
    return made.record(entry)[1][:88]


def test_an_unreadable_record_is_found_by_the_entry_that_points_to_it(made: Store) -> None:
    for topic in ("TopicA", "Other"):
        entry = made.entry(70, topic)
        assert made.check.place_of_from_thread(entry[0], head_of(made, entry)) == (topic, 0, 70)


def test_an_unreadable_record_without_an_entry_has_no_place(made: Store) -> None:
    nowhere = (None, -1, -1)
    position, *_ = entry = made.entry(70)
    head = head_of(made, entry)
    place_of = made.check.place_of_from_thread
    assert place_of(position, head[:20]) == nowhere
    assert place_of(position, bytes(88)) == nowhere
    assert place_of(position + 1, head) == nowhere  # its magic is right, but no entry points there
    magic = MAGIC_V2.to_bytes(4, "big")
    beyond = head[:4] + magic + head[8:20] + (2**40).to_bytes(8, "big") + head[28:]
    assert place_of(position, beyond) == nowhere
    other_queue = head[:12] + (7).to_bytes(4, "big") + head[16:]
    assert place_of(position, other_queue) == nowhere


def test_only_so_many_queues_are_searched_for_an_unreadable_record(
    made: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_entries, "OWNER_COUNT_MAX", 1)
    places = [
        made.check.place_of_from_thread(entry[0], head_of(made, entry))[0]
        for entry in (made.entry(70), made.entry(70, "Other"))
    ]
    assert places.count(None) == 1


def test_an_entry_in_memory_does_not_show_the_place_of_a_record(opener: Opener) -> None:
    made = Store(opener, count=1)
    made.store.append(draft(b"new"))
    made.store.confirm(made.store.commit())
    entry = made.entry(1)
    made.visible_end = made.store.end_position
    assert made.check.place_of_from_thread(entry[0], head_of(made, entry)) == (None, -1, -1)
    assert made.compare(1, size=5) is None
    assert made.check.mended_count == 0
