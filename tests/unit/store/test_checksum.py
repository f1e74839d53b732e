"""Checksums of whole records (``enabledAppendPropCRC``): written as RocketMQ does, verified."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, decode_properties
from rocketpost.codec.record import Record, decode_record
from rocketpost.store.integrity.damage import BAD_RECORD, NO_CHECKSUM
from rocketpost.store.message_store import MessageStore
from store.conftest import Opener, draft

PROPERTIES = b"TAGS\x01blue\x02UNIQ_KEY\x01U1\x02"
SIGNED: dict[str, Any] = {"append_checksum": True, "scrub_bytes_per_second": 2**30}
COUNT = 12
BAD = 5
# Byte of a record and the field that it belongs to; the body's CRC covers none of them.
FIELDS = {"flag": 19, "sysFlag": 38, "born time": 44, "born host": 50, "store time": 60,
          "store host": 70, "reconsume times": 79, "prepared position": 83,
          "a property": -len(PROPERTIES) - 20 + 6, "a digit of the checksum": -4}  # fmt: skip


def raw(store: MessageStore, position: int, size: int) -> bytes:
    view = store.view(position, size)
    assert view is not None
    return bytes(view)


def digits(checksum: int) -> bytes:
    """Return a checksum as ``MessageDecoder.createCrc32`` writes it."""
    found = bytearray()
    for _ in range(10):
        found.append(ord("0") + checksum % 10)
        checksum //= 10
    return bytes(found)


def fill(opener: Opener, **more: Any) -> MessageStore:
    """Return a store whose records were written some time ago."""
    store = opener(**{**SIGNED, **more})
    for number in range(COUNT):
        store.append(draft(b"body%03d" % number, properties=PROPERTIES))
        store.confirm(store.commit())
    store.flush_blocking()
    store.save_blocking()
    opener.clock.ms += 60_000
    return store


def place(store: MessageStore, offset: int) -> tuple[int, int]:
    queue = store.queue("TopicA", 0)
    assert queue is not None
    entry = queue.entry(offset)
    assert entry is not None
    return entry[0], entry[1]


def served(store: MessageStore) -> list[int]:
    units = [(offset, *place(store, offset)) for offset in range(COUNT)]
    return [unit[0] for unit in store.select_sound("TopicA", 0, 0, units)]


def flip(store: MessageStore, at: int, bit: int = 0) -> None:
    position, size = place(store, BAD)
    segment = store.segments.find(position)
    assert segment is not None
    with open(segment.path, "r+b") as file:
        file.seek(position - segment.start + at % size)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (b"", b""),
        (PROPERTIES, PROPERTIES),
        (PROPERTIES[:-1], PROPERTIES),
        (b"__CRC32#\x011234567890\x02" + PROPERTIES, PROPERTIES),
        (PROPERTIES + b"__CRC32#\x011234567890\x02", PROPERTIES),
        (b"my__CRC32#\x01123\x02", b"my__CRC32#\x01123\x02"),
    ],
)
def test_enabledAppendPropCRC_ends_each_record_with_its_checksum(
    opener: Opener, given: bytes, kept: bytes
) -> None:
    store = opener(**SIGNED)
    for number in range(3):
        appended = store.append(draft(b"%d" % number, properties=given))
        store.confirm(store.commit())
        record = raw(store, appended.position, appended.size)
        checksum = crc32(record[:-20]) & 0x7FFF_FFFF
        expected = kept + b"__CRC32#\x01" + digits(checksum) + b"\x02"
        assert decode_record(record).properties_bytes == expected


def test_a_batch_of_signed_records_has_the_room_it_reserved(opener: Opener) -> None:
    store = opener(**SIGNED)
    drafts = [draft(bytes(100), properties=PROPERTIES[:-1]) for _ in range(35)]  # two do not fit
    appended = [store.append_batch(drafts) for _ in range(3)]
    store.confirm(store.commit())
    for batch in appended:
        assert len({each.position // 16384 for each in batch}) == 1
        for each in batch:
            assert decode_record(raw(store, each.position, each.size)).size == each.size


def test_the_checksum_of_another_record_is_not_stored(opener: Opener) -> None:
    store = opener()
    stale = b"__CRC32#\x010000000001\x02"
    appended = store.append(draft(properties=PROPERTIES + stale))
    store.confirm(store.commit())
    record = decode_record(raw(store, appended.position, appended.size))
    assert record.properties_bytes == PROPERTIES
    opener.clock.ms += 60_000
    assert store.select_sound("TopicA", 0, 0, [(0, appended.position, appended.size)])


def test_a_name_that_ends_like_a_checksums_is_no_checksum(opener: Opener) -> None:
    store = opener()
    properties = b"my__CRC32#\x010000000001\x02"
    appended = store.append(draft(properties=properties))
    store.confirm(store.commit())
    opener.clock.ms += 60_000
    assert store.select_sound("TopicA", 0, 0, [(0, appended.position, appended.size)])
    record = decode_record(raw(store, appended.position, appended.size))
    assert record.properties == {"my__CRC32#": "0000000001"}


def test_a_copy_whose_properties_leave_no_room_is_stored_without(opener: Opener) -> None:
    store = opener(**SIGNED, segment_bytes=65536)
    for spare in (19, 20):
        properties = b"k\x01" + b"v" * (PROPERTIES_BYTES_MAX - spare - 3) + b"\x02"
        appended = store.append(draft(properties=properties))
        store.confirm(store.commit())
        record = decode_record(raw(store, appended.position, appended.size))
        assert ("__CRC32#" in decode_properties(record.properties_bytes)) == (spare == 20)


@pytest.mark.parametrize("at", FIELDS.values(), ids=FIELDS)
def test_a_flipped_bit_of_a_signed_record_is_noticed_when_it_is_read(
    opener: Opener, at: int
) -> None:
    store = fill(opener)
    flip(store, at)
    assert served(store) == [offset for offset in range(COUNT) if offset != BAD]
    (damage,) = store.damage.all()
    assert (damage.topic, damage.queue_id, damage.queue_offset) == ("TopicA", 0, BAD)
    assert (damage.reason, damage.found_by) == (BAD_RECORD, "read")


@pytest.mark.parametrize("at", FIELDS.values(), ids=FIELDS)
def test_a_flipped_bit_of_a_signed_record_is_noticed_by_position(opener: Opener, at: int) -> None:
    store = fill(opener)
    flip(store, at)
    assert store.record_at(place(store, BAD)[0]) is None
    assert [each.queue_offset for each in store.damage.all()] == [BAD]
    sound = store.record_at(place(store, BAD + 1)[0])
    assert isinstance(sound, Record)
    assert sound.queue_offset == BAD + 1


@pytest.mark.parametrize("at", FIELDS.values(), ids=FIELDS)
def test_a_flipped_bit_of_a_signed_record_is_noticed_by_the_scrub(opener: Opener, at: int) -> None:
    store = fill(opener)
    store.close_blocking()
    opener.stores.remove(store)
    store = opener(**SIGNED)
    flip(store, at)
    store.integrity.scrub.run_round_blocking()
    (damage,) = store.damage.all()
    assert (damage.topic, damage.queue_id, damage.queue_offset) == ("TopicA", 0, BAD)
    assert (damage.reason, damage.found_by) == (BAD_RECORD, "scrub")


@pytest.mark.parametrize("at", [*FIELDS.values(), 15, 27], ids=[*FIELDS, "queue id", "offset"])
def test_a_flipped_bit_of_a_signed_record_is_noticed_at_recovery(opener: Opener, at: int) -> None:
    store = opener(**SIGNED)
    for number in range(COUNT):
        store.append(draft(b"body%03d" % number, properties=PROPERTIES))
    store.confirm(store.commit())
    flip(store, at)
    position, size = place(store, BAD)
    opener.crash(store)
    store = opener(**SIGNED)
    (damage,) = store.damage.all()
    assert (damage.begin, damage.end) == (position, position + size)
    assert (damage.reason, damage.found_by) == (BAD_RECORD, "recovery")
    queue = store.queue("TopicA", 0)
    assert queue is not None
    assert queue.end == COUNT  # no offset is given again, and the later ones keep theirs
    assert store.append(draft()).queue_offset == COUNT


def test_checksums_are_verified_also_where_none_are_written_any_more(opener: Opener) -> None:
    store = fill(opener)
    store.close_blocking()
    opener.stores.remove(store)
    store = opener(append_checksum=False)
    flip(store, FIELDS["born time"])
    assert BAD not in served(store)


@pytest.mark.parametrize("is_forced", [False, True])
def test_forceVerifyPropCRC_refuses_records_without_a_checksum(
    opener: Opener, is_forced: bool
) -> None:
    store = fill(opener, append_checksum=False)
    store.close_blocking()
    opener.stores.remove(store)
    store = opener(**SIGNED, require_checksum=is_forced)
    end = store.end_position
    assert end > 0  # it is never taken for the end of the log
    position = place(store, BAD)[0]
    assert (store.record_at(position) is None) == is_forced
    assert served(store) == ([] if is_forced else list(range(COUNT)))
    reasons = {damage.reason for damage in store.damage.all()}
    assert reasons == ({NO_CHECKSUM} if is_forced else set())


def test_the_scrub_finds_records_without_a_checksum_if_all_must_have_one(opener: Opener) -> None:
    store = fill(opener, append_checksum=False)
    store.close_blocking()
    opener.stores.remove(store)
    store = opener(**SIGNED, require_checksum=True)
    store.integrity.scrub.run_round_blocking()
    assert {damage.reason for damage in store.damage.all()} == {NO_CHECKSUM}
