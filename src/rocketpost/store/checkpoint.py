"""The ``checkpoint`` file: 4096 bytes, big-endian.

    0    int64 x 5   RocketMQ's: store time of the last durable message, of the last message in a
                     queue, of the last message in the index; master's durable position; confirmed
                     position
    64   8 bytes     b"RPCHKPT1", ours from here on
    72   int64 x 5   the five fields above as they were when this was written
    112  int64       every record before this is durable, and so are its queue entries
    120  int64       every record before this is in the key index
    128  int64       where the index said it ended then
    136  int64 x 2   number of queues, and sum of their end offsets, before the position at 112
    152  uint32      CRC-32 of the bytes 64 to 152

RocketMQ leaves what follows its five fields alone, so our part outlives a visit of a Java broker;
it counts only while the five fields are those that it was written with. All lies in one sector.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from rocketpost.store.files import FileSystem, write_all

FILE_BYTES: Final = 4096
SAFETY_MS: Final = 3000
"""How much earlier than the checkpoint says RocketMQ starts reading again."""

_JAVA: Final = Struct(">qqqqq")
_PRECISE_AT: Final = 64
_MAGIC: Final = b"RPCHKPT1"
_PRECISE: Final = Struct(">8s5qqqqqq")
_CRC: Final = Struct(">I")


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
    """Our part: how far exactly."""

    position: int
    index_position: int
    index_end: int
    queue_count: int
    queue_end_sum: int


class Checkpoint(NamedTuple):
    """What the file says; ``progress`` is None if it cannot be trusted."""

    times: Times
    progress: Progress | None


def encode_checkpoint(times: Times, progress: Progress) -> bytes:
    """Return the file's contents."""
    precise = _PRECISE.pack(_MAGIC, *times, *progress)
    data = _JAVA.pack(*times).ljust(_PRECISE_AT, b"\0") + precise + _CRC.pack(crc32(precise))
    return data.ljust(FILE_BYTES, b"\0")


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Read the file's contents; a short file counts as zeros."""
    data = data.ljust(FILE_BYTES, b"\0")
    times = Times(*_JAVA.unpack_from(data))
    end = _PRECISE_AT + _PRECISE.size
    magic, *numbers = _PRECISE.unpack_from(data, _PRECISE_AT)
    true = magic == _MAGIC and _CRC.unpack_from(data, end)[0] == crc32(data[_PRECISE_AT:end])
    if not true or tuple(numbers[:5]) != times:
        return Checkpoint(times, None)
    return Checkpoint(times, Progress(*numbers[5:]))


def load_checkpoint_blocking(files: FileSystem, path: str) -> Checkpoint:
    """Read the checkpoint file; zeros if there is none."""
    try:
        fd = files.open(path)
    except FileNotFoundError:
        return decode_checkpoint(b"")
    try:
        return decode_checkpoint(files.pread(fd, FILE_BYTES, 0))
    finally:
        files.close(fd)


def save_checkpoint_blocking(
    files: FileSystem, path: str, times: Times, progress: Progress
) -> None:
    """Write the checkpoint file and make it durable."""
    fd = files.open(path, create=True)
    try:
        write_all(files, fd, encode_checkpoint(times, progress), 0)
        files.fdatasync(fd)
    finally:
        files.close(fd)
