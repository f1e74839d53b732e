"""Truncation of the log, and of everything derived from it.

Once the file ``truncating`` is on disk, the cut is decided: if the process stops, the next start
finishes it. Before that, only the checkpoint has changed, to an earlier position. So a store has
either its old end or the new one.

    0    8 bytes   b"RPTRUNC1"
    8    int64     the log ends here
    16   uint32    CRC-32 of the bytes 0 to 16
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import TYPE_CHECKING, Final
from zlib import crc32

from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.model.ids import Position
from rocketpost.store.descriptors import may_pass
from rocketpost.store.files import FileSystem, read_whole_blocking, write_whole_blocking
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.replica.visibility import find_border

if TYPE_CHECKING:
    from rocketpost.store.parts import StoreParts

logger = logging.getLogger(__name__)

_FIELDS: Final = Struct(">8sq")
_CRC: Final = Struct(">I")
_MAGIC: Final = b"RPTRUNC1"


class TruncationFile:
    """The file that records an unfinished cut of the log."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path

    def load_blocking(self) -> int | None:
        """Return the new end of the log; None if no cut is unfinished."""
        data = read_whole_blocking(self._files, self._path)
        if len(data) != _FIELDS.size + _CRC.size:
            return None
        magic, position = _FIELDS.unpack_from(data)
        is_whole = _CRC.unpack_from(data, _FIELDS.size) == (crc32(data[: _FIELDS.size]),)
        return position if is_whole and magic == _MAGIC else None

    def save_blocking(self, position: int) -> None:
        """Record, durably, that the log is to end at ``position``."""
        data = _FIELDS.pack(_MAGIC, position)
        write_whole_blocking(self._files, self._path, data + _CRC.pack(crc32(data)))

    def remove_blocking(self) -> None:
        """Record, durably, that the cut is finished."""
        if self._files.stat(self._path) is not None:
            self._files.unlink(self._path)
            self._files.fsync_dir(self._path.rpartition("/")[0])


class Truncation:
    """Cuts the log of an open store. Used by its owner while nothing else calls the store."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts = parts

    def run_blocking(self, position: Position, *, below_confirmed: bool) -> None:
        """Cut the log at ``position``.

        Raises:
            StoreError: The log cannot be cut there; nothing was changed.
            StoreFull: There is no room; nothing was changed.
            StoreBroken: A file could not be changed; the next start finishes the cut.
        """
        parts = self._parts
        old_end = parts.commit_log.end
        self._check(position, below_confirmed=below_confirmed)
        if position == old_end:
            return
        # The records that stay must be on disk, or a power cut could leave less than either end.
        parts.flusher.flush_blocking()
        with parts.checkpointer.pause():
            try:
                why_not = self._decide(position)
                if not why_not:
                    self._cut(position)
            except (OSError, StoreError) as error:
                raise self._broken(position, old_end, error) from error
        if why_not:
            raise StoreFull(f"the commit log cannot be cut now: {why_not}")
        logger.warning("commit log cut off position=%s", position)

    def _decide(self, position: Position) -> str:
        """Record that the log is to be cut; returns why there is no room, or an empty text."""
        parts = self._parts
        try:
            parts.checkpointer.lower_blocking(position)
            parts.truncation_file.save_blocking(position)
        except OSError as error:
            if not may_pass(error):
                raise
            parts.truncation_file.remove_blocking()  # it may be there nevertheless
            return error.strerror or str(error)
        return ""

    def _broken(self, position: int, old_end: int, error: OSError | StoreError) -> StoreBroken:
        why = (
            f"the commit log could not be cut at {position}: {error}. Restart: the log then ends"
            f" there, or at {old_end} as before"
        )
        self._parts.readiness.break_from_thread(why)
        return StoreBroken(why)

    def _check(self, position: int, *, below_confirmed: bool) -> None:
        parts = self._parts
        parts.readiness.check_appends()
        log = parts.commit_log
        if log.end != log.written:
            raise StoreError(f"messages at {log.written} are not committed yet; commit them first")
        if not log.first <= position <= log.end:
            raise StoreError(
                f"the log cannot be cut at {position}: it has the bytes from {log.first} to"
                f" {log.end}"
            )
        confirmed = parts.dispatcher.position
        if position < confirmed and not below_confirmed:
            raise StoreError(
                f"the log cannot be cut at {position}: messages before {confirmed} are visible, and"
                " a consumer may have them"
            )
        try:
            border = find_border(parts.segments, parts.queues, position, log.end)
        except OSError as error:
            raise StoreError(f"the log cannot be read at {position}: {error}") from error
        if border != position:
            raise StoreError(
                f"the log cannot be cut at {position}: no record begins there; one does at {border}"
            )

    def _cut(self, position: Position) -> None:
        parts = self._parts
        parts.dispatcher.forget_from(position)
        for queue in parts.queues:
            queue.cut_at(position)
        if parts.index is not None:
            parts.index.cut_blocking(position)
        with parts.flusher.pause():
            parts.allocator.reset(position)
            cut_log_blocking(parts.segments, position)
            parts.commit_log.start_at(position)
            parts.flusher.lower(position)
        parts.damage.forget_from(position)
        parts.deleted_topics.settle(parts.commit_log.first, position)
        parts.integrity.lower(position)
        parts.dispatcher.lower(position)
        parts.extent.lower(position)
        parts.checkpointer.save_while_paused_blocking()
        parts.finish_truncation_blocking(position)


def cut_log_blocking(segments: SegmentedLog, position: int) -> None:
    """Erase every byte of the log from ``position`` on, durably. Safe to repeat."""
    segments.remove_after_blocking(position)
    old = segments.find(position)
    if old is None:
        return
    # Another object for the same file, so that a scrub that reads the old one reports nothing.
    new = segments.replace(old)
    new.erase_from(position - new.start)
    new.sync_blocking()
