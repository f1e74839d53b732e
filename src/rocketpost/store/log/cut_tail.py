"""Copies of the bytes that recovery cuts off the log after a power cut.

The bytes were never synced, so their durability was never promised; the copy lets an administrator
look for messages in them. A file is named by the position of its first byte and holds the bytes of
the log from there on, segment after segment, without the unwritten rest of each.
"""

from __future__ import annotations

import logging
from typing import Final

from rocketpost.store.files import FileSystem, make_directory, write_all
from rocketpost.store.layout import file_name
from rocketpost.store.log.segmented_log import SegmentedLog

logger = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 1024 * 1024


def keep_cut_tail(files: FileSystem, segments: SegmentedLog, position: int, directory: str) -> None:
    """Copy the log from ``position`` on to a file in ``directory``, and log that."""
    path = f"{directory}/{file_name(position)}"
    try:
        size = _copy(files, segments, position, directory, path)
    except OSError as error:
        logger.error(
            "records after a torn one are cut off, and no copy of them could be kept "
            "position=%s reason=%s",
            position, error.strerror,
        )  # fmt: skip
        return
    logger.error(
        "power was lost: records after a torn one are cut off; none of them was synced "
        "position=%s bytes=%s kept_in=%s", position, size, path,
    )  # fmt: skip


def _copy(
    files: FileSystem, segments: SegmentedLog, position: int, directory: str, path: str
) -> int:
    make_directory(files, directory)
    fd = files.open(path, create=True)
    size = 0
    try:
        for segment in segments.all():
            begin = max(position - segment.start, 0)
            if begin >= segment.size:
                continue
            ranges = segment.data_ranges(begin, segment.size)
            end = max((high for _, high in ranges), default=begin)
            for at in range(begin, end, _CHUNK_BYTES):
                data = bytes(segment.view()[at : min(at + _CHUNK_BYTES, end)])
                write_all(files, fd, data, size)
                size += len(data)
        files.ftruncate(fd, size)
        files.fdatasync(fd)
    finally:
        files.close(fd)
    files.fsync_dir(directory)
    return size
