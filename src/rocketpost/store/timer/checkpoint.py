"""The files that keep the timer's state consistent: ``config/timercheck`` and the journals.

``timercheck`` has 4096 bytes, big-endian:

    0    int64 x 7   RocketMQ's: slots before this time are delivered; end of the timer log;
                     offset of the next message to take from the timer topic, here and at the
                     master; data version (state, time, counter)
    64   8 bytes     b"RPTIMER1", ours from here on
    72   int64 x 7   the seven fields above as they were when this was written
    128  int64       number of this save; its journal has the same
    136  int64       length of a slot, ms
    144  int64 x 2   in the first slot, messages up to this due time and log position are delivered
    160  int64       number of waiting messages
    168  int64       end of the commit log
    176  int64       1: clean stop, 2: the units of the whole timer log must be chained again
    184  uint32      CRC-32 of the bytes 64 to 184

``store.checkpoint_page`` explains when our part is valid.

A journal (``timerwheel.journal0`` and ``1``, by the number of the save) has the slots that a save
changes, the numbers of waiting messages by topic, and checksums of the wheel and of the log. It is
on disk before the checkpoint with its number, and that before the wheel is written. So the wheel of
a checkpoint is the file with that journal applied; checksums that do not match mean damage.

    0    8 bytes     b"RPTWHEE2"
    8    int64       number of the save
    16   int32 x 2   number of slots, bytes of the JSON
    24   uint32      CRC-32 of the rest
    28   n x 36      int32 index of a slot, 32 bytes of contents
    ...  JSON        waiting: topic to count; wheel: checksum of the wheel; log: first position of
                     a file of the log to its bytes and their CRC-32

Earlier versions wrote b"RPTWHEEL" and no checksums: the JSON was topic to count. Such a journal is
read too, so that an upgrade can use the timer's files unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from rocketpost.store.checkpoint_page import CheckpointPage
from rocketpost.store.timer.wheel import SLOT_BYTES

CLEAN: Final = 1
REBUILD: Final = 2
_PAGE: Final = CheckpointPage(b"RPTIMER1", theirs=7, ours=7)
_JOURNAL: Final = Struct(">8sqiiI")
_JOURNAL_MAGIC: Final = b"RPTWHEE2"
_UNSUMMED_MAGIC: Final = b"RPTWHEEL"
_ENTRY: Final = Struct(f">i{SLOT_BYTES}s")


class JavaFields(NamedTuple):
    """RocketMQ's seven fields."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0

    def earlier(self, other: JavaFields) -> JavaFields:
        """Return ``other``, with each progress field at most as late as here."""
        return other._replace(
            read_ms=min(self.read_ms, other.read_ms),
            log_end=min(self.log_end, other.log_end),
            queue_offset=min(self.queue_offset, other.queue_offset),
        )


class ExactFields(NamedTuple):
    """Our part of the file: the exact state of the timer's files."""

    number: int
    precision_ms: int
    cursor_due_ms: int
    cursor_position: int
    waiting_count: int
    commit_log_end: int
    flags: int


class TimerCheckpoint(NamedTuple):
    """Contents of the file; ``exact`` is None if a Java broker was the last to write it."""

    java: JavaFields
    exact: ExactFields | None


def encode_checkpoint(java: JavaFields, exact: ExactFields) -> bytes:
    """Return the file's contents."""
    return _PAGE.encode(java, exact)


def decode_checkpoint(data: bytes) -> TimerCheckpoint:
    """Read the file's contents; a short file counts as zeros."""
    java, exact = _PAGE.decode(data)
    return TimerCheckpoint(JavaFields(*java), None if exact is None else ExactFields(*exact))


def decode_own_checkpoint(data: bytes) -> TimerCheckpoint | None:
    """Read both parts as we last wrote them, even if Java wrote RocketMQ's fields since.

    None if our part is missing or damaged.
    """
    own = _PAGE.decode_own(data)
    return None if own is None else TimerCheckpoint(JavaFields(*own[0]), ExactFields(*own[1]))


class FileSum(NamedTuple):
    """Number of bytes written to a file, and their CRC-32."""

    length: int = 0
    crc: int = 0


class Journal(NamedTuple):
    """Changes that a save makes to the wheel, and checksums of the files after it."""

    slots: Mapping[int, bytes]
    counts: Mapping[str, int]
    """Number of waiting messages, by topic."""
    wheel_sum: int
    log_sums: Mapping[int, FileSum]
    has_sums: bool = True
    """Whether checksums are known; an earlier version wrote none."""


class _Rest(msgspec.Struct):
    waiting: dict[str, int]
    wheel: int
    log: dict[int, FileSum]


def encode_journal(number: int, journal: Journal) -> bytes:
    """Return a journal file's contents."""
    slots = b"".join(_ENTRY.pack(at, data) for at, data in journal.slots.items())
    state = msgspec.json.encode(
        _Rest(dict(journal.counts), journal.wheel_sum, dict(journal.log_sums))
    )
    rest = slots + state
    head = (_JOURNAL_MAGIC, number, len(journal.slots), len(state), crc32(rest))
    return _JOURNAL.pack(*head) + rest


def decode_journal(data: bytes, number: int) -> Journal | None:
    """Read a journal; None if it is not whole, or belongs to another save."""
    if len(data) < _JOURNAL.size:
        return None
    magic, found, slot_count, state_bytes, crc = _JOURNAL.unpack_from(data)
    state_at = _JOURNAL.size + slot_count * _ENTRY.size
    rest = data[_JOURNAL.size : state_at + state_bytes]
    is_journal = magic in (_JOURNAL_MAGIC, _UNSUMMED_MAGIC)
    if not is_journal or found != number or crc != crc32(rest):
        return None
    slots = dict(_ENTRY.iter_unpack(data[_JOURNAL.size : state_at]))
    text = rest[slot_count * _ENTRY.size :]
    if magic == _UNSUMMED_MAGIC:
        counts = msgspec.json.decode(text, type=dict[str, int])
        return Journal(slots, counts, 0, {}, has_sums=False)
    state = msgspec.json.decode(text, type=_Rest)
    return Journal(slots, state.waiting, state.wheel, state.log)
