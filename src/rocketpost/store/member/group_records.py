"""Records of the commit log by which a group of brokers keeps its terms and members.

They are messages of queue 0 of ``rmq_sys_REPLICATED_TABLES``, in RocketMQ's record format, with one
of these as tag, and a JSON object as body:

    TERM      {"term":7,"leader":"n0","start":8000}; also in the properties TERM and LEADER
    MEMBERS   {"voters":{"n0":"10.0.0.1:10911"},"learners":{}}

The first record of every term is of the first kind. ``start`` is where the term begins: the
record's own position, or that of the filler before it if it did not fit the rest of a segment. A
record alone does not tell, since the leader before may have written the filler.

The body counts, because a CRC protects it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import decode_record
from rocketpost.errors import CorruptRecord
from rocketpost.kernel.hashing import string_hash
from rocketpost.kernel.record_scan import BLANK, INVALID, scan_records
from rocketpost.model.members import MEMBER_COUNT_MAX, TERM_MAX, Configuration, Member
from rocketpost.model.names import REPLICATED_TABLES_TOPIC
from rocketpost.store.draft import Draft
from rocketpost.store.log.walk import walk_entries
from rocketpost.store.queue.files import ENTRY, ENTRY_BYTES, FILLER_SIZE

if TYPE_CHECKING:
    from rocketpost.store.message_store import MessageStore

TERM_TAG: Final = "TERM"
MEMBERS_TAG: Final = "MEMBERS"
_TAG_CODES: Final = frozenset({string_hash(TERM_TAG), string_hash(MEMBERS_TAG)})
_ENTRIES_AT_ONCE: Final = 4096
_NOTHING: Final[Mapping[str, str]] = {}


class TermRecord(NamedTuple):
    """The record that begins a term."""

    position: int
    term: int
    leader: str
    start: int
    """Position of the term's first byte."""


class _TermBody(msgspec.Struct, forbid_unknown_fields=True):
    term: int
    leader: str
    start: int


class _MembersBody(msgspec.Struct, forbid_unknown_fields=True):
    voters: dict[str, str]
    learners: dict[str, str]


GroupRecord = TermRecord | Configuration
_decode_term = msgspec.json.Decoder(_TermBody).decode
_decode_members = msgspec.json.Decoder(_MembersBody).decode


def draft_term(term: int, leader: str, *, start: int, host: bytes, now_ms: int) -> Draft:
    """Return the record that begins a term.

    Args:
        term: The term.
        leader: Name of its leader.
        start: End of the log to which the record is appended next.
        host: Packed address of the leader.
        now_ms: The time.
    """
    body = msgspec.json.encode(_TermBody(term, leader, start))
    added = {"TERM": str(term), "LEADER": leader}
    return draft_group_record(TERM_TAG, body, added, host=host, now_ms=now_ms)


def draft_members(members: tuple[Member, ...], *, host: bytes, now_ms: int) -> Draft:
    """Return the record that states the members of a group."""
    body = _MembersBody(
        {each.name: each.address for each in members if each.is_voter},
        {each.name: each.address for each in members if not each.is_voter},
    )
    return draft_group_record(MEMBERS_TAG, msgspec.json.encode(body), host=host, now_ms=now_ms)


def draft_group_record(
    tag: str, body: bytes, added: Mapping[str, str] = _NOTHING, *, host: bytes, now_ms: int
) -> Draft:
    """Return a record of the group's own topic.

    Args:
        tag: Its kind.
        body: Its statement.
        added: Further properties.
        host: Packed address of the leader.
        now_ms: The time.
    """
    return Draft(
        topic=REPLICATED_TABLES_TOPIC,
        queue_id=0,
        flag=0,
        sys_flag=0,
        born_ms=now_ms,
        born_host=host,
        store_host=host,
        reconsume_times=0,
        prepared_position=0,
        body=body,
        properties=encode_properties({"TAGS": tag, **added}),
        tags_code=string_hash(tag),
    )


