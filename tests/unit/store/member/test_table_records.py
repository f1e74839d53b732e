"""Tables in records of the log: in parts, whole or not at all, and found again."""

from __future__ import annotations

import random

import pytest

from rocketpost.codec.record import pack_host
from rocketpost.errors import CorruptRecord
from rocketpost.store.draft import Draft
from rocketpost.store.member.group_records import draft_group_record, draft_term, parse_group_record
from rocketpost.store.member.table_records import (
    PART_BYTES_MAX,
    TableRecord,
    draft_tables,
    newest_copy,
    read_tables,
)
from rocketpost.store.message_store import MessageStore

from ..conftest import Opener, draft

HOST = pack_host("10.0.0.1", 10911)


def drafts(data: bytes, *, is_copy: bool = False, segment_bytes: int = 8 * 100) -> list[Draft]:
    return draft_tables(data, is_copy=is_copy, segment_bytes=segment_bytes, host=HOST, now_ms=5)


def append(store: MessageStore, records: list[Draft]) -> int:
    """Append and show records; return the position of the first."""
    position = store.append(records[0]).position
    for record in records[1:]:
        store.append(record)
    store.confirm(store.commit())
    return int(position)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_parts_have_a_bounded_size() -> None:
    parts = drafts(noise(1_000_000), segment_bytes=1 << 30)
    assert len(parts) == 4
    assert all(len(part.body) <= PART_BYTES_MAX + 8 for part in parts)
    assert all(len(part.body) <= 1008 for part in drafts(noise(5000), segment_bytes=8000))


def test_changes_are_read_whole_and_in_order(opener: Opener) -> None:
    store = opener()
    texts = [noise(size) for size in (10, 500, 99, 1000)]
    positions = [append(store, drafts(text, is_copy=text is texts[2])) for text in texts]
    found = list(read_tables(store, 0))
    assert [each.data for each in found] == texts
    assert [each.position for each in found] == positions
    assert [each.is_copy for each in found] == [False, False, True, False]
    assert list(read_tables(store, found[2].offset)) == found[2:]


def test_a_change_without_all_of_its_parts_has_no_effect(opener: Opener) -> None:
    store = opener()
    parts = drafts(noise(500))
    assert len(parts) > 3
    append(store, parts[:2])
    append(store, drafts(b"whole"))
    append(store, parts[1:])
    append(store, [parts[0], parts[2]])
    assert [each.data for each in read_tables(store, 0)] == [b"whole"]


def test_the_newest_whole_copy_is_found(opener: Opener) -> None:
    store = opener()
    assert newest_copy(store) is None
    append(store, [draft(b"other")])
    append(store, drafts(b"change"))
    assert newest_copy(store) is None
    append(store, drafts(noise(300), is_copy=True))
    position = append(store, drafts(noise(400), is_copy=True))
    append(store, drafts(b"later"))
    append(store, drafts(noise(500), is_copy=True)[:-1])  # its leader was deposed
    append(store, [draft_term(7, "n0", start=0, host=HOST, now_ms=5)])
    found = newest_copy(store)
    assert isinstance(found, TableRecord)
    assert (found.data, found.position, found.is_copy) == (noise(400), position, True)
    assert [each.data for each in read_tables(store, found.offset)] == [noise(400), b"later"]


def test_only_what_is_visible_counts(opener: Opener) -> None:
    store = opener()
    append(store, drafts(b"old", is_copy=True))
    store.append(drafts(b"new", is_copy=True)[0])
    store.commit()
    found = newest_copy(store)
    assert found is not None
    assert found.data == b"old"


def test_tables_state_nothing_about_terms(opener: Opener) -> None:
    store = opener()
    append(store, drafts(b"text", is_copy=True))
    view = store.view(0, int(store.written_position))
    assert view is not None
    assert parse_group_record(bytes(view)) is None


@pytest.mark.parametrize(
    "body", [b"", b"\0\0\0\0\0\0\0\0", b"\0\0\0\1\0\0\0\2zz", b"\0\0\0\0\0\0\0\1zz"]
)
def test_a_damaged_record_is_noticed(opener: Opener, body: bytes) -> None:
    store = opener()
    append(store, [draft_group_record("TABLES", body, host=HOST, now_ms=5)])
    with pytest.raises(CorruptRecord):
        list(read_tables(store, 0))
