"""Messages by key, through the files of the key index (``docs/formats/key-index.md``).

The index returns positions whose keys have the right hash; the reader compares the keys. The index
may not cover the log: it may lag, files may have been removed after a crash, and it may be missing.
:func:`look_up` returns the ranges of the log that the index does not cover; they have to be
scanned.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

import numpy as np

from rocketpost.kernel.hashing import extend_state, index_hash_after
from rocketpost.spark.log.files import (
    MAGICS,
    SMALLEST,
    OnCorrupt,
    OpenFile,
    Segment,
    handle_missing_segment,
)
from rocketpost.spark.log.queue_reads import Places
from rocketpost.spark.records.fields import Ints, read_numbers
from rocketpost.store.layout import Layout

log = logging.getLogger(__name__)

SLOTS: Final = 5_000_000
"""RocketMQ's default number of slots in a file, and ours."""
_HEADER: Final = Struct(">qqqqii")
_SLOT: Final = Struct(">i")
_ENTRY: Final = Struct(">iqii")
_PROGRESS: Final = Struct(">17s3xiI")
_NAME_DIGITS: Final = 17
_SEARCHED_BYTES_MAX: Final = 64 * 1024 * 1024


class _TornChainError(Exception):
    """Raised for damaged entries, after a crash while they were written."""


class Hits(NamedTuple):
    """The answer of the index."""

    positions: Ints
    """Positions of messages that may have a key, ascending."""
    unknown: list[tuple[int, int]]
    """Ranges of positions that the index does not cover; ends are exclusive."""


class _File(NamedTuple):
    """One file of the index, and its reliable entries."""

    path: str
    slots: int
    next_entry: int
    begin: int
    """The position of the first message in it."""
    end: int
    """The position of the last message in it."""


def look_up(
    layout: Layout, topics: Iterable[str], keys: Iterable[str], *, first: int, end: int
) -> Hits:
    """Return the positions of messages that may have one of some keys.

    Args:
        layout: The store.
        topics: The topics of the messages.
        keys: Words of ``KEYS``, or unique keys.
        first: The start of the log.
        end: The end of the log.
    """
    files = _open_files(layout)
    if not files:
        log.warning("there is no key index, so the whole log is read store=%s", layout.root)
        return Hits(np.zeros(0, np.int64), [(first, end)])
    words = list(keys)
    hashes = {
        index_hash_after(state, key)
        for state in (extend_state(0, f"{topic}#") for topic in topics)
        for key in words
    }
    found: set[int] = set()
    known = []
    for file in files:
        try:
            with OpenFile(file.path) as opened:
                for key_hash in hashes:
                    found.update(_walk_chain(opened, file, key_hash))
            known.append(file)
        except (_TornChainError, FileNotFoundError):
            log.warning("a file of the key index cannot be used file=%s", file.path)
    unknown = list(_find_uncovered(known, first, end))
    positions = np.array(sorted(p for p in found if first <= p < end), np.int64)
    for low, high in unknown:  # a header may lag behind its entries; a scan finds those
        positions = positions[(positions < low) | (positions >= high)]
    return Hits(positions, unknown)


def read_sizes(positions: Ints, segments: tuple[Segment, ...], on_corrupt: OnCorrupt) -> Places:
    """Return the sizes of the records at some positions, without positions that have none."""
    starts = [segment.start for segment in segments]
    kept, sizes = [], []
    at = np.searchsorted(starts, positions, side="right") - 1
    for which in np.unique(at[at >= 0]).tolist():
        segment = segments[which]
        try:
            file = OpenFile(segment.path)
        except FileNotFoundError:
            handle_missing_segment(segment, on_corrupt)
            continue
        with file:
            for position in positions[at == which].tolist():
                head = file.read(position - segment.start, SMALLEST)
                size = int.from_bytes(head[:4], "big", signed=True)
                inside = SMALLEST <= size <= segment.start + segment.limit - position
                # The index may contain records that a crash removed.
                if inside and head[4:8] in MAGICS:
                    kept.append(position)
                    sizes.append(size)
    unknown = np.full(len(kept), -1, np.int64)
    return Places(np.array(kept, np.int64), np.array(sizes, np.int64), unknown)


def _open_files(layout: Layout) -> list[_File]:
    """Return the files of the index that have entries, oldest first."""
    try:
        names = sorted(os.listdir(layout.index))
    except FileNotFoundError:
        return []
    flushed = _read_progress(layout)
    files = []
    for name in names:
        if len(name) == _NAME_DIGITS and name.isascii() and name.isdecimal():
            file = _open_file(f"{layout.index}/{name}", flushed.get(name))
            if file is not None:
                files.append(file)
    return files