def parse_group_record(data: bytes | memoryview) -> GroupRecord | None:
    """Return the statement of a record; None if it makes none about terms or members.

    Raises:
        CorruptRecord: The record is damaged.
    """
    record = decode_record(data)
    if record.topic != REPLICATED_TABLES_TOPIC or record.queue_id != 0:
        return None
    tag = record.properties.get("TAGS")
    body = bytes(record.body)
    try:
        if tag == TERM_TAG:
            return _parse_term(record.position, body, record.properties)
        if tag == MEMBERS_TAG:
            return _parse_members(record.position + record.size, body)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptRecord(f"the {tag} record at {record.position} is damaged: {error}") from None
    return None


def _parse_term(position: int, body: bytes, properties: dict[str, str]) -> TermRecord:
    fields = _decode_term(body)
    if not 0 < fields.term <= TERM_MAX or not 0 <= fields.start <= position:
        raise ValueError(f"term {fields.term} from {fields.start} on is impossible")
    if (properties.get("TERM"), properties.get("LEADER")) != (str(fields.term), fields.leader):
        raise ValueError("its properties differ from its body")
    return TermRecord(position, fields.term, fields.leader, fields.start)


def _parse_members(end: int, body: bytes) -> Configuration:
    fields = _decode_members(body)
    if len(fields.voters) + len(fields.learners) > MEMBER_COUNT_MAX:
        raise ValueError("it has too many members")
    return Configuration(
        end,
        tuple(
            Member(name, address, is_voter)
            for is_voter, group in ((True, fields.voters), (False, fields.learners))
            for name, address in group.items()
        ),
    )


def configurations_in(data: bytes | memoryview, start: int) -> Iterator[Configuration]:
    """Yield the configurations that whole records state, of which the first begins at ``start``.

    Raises:
        CorruptRecord: One of them is damaged.
    """
    view, at = memoryview(data), 0
    while at < len(view):
        entries, at, verdict = scan_records(
            view, at, start + at, count_max=_ENTRIES_AT_ONCE, verify_crc=False
        )
        for entry in entries:
            begin = entry[0] - start
            if entry[2] == REPLICATED_TABLES_TOPIC:
                found = parse_group_record(view[begin : begin + entry[1]])
                if isinstance(found, Configuration):
                    yield found
        if verdict in (BLANK, INVALID) or not entries:
            return


def scan_group_records(store: MessageStore, begin: int, end: int) -> Iterator[GroupRecord]:
    """Yield the statements in [``begin``, ``end``) of the log, by reading every record of it.

    Raises:
        CorruptRecord: One of them is damaged.
    """
    for entry, record in walk_entries(store.segments, begin, end):
        if entry[2] == REPLICATED_TABLES_TOPIC:
            found = parse_group_record(record)
            if found is not None:
                yield found


def list_group_records(store: MessageStore) -> Iterator[GroupRecord]:
    """Yield the statements in the log: through their queue, then by reading what it lacks yet.

    Costs far less than a scan, since only the hidden end of the log is read as a whole.

    Raises:
        CorruptRecord: One of them is damaged.
    """
    queue = store.queue(REPLICATED_TABLES_TOPIC, 0)
    offset, stop = (queue.first, queue.end) if queue is not None else (0, 0)
    while queue is not None and offset < stop:
        data = queue.read(offset, _ENTRIES_AT_ONCE)
        if not data:
            raise CorruptRecord(f"the queue of {REPLICATED_TABLES_TOPIC} cannot be read")
        for position, size, tags_code in ENTRY.iter_unpack(data):
            if tags_code in _TAG_CODES and size != FILLER_SIZE:
                record = store.view(position, size)
                found = None if record is None else parse_group_record(record)
                if found is None:
                    raise CorruptRecord(f"the record at {position} is not the one of its queue")
                yield found
        offset += len(data) // ENTRY_BYTES
    yield from scan_group_records(store, store.confirmed_position, store.end_position)
