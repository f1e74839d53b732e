"""Evidence that tells a damaged record from one that a power cut has torn.

A disk writes a block of 512 bytes whole or not at all. The log is written in order, over zeros, and
a record by a single call. So if a power cut keeps a block from the disk, the part of the record in
that block is all zeros. A record that fails its checks although it has bytes in every block was
written whole. It was damaged later, by a flipped bit or a bad sector, and it may have been
acknowledged.

The last byte counts too: if the system ends the call early, the rest of the record stays zero, from
the middle of a block on. Records end with their properties, whose last byte is never zero.

Two kinds of damage look like a torn write and are treated as one. The first is an erased block. The
second is a flipped bit in a record that has a block of zeros in its body or no properties, or in
the size of the last record. The watermark of a member, which is saved every second, covers
everything that is older.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from rocketpost.kernel.record_scan import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from rocketpost.store.log.segment import Segment
from rocketpost.store.recovery.resync import RECORD_BYTES_MIN

BLOCK_BYTES: Final = 512
"""The smallest piece that reaches a disk whole."""
_SIZE_BYTES: Final = 4
_MARK: Final = Struct(">iI")
_HEAD: Final = Struct(">iI20xq")  # size, magic, own position
_ZEROS: Final = bytes(BLOCK_BYTES)


def find_written_end(
    segment: Segment, position: int, following: int | None, *, record_bytes_max: int
) -> int | None:
    """Return the end of damaged bytes at ``position`` that were written whole.

    Args:
        segment: The segment of the position.
        position: A position at which no sound record begins.
        following: Start of the next sound record, if there is one.
        record_bytes_max: Size of the largest record.

    Returns:
        A position after ``position``; None if the bytes may be the rest of an interrupted write.
    """
    view, at = segment.view(), position - segment.start
    stop = min(len(view), at + record_bytes_max)
    if following is not None:
        stop = min(stop, following - segment.start)
    if not any(view[at : min(at + _MARK.size, stop)]):
        return None
    size = _true_size(view, at, position, stop)
    if size is None and not any(view[at : min(_block_end(at), at + _SIZE_BYTES)]):
        return None  # the block before may have kept a part of the size
    if size is None:
        end = _find_unwritten(view, at, stop)
        # A write that was ended early within a head leaves nothing after it.
        is_written = following is not None or any(view[at + _HEAD.size : end])
        return segment.start + end if is_written else None
    if size == 0:
        return None
    end = min(at + size, stop)
    return segment.start + end if view[end - 1] and _has_blocks(view, at, end) else None


def _true_size(view: memoryview, at: int, position: int, stop: int) -> int | None:
    """Return the size that a true head states; 0 if its blocks are not all there; None if false."""
    if at + _MARK.size > stop or not _has_blocks(view, at, at + _MARK.size):
        return 0
    size, magic = _MARK.unpack_from(view, at)
    if magic == MAGIC_BLANK:
        return 0 if size == len(view) - at else None
    if magic not in (MAGIC_V1, MAGIC_V2) or not RECORD_BYTES_MIN <= size <= len(view) - at:
        return None
    if not _has_blocks(view, at, at + _HEAD.size):
        return 0
    return int(size) if _HEAD.unpack_from(view, at)[2] == position else None


def _block_end(at: int) -> int:
    return at - at % BLOCK_BYTES + BLOCK_BYTES


def _has_blocks(view: memoryview, at: int, stop: int) -> bool:
    """Tell whether every block has bytes that were written to it in [``at``, ``stop``)."""
    return _find_unwritten(view, at, stop) == stop


def _find_unwritten(view: memoryview, at: int, stop: int) -> int:
    """Return the first block boundary from ``at`` on after which a block is zero, or ``stop``."""
    begin = at
    if _block_end(at) - at < _SIZE_BYTES:
        begin = _block_end(at)  # the first bytes of a size are zero anyway
    while begin < stop:
        end = min(_block_end(begin), stop)
        if view[begin:end] == _ZEROS[: end - begin]:
            return begin
        begin = end
    return stop
