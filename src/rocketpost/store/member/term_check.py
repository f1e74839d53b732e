"""Comparison of the term table with the term records in the log, and its reconstruction."""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from rocketpost.errors import CorruptRecord
from rocketpost.model.members import TERM_MAX, Configuration
from rocketpost.store.log.walk import walk_entries
from rocketpost.store.member.group_records import (
    TermRecord,
    list_group_records,
    scan_group_records,
)
from rocketpost.store.member.term_file import Spans, TermSpan, check_spans

if TYPE_CHECKING:
    from rocketpost.store.message_store import MessageStore

_BLANK: Final = Struct(">iI")
_BLANK_MAGIC: Final = 0xCBD4_3194


class CheckedTerms(NamedTuple):
    """Terms of a log, and the reason why they cannot be relied on."""

    spans: Spans
    problem: str = ""
    """Empty if the spans are certain."""
    configurations: tuple[Configuration, ...] = ()
    """The members of the group, as the records of the log state them."""


def check_terms(store: MessageStore, spans: Spans) -> CheckedTerms:
    """Return the spans of the table, completed by the records of the log.

    A span that begins at the end of the log or later is dropped: it was saved before its first byte
    was written. A span that only the log has is added: an old table was restored. A span that the
    log contradicts is a problem.
    """
    first, end = store.first_position, store.end_position
    spans = tuple(span for span in spans if span.start < end)
    try:
        records = list(list_group_records(store))
    except CorruptRecord as error:
        return CheckedTerms(spans, str(error))
    found = [each for each in records if isinstance(each, TermRecord)]
    members = tuple(each for each in records if isinstance(each, Configuration))
    stated = {TermSpan(record.term, record.start) for record in found}
    merged = tuple(sorted(stated.union(spans)))
    try:
        check_spans(merged)
    except ValueError as error:
        return CheckedTerms(spans, f"the term table and the log disagree: {error}", members)
    for span, stop in pairwise((*merged, TermSpan(TERM_MAX, end))):
        if span not in stated and span.start >= first:
            if _is_filler(store, span.start, stop.start):
                continue  # the next leader was elected before the term's first record arrived
            problem = f"the term table says that term {span.term} begins at {span.start}"
            return CheckedTerms(merged, f"{problem}, but no term record begins there", members)
    return CheckedTerms(merged, "", members)


def rebuild_terms(store: MessageStore) -> CheckedTerms:
    """Return the spans that the records of the log state, by reading all of it."""
    first, end = store.first_position, store.end_position
    try:
        records = list(scan_group_records(store, first, end))
        found = [each for each in records if isinstance(each, TermRecord)]
        members = tuple(each for each in records if isinstance(each, Configuration))
        # A leader may write more than one record of its term.
        spans = tuple(dict.fromkeys(TermSpan(record.term, record.start) for record in found))
        check_spans(spans)
    except (CorruptRecord, ValueError) as error:
        return CheckedTerms((), f"the term table cannot be rebuilt from the log: {error}")
    if first and (not spans or spans[0].start > first):
        return CheckedTerms(
            spans,
            f"the term table is lost, and the log, which begins at {first}, does not state the"
            " term of its first bytes",
            members,
        )
    for record in found:
        if record.start == record.position and _ends_with_filler(store, record.position):
            return CheckedTerms(
                spans,
                "the term table is lost, and the log does not state the term of the filler before"
                f" {record.position}",
                members,
            )
    return CheckedTerms(spans, "", members)


def _is_filler(store: MessageStore, begin: int, stop: int) -> bool:
    """Tell whether [``begin``, ``stop``) is the filler that ends a segment."""
    segment = store.segments.find(begin)
    if segment is None or segment.end != stop or begin + _BLANK.size > stop:
        return False
    size, magic = _BLANK.unpack_from(segment.view(), begin - segment.start)
    return (size, magic) == (stop - begin, _BLANK_MAGIC)


def _ends_with_filler(store: MessageStore, position: int) -> bool:
    """Tell whether a filler ends the segment before ``position``."""
    segment = store.segments.find(position - 1) if position else None
    if segment is None or segment.end != position:
        return False
    at = segment.start
    for entry, _ in walk_entries(store.segments, segment.start, segment.end):
        at = entry[0] + entry[1]
    return _is_filler(store, at, segment.end)
