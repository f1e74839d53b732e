"""The ``checkpoint`` file: 4096 bytes, big-endian.

    0    int64 x 5   RocketMQ's: store time of the last durable message, of the last message in a
                     queue, of the last message in the index; master's durable position; confirmed
                     position
    64   8 bytes     b"RPCHKPT1", ours from here on
    72   int64 x 5   the five fields above as they were when this was written
    112  int64       every record before this is durable, and so are its queue entries
    120  int64       every record before this is in the key index
    128  int64       end position of the key index at that time
    136  int64 x 2   number of queues, and sum of their end offsets, before the position at 112
    152  uint32      CRC-32 of the bytes 64 to 152

``store.checkpoint_page`` explains the place of our part and when it is valid.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rocketpost.store.checkpoint_page import FILE_BYTES, FOREIGN_BYTES, CheckpointPage
from rocketpost.store.files import FileSystem, read_whole_blocking, write_whole_blocking

__all__ = [
    "FILE_BYTES",
    "SAFETY_MS",
    "Checkpoint",
    "Progress",
    "Times",
    "decode_checkpoint",
    "encode_checkpoint",
    "is_changed_by_others",
    "load_checkpoint_blocking",
    "save_checkpoint_blocking",
]

SAFETY_MS: Final = 3000
"""Time before the checkpoint's times at which RocketMQ starts to read the log again."""
_PAGE: Final = CheckpointPage(b"RPCHKPT1", theirs=5, ours=5)
_ALL_BITS: Final = 2**64 - 1


class Times(NamedTuple):
    """RocketMQ's five fields."""

    log_ms: int = 0
    queue_ms: int = 0
    index_ms: int = 0
    master_durable: int = 0
    confirmed: int = 0

    @property
    def safe_ms(self) -> int:
        """Store time up to which log and queues are on disk, with RocketMQ's margin."""
        return max(0, min(self.log_ms, self.queue_ms) - SAFETY_MS)


class Progress(NamedTuple):
    """Our part of the file: exact positions."""

    position: int
    index_position: int
    index_end: int
    queue_count: int
    queue_end_sum: int


class Checkpoint(NamedTuple):
    """Contents of the file; ``progress`` is None if it cannot be trusted."""

    times: Times
    progress: Progress | None


def encode_checkpoint(times: Times, progress: Progress) -> bytes:
    """Return the file's contents."""
    return _PAGE.encode(times, progress)


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Read the file's contents; a short file counts as zeros.

    RocketMQ's fields have no checksum. If our part is damaged, they are not trusted either. If they
    differ from our copy in a single bit, that bit was flipped: a Java broker changes more.
    """
    data = data.ljust(FILE_BYTES, b"\0")
    times, progress = _PAGE.decode(data)
    own = _PAGE.decode_own(data)
    if own is None:
        return Checkpoint(Times() if any(data[FOREIGN_BYTES:]) else Times(*times), None)
    if _bits_between(times, own[0]) == 1:
        times, progress = own
    return Checkpoint(Times(*times), None if progress is None else Progress(*progress))


def is_changed_by_others(data: bytes) -> bool:
    """Tell whether a Java broker has written to a checkpoint of ours since we did."""
    data = data.ljust(FILE_BYTES, b"\0")
    own = _PAGE.decode_own(data)
    return own is not None and _bits_between(_PAGE.decode(data)[0], own[0]) > 1


def _bits_between(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=True)
    return sum(((a ^ b) & _ALL_BITS).bit_count() for a, b in pairs)


def load_checkpoint_blocking(files: FileSystem, path: str) -> Checkpoint:
    """Read the checkpoint file; zeros if there is none."""
    return decode_checkpoint(read_whole_blocking(files, path))


def save_checkpoint_blocking(
    files: FileSystem, path: str, times: Times, progress: Progress
) -> None:
    """Write the checkpoint file and make it durable."""
    write_whole_blocking(files, path, encode_checkpoint(times, progress))