def _open_file(path: str, flushed: int | None) -> _File | None:
    try:
        opened = OpenFile(path)
    except FileNotFoundError:
        return None
    with opened:
        header = opened.read(0, _HEADER.size)
        if len(header) < _HEADER.size:
            return None
        _, _, begin, end, _, next_entry = _HEADER.unpack(header)
        if next_entry <= 1:
            return None
        slots = _count_slots(opened, begin, next_entry)
        if slots is None:
            log.warning("a file of the key index is not understood file=%s", path)
            return None
        if flushed is not None and 1 < flushed < next_entry:
            # Later entries may not be on disk if the machine crashed.
            next_entry = flushed
            _, end, _, _ = _read_entry(opened, slots, flushed - 1)
        return _File(path, slots, next_entry, begin, end)


def _read_progress(layout: Layout) -> dict[str, int]:
    """Return the number of entries on disk, which our brokers store next to the index."""
    try:
        with OpenFile(f"{layout.root}/index-progress") as opened:
            data = opened.read(0, _PROGRESS.size)
    except FileNotFoundError:
        return {}
    if len(data) < _PROGRESS.size:
        return {}
    name, number, crc = _PROGRESS.unpack(data)
    if zlib.crc32(data[:24]) != crc:
        return {}
    return {str(name, "ascii", "replace"): number}


def _count_slots(opened: OpenFile, begin: int, next_entry: int) -> int | None:
    """Return the number of slots of a file, a broker setting that no file contains.

    The first entry begins after the slots and has the position of the first message; the slot of
    the newest entry leads to it.
    """
    size = opened.size()
    if _is_slot_count(opened, SLOTS, begin, next_entry, size):
        return SLOTS
    if size > _SEARCHED_BYTES_MAX:
        return None
    data = opened.read(0, size)
    per_step = 5  # entries are 20 bytes and slots 4
    slots = np.arange((size - _HEADER.size) // 4 % per_step or per_step, size // 4, per_step)
    slots = slots[_HEADER.size + slots * 4 + next_entry * _ENTRY.size <= size]
    slots = slots[read_numbers(data, _HEADER.size + slots * 4 + _ENTRY.size + 4, 8) == begin]
    for number in (1, next_entry - 1):
        hashes = read_numbers(data, _HEADER.size + slots * 4 + number * _ENTRY.size, 4)
        slots, hashes = slots[hashes >= 0], hashes[hashes >= 0]
        newest = read_numbers(data, _HEADER.size + hashes % slots * 4, 4)
        slots = slots[newest >= number]
    for count in slots.tolist():
        if _is_slot_count(opened, count, begin, next_entry, size):
            return int(count)
    return None


def _is_slot_count(opened: OpenFile, slots: int, begin: int, next_entry: int, size: int) -> bool:
    if _HEADER.size + slots * 4 + next_entry * _ENTRY.size > size:
        return False
    key_hash, position, _, before = _read_entry(opened, slots, 1)
    if position != begin or before != 0 or key_hash < 0:
        return False
    for number in {1, next_entry // 2, next_entry - 1} - {0}:
        key_hash, _, _, before = _read_entry(opened, slots, number)
        if key_hash < 0 or not 0 <= before < number:
            return False
        slot = _read_slot(opened, key_hash % slots)
        if slot < number:
            return False
    return True


def _walk_chain(opened: OpenFile, file: _File, key_hash: int) -> Iterator[int]:
    """Yield the positions of entries with a hash, newest first."""
    slot = key_hash % file.slots
    number = _read_slot(opened, slot)
    bound = 2**31
    while 0 < number < bound:  # numbers in a chain only decrease
        bound = number
        found, position, _, number = _read_entry(opened, file.slots, number)
        if found % file.slots != slot or not 0 <= number < bound:
            raise _TornChainError
        if found == key_hash and bound < file.next_entry:
            yield position


def _read_slot(opened: OpenFile, slot: int) -> int:
    data = opened.read(_HEADER.size + slot * _SLOT.size, _SLOT.size)
    return int(_SLOT.unpack(data)[0]) if len(data) == _SLOT.size else 0


def _read_entry(opened: OpenFile, slots: int, number: int) -> tuple[int, int, int, int]:
    data = opened.read(_HEADER.size + slots * 4 + number * _ENTRY.size, _ENTRY.size)
    if len(data) < _ENTRY.size:
        return -1, -1, 0, 0
    key_hash, position, seconds, before = _ENTRY.unpack(data)
    return key_hash, position, seconds, before


def _find_uncovered(files: list[_File], first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the log before, between and after the files."""
    after = first
    for file in files:
        if after < file.begin:
            yield after, min(file.begin, end)
        after = max(after, file.end + 1)
    if after < end:
        yield after, end
