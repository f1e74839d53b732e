"""Records of terms and members: RocketMQ's format, and found again in the log."""

from __future__ import annotations

import msgspec
import pytest

from rocketpost.codec.record import Record, decode_record, encode_record, pack_host
from rocketpost.errors import CorruptRecord
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.members import Configuration, Member
from rocketpost.model.names import REPLICATED_TABLES_TOPIC, is_system_topic, is_work_topic
from rocketpost.store.member.group_records import (
    TermRecord,
    draft_members,
    draft_term,
    list_group_records,
    parse_group_record,
    scan_group_records,
)

from ..conftest import Opener, draft

HOST = pack_host("10.0.0.1", 10911)
MEMBERS = (Member("n0", "10.0.0.1:1"), Member("n1", "10.0.0.2:1"), Member("n2", "", False))


def stored(opener: Opener) -> Record:
    store = opener()
    store.append(draft_term(7, "n0", start=0, host=HOST, now_ms=5))
    end = store.commit()
    view = store.view(0, end)
    assert view is not None
    return decode_record(bytes(view))


def changed(record: Record, **changes: object) -> bytes:
    return b"".join(encode_record(msgspec.structs.replace(record, **changes)))


def test_a_term_record_is_a_message_of_the_tables_topic(opener: Opener) -> None:
    record = stored(opener)
    assert (record.topic, record.queue_id, record.queue_offset) == (REPLICATED_TABLES_TOPIC, 0, 0)
    assert record.properties == {"TAGS": "TERM", "TERM": "7", "LEADER": "n0"}
    assert bytes(record.body) == b'{"term":7,"leader":"n0","start":0}'
    assert parse_group_record(changed(record)) == TermRecord(0, 7, "n0", 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"properties_bytes": b"TAGS\x01TERM\x02TERM\x015\x02LEADER\x01n0\x02"},
        {"properties_bytes": b"TAGS\x01TERM\x02TERM\x017\x02LEADER\x01n1\x02"},
        {"properties_bytes": b"TAGS\x01TERM\x02"},
        {"body": b"{}"},
        {"body": b"7"},
        {"body": b'{"term":0,"leader":"n0","start":0}'},
        {"body": b'{"term":7,"leader":"n0","start":1}'},
        {"body": b'{"term":7,"leader":"n0","start":-1}'},
        {"body": b'{"term":7,"leader":"n0","start":0,"more":1}'},
        {"body": b"\xff"},
        {"properties_bytes": b"TAGS\x01MEMBERS\x02"},
        {
            "properties_bytes": b"TAGS\x01MEMBERS\x02",
            "body": msgspec.json.encode(
                {"voters": {str(n): "" for n in range(10)}, "learners": {}}
            ),
        },
    ],
)
def test_a_contradictory_record_is_damage(opener: Opener, changes: dict[str, bytes]) -> None:
    with pytest.raises(CorruptRecord, match="record at 0 is damaged"):
        parse_group_record(changed(stored(opener), **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "TopicA"},
        {"queue_id": 1},
        {"properties_bytes": b""},
        {"properties_bytes": b"TAGS\x01x\x02"},
    ],
)
def test_other_records_state_nothing(opener: Opener, changes: dict[str, object]) -> None:
    assert parse_group_record(changed(stored(opener), **changes)) is None


def test_they_are_found_by_queue_and_by_scan(opener: Opener) -> None:
    store = opener()
    for term in range(1, 60):
        start = store.end_position
        store.append(draft_term(term, "n1", start=start, host=HOST, now_ms=5))
        store.append(draft(b"x" * 300))
        other = draft(b"offsets", topic=REPLICATED_TABLES_TOPIC, tags_code=string_hash("OFFSETS"))
        store.append(other)
        if term == 5:
            store.append(draft_members(MEMBERS, host=HOST, now_ms=5))
            members_end = store.end_position
        store.commit()
    found = list(scan_group_records(store, 0, store.end_position))
    assert [each.term for each in found if isinstance(each, TermRecord)] == list(range(1, 60))
    after_filler = [
        each for each in found if isinstance(each, TermRecord) and each.start < each.position
    ]
    assert all(each.position % 16384 == 0 for each in after_filler)
    assert [each for each in found if isinstance(each, Configuration)] == [
        Configuration(members_end, MEMBERS)
    ]
    for confirmed in (0, found[20].position, store.end_position):
        store.confirm(confirmed)  # type: ignore[arg-type]
        assert list(list_group_records(store)) == found
    begin = store.segments.all()[1].start
    expected = [each for each in found if each.position >= begin]
    assert list(scan_group_records(store, begin, store.end_position)) == expected


def test_the_topic_belongs_to_the_broker() -> None:
    assert is_system_topic(REPLICATED_TABLES_TOPIC)
    assert is_work_topic(REPLICATED_TABLES_TOPIC)
