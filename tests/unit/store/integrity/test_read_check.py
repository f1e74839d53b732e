"""Records on their way to readers: damaged ones are named and passed over, the rest is served."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rocketpost.model.names import SCHEDULE_TOPIC
from rocketpost.store.message_store import MessageStore
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES
from store.conftest import Opener, draft

COUNT = 20
HEAD = 88


def fill(opener: Opener, *, topic: str = "TopicA", count: int = COUNT) -> MessageStore:
    """Return a store whose messages are old: written and saved some time ago."""
    store = opener()
    for number in range(count):
        store.append(draft(b"body%03d" % number, topic=topic, tags_code=0))
        store.append(draft(b"other%03d" % number, topic="Other"))
    store.confirm(store.commit())
    store.flush_blocking()
    store.save_blocking()
    opener.clock.ms += 60_000
    return store


def reopened(opener: Opener, store: MessageStore) -> MessageStore:
    """Return the store opened again, so that its entries are read from files."""
    store.close_blocking()
    opener.stores.remove(store)
    return opener()


def flip(path: str | Path, at: int, bit: int = 0) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def flip_record(store: MessageStore, position: int, at: int, bit: int = 0) -> None:
    segment = store.segments.find(position)
    assert segment is not None
    flip(segment.path, position - segment.start + at, bit)


def flip_entry(store: MessageStore, offset: int, at: int, bit: int = 0) -> None:
    per_file = store.config.queue_file_bytes
    start = offset * ENTRY_BYTES // per_file * per_file
    path = f"{store.config.root}/consumequeue/TopicA/0/{start:020d}"
    flip(path, offset * ENTRY_BYTES - start + at, bit)


def units(store: MessageStore, begin: int, end: int) -> list[tuple[int, int, int]]:
    queue = store.queue("TopicA", 0)
    assert queue is not None
    data = queue.read(begin, end - begin)
    return [(at, *entry[:2]) for at, entry in enumerate(ENTRY.iter_unpack(data))]


def served(store: MessageStore, begin: int = 0, end: int = COUNT) -> list[int]:
    return [
        begin + unit[0] for unit in store.select_sound("TopicA", 0, begin, units(store, begin, end))
    ]


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (0, "size"), (3, "size"), (5, "magic"), (10, "CRC"), (15, "queue id"), (27, "queue offset"),
        (35, "position"), (87, "lengths"), (HEAD + 2, "CRC"), (HEAD + 7, "lengths"),
        (HEAD + 9, "topic"), (HEAD + 15, "lengths"),
    ],
)  # fmt: skip
def test_a_damaged_record_is_skipped_and_reported(
    opener: Opener, caplog: pytest.LogCaptureFixture, at: int, reason: str
) -> None:
    store = fill(opener)
    position = units(store, 7, 8)[0][1]
    flip_record(store, position, at)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert served(store) == [n for n in range(COUNT) if n != 7]
    (damage,) = store.damage.all()
    assert (damage.topic, damage.queue_id, damage.queue_offset) == ("TopicA", 0, 7)
    assert damage.begin == position
    assert reason in damage.reason
    assert damage.found_by == "read"
    assert len(caplog.records) == 1
    assert "topic=TopicA queue=0 offset=7" in caplog.text


def test_a_zeroed_record_is_damage_of_the_record(opener: Opener) -> None:
    store = fill(opener)
    (_, position, size) = units(store, 7, 8)[0]
    segment = store.segments.find(position)
    assert segment is not None
    with open(segment.path, "r+b") as file:
        file.seek(position - segment.start)
        file.write(bytes(size))
    assert served(store) == [n for n in range(COUNT) if n != 7]
    assert [each.queue_offset for each in store.damage.all()] == [7]


@pytest.mark.parametrize("at", range(12))
@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_damaged_entry_is_mended_from_its_record(opener: Opener, at: int, bit: int) -> None:
    store = reopened(opener, fill(opener))
    flip_entry(store, 7, at, bit)
    found = store.select_sound("TopicA", 0, 0, units(store, 0, COUNT))
    assert [unit[0] for unit in found] == list(range(COUNT))
    assert found == units(store, 0, COUNT)
    assert store.integrity.check.mended_count == 1
    assert store.damage.count == 0


def test_an_entry_with_many_wrong_bits_is_found_between_its_neighbours(opener: Opener) -> None:
    store = reopened(opener, fill(opener))
    right = units(store, 7, 8)
    for at in range(12):
        flip_entry(store, 7, at, at % 3)
    assert served(store) == list(range(COUNT))
    assert units(store, 7, 8) == right


def test_an_entry_whose_record_is_damaged_too_is_named(
    opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    store = reopened(opener, fill(opener))
    flip_record(store, units(store, 7, 8)[0][1], HEAD)
    for at in range(2, 8):
        flip_entry(store, 7, at)
    for _ in range(2):
        assert served(store) == [n for n in range(COUNT) if n != 7]
    assert store.integrity.check.lost_count == 1
    assert caplog.text.count("topic=TopicA queue=0 offset=7") == 1


def test_recently_written_or_checked_records_are_not_checked_again(opener: Opener) -> None:
    store = opener(read_check_interval_ms=1000)
    for number in range(COUNT):
        store.append(draft(b"body%03d" % number))
    store.confirm(store.commit())
    place = units(store, 7, 8)[0][1]
    flip_record(store, place, HEAD)
    opener.clock.ms += 900
    assert len(served(store)) == COUNT
    opener.clock.ms += 2100
    assert len(served(store)) == COUNT - 1
    flip_record(store, place, HEAD)  # sound again
    assert len(served(store)) == COUNT
    flip_record(store, place, HEAD)
    opener.clock.ms += 900
    assert len(served(store)) == COUNT
    opener.clock.ms += 200
    assert len(served(store)) == COUNT - 1


def test_everything_is_checked_each_time_if_the_interval_is_zero(opener: Opener) -> None:
    store = opener(read_check_interval_ms=0)
    store.append(draft(b"body"))
    store.confirm(store.commit())
    flip_record(store, 0, HEAD)
    assert served(store, 0, 1) == []


def test_a_clock_that_was_set_back_gives_no_trust(opener: Opener) -> None:
    store = fill(opener)
    assert len(served(store)) == COUNT
    flip_record(store, units(store, 7, 8)[0][1], HEAD)
    opener.clock.ms -= 3_600_000
    assert len(served(store)) == COUNT - 1


def test_messages_of_other_tags_do_not_count_as_checked(opener: Opener) -> None:
    store = fill(opener)
    some = [unit for unit in units(store, 0, COUNT) if unit[0] % 2 == 0]
    assert store.select_sound("TopicA", 0, 0, some) == some
    flip_record(store, units(store, 7, 8)[0][1], HEAD)
    assert len(served(store)) == COUNT - 1


def test_a_record_looked_up_by_position_is_checked(opener: Opener) -> None:
    store = fill(opener)
    position = units(store, 7, 8)[0][1]
    record = store.record_at(position)
    assert record is not None
    assert record.body == b"body007"
    flip_record(store, position, HEAD)
    assert store.record_at(position) is None
    assert [each.queue_offset for each in store.damage.all()] == [7]


def test_a_record_with_a_damaged_size_is_reported_by_position(opener: Opener) -> None:
    store = fill(opener)
    position = units(store, 7, 8)[0][1]
    flip_record(store, position, 1)
    assert store.record_at(position) is None
    assert [each.queue_offset for each in store.damage.all()] == [7]


def test_a_position_without_a_record_is_no_damage(opener: Opener) -> None:
    store = fill(opener)
    for position in range(1, 400):
        store.record_at(position)
    assert store.damage.count == 0


def test_the_record_of_an_entry_is_checked_and_found(opener: Opener) -> None:
    store = reopened(opener, fill(opener))
    queue = store.queue("TopicA", 0)
    assert queue is not None
    flip_entry(store, 7, 6)
    entry = queue.entry(7)
    assert entry is not None
    record = store.record_of(queue, 7, *entry[:2])
    assert record is not None
    assert record.body == b"body007"
    flip_record(store, record.position, HEAD)
    opener.clock.ms += 60_000
    assert store.record_of(queue, 7, record.position, record.size) is None


def test_the_due_time_of_a_mended_entry_is_right(opener: Opener) -> None:
    store = opener()
    store.append(draft(topic=SCHEDULE_TOPIC, queue_id=2, properties=b"DELAY\x013\x02"))
    store.confirm(store.commit())
    store = reopened(opener, store)
    queue = store.queue(SCHEDULE_TOPIC, 2)
    assert queue is not None
    right = queue.entry(0)
    assert right is not None
    flip(f"{store.config.root}/consumequeue/{SCHEDULE_TOPIC}/2/{0:020d}", 10)
    entry = queue.entry(0)
    assert entry is not None
    assert entry != right
    assert store.record_of(queue, 0, *entry[:2]) is not None
    assert queue.entry(0) == right
