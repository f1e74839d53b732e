"""The files ``hard-state-0`` and ``hard-state-1``: the promises of a member of a group.

Each is 4096 bytes, big-endian:

    0     8 bytes   b"RPHARD01"
    8     int64     number of the save, from 1; it skips numbers if other members remember a
                    higher one
    16    int64     current term
    24    int64     commit bound: every byte of the log before this is committed
    32    int64     watermark: every byte before this was durable here and acknowledged
    40    int64     what may be lost: 0 nothing, 1 bytes at the end of the log, 2 term and vote as
                    well, 3 bytes inside of the log as well, so that it must be replaced
    48    uint8     length of the name that got the vote of this term; 0 for none
    49    ...       that name
    ...   uint8     number of configurations, at most 2; each:
                        int64   position at which the record that states it ends
                        uint8   number of members; each:
                            uint8   1: voter, 0: learner
                            uint8   length of the name, then the name
                            uint8   length of the address, then the address
    ...   int64     floor: end of the messages from before the group, which one member has brought
    ...             zeros
    4092  uint32    CRC-32 of the bytes 0 to 4092

Both files have the same contents. A save overwrites and syncs one, then the other, and only then is
the promise made. So at every moment one of them is whole, and a promise is in both:

- One file is torn or damaged: the other has every promise. A start repairs the first.
- The numbers differ: a save was interrupted, or an old file was restored. The greater one counts.
- Neither file is whole: promises are lost. That is never a torn write, since a save touches the
  second file only when the first is durable, and files are created by a rename.
"""

from __future__ import annotations

import logging
import struct
import threading
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

from rocketpost.errors import StoreBroken, StoreError
from rocketpost.model.members import (
    MEMBER_ADDRESS_BYTES_MAX,
    MEMBER_COUNT_MAX,
    MEMBER_NAME_BYTES_MAX,
    TERM_MAX,
    Configuration,
    Member,
)
from rocketpost.store.files import FileSystem, write_all

logger = logging.getLogger(__name__)

FILE_BYTES: Final = 4096
CONFIGURATION_COUNT_MAX: Final = 2
"""The newest one may be cut off with its record; then the one before it is valid again."""
LOG_LOST: Final = 1
"""Bytes of the log that were promised may be lost."""
STATE_LOST: Final = 2
"""Term and vote may be forgotten, and bytes of the log may be lost."""
LOG_UNUSABLE: Final = 3
"""Anything may be lost, even inside the log: it must be replaced by the leader's log."""
_MAGIC: Final = b"RPHARD01"
_HEAD: Final = Struct(">8sqqqqq")
_CRC: Final = Struct(">I")
_POSITION: Final = Struct(">q")
_POSITION_MAX: Final = 2**63 - 1


class HardState(NamedTuple):
    """Facts that a member must not forget."""

    term: int = 0
    vote: str | None = None
    """Member that got the vote of this term."""
    commit: int = 0
    """Commit bound: every byte of the log before this is committed."""
    watermark: int = 0
    """Every byte of the log before this was durable here and acknowledged."""
    configurations: tuple[Configuration, ...] = ()
    """Members by position, oldest first."""
    suspect: int = 0
    """Nonzero if this member is suspect: one of the kinds of losses above."""
    floor: int = 0
    """End of the messages from before the group, which one of its members has brought."""


class HardStateLost(StoreError):  # noqa: N818 - named after what happened
    """Both files are damaged, or one is damaged and the other is missing."""


def encode_state(number: int, state: HardState) -> bytes:
    """Return the contents of a file.

    Raises:
        StoreError: The state is impossible or does not fit.
    """
    _check(state)
    numbers = (number, state.term, state.commit, state.watermark, state.suspect)
    parts = [_HEAD.pack(_MAGIC, *numbers)]
    parts += [_text(state.vote or ""), bytes([len(state.configurations)])]
    for position, members in state.configurations:
        parts += [_POSITION.pack(position), bytes([len(members)])]
        for name, address, is_voter in members:
            parts += [bytes([is_voter]), _text(name), _text(address)]
    parts.append(_POSITION.pack(state.floor))
    data = b"".join(parts).ljust(FILE_BYTES - _CRC.size, b"\0")
    assert len(data) == FILE_BYTES - _CRC.size  # the limits of names and addresses see to it
    return data + _CRC.pack(crc32(data))


def decode_state(data: bytes) -> tuple[int, HardState]:
    """Return the number of the save and the state in a file.

    Raises:
        ValueError: The file is torn or damaged.
    """
    if len(data) != FILE_BYTES:
        raise ValueError(f"it has {len(data)} bytes instead of {FILE_BYTES}")
    if _CRC.unpack_from(data, FILE_BYTES - _CRC.size)[0] != crc32(data[: -_CRC.size]):
        raise ValueError("its CRC does not match")
    try:
        number, state = _Reader(data).read()
        is_same = encode_state(number, state) == data
    except (struct.error, IndexError, UnicodeDecodeError, StoreError) as error:
        raise ValueError(f"its fields are impossible: {error}") from None
    if not is_same:
        raise ValueError("its fields are impossible")
    return number, state


class _Reader:
    """Reads the fields of one file."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = _HEAD.size

    def read(self) -> tuple[int, HardState]:
        magic, number, term, commit, watermark, suspect = _HEAD.unpack_from(self._data)
        if magic != _MAGIC or number < 1:
            raise ValueError("it is not such a file")
        vote = self._text() or None
        configurations = tuple(self._configuration() for _ in range(self._byte()))
        floor = self._position()
        return number, HardState(term, vote, commit, watermark, configurations, suspect, floor)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _text(self) -> str:
        size = self._byte()
        self._at += size
        return self._data[self._at - size : self._at].decode()

    def _configuration(self) -> Configuration:
        position = self._position()
        return Configuration(position, tuple(self._member() for _ in range(self._byte())))

    def _position(self) -> int:
        (position,) = _POSITION.unpack_from(self._data, self._at)
        self._at += _POSITION.size
        return int(position)

    def _member(self) -> Member:
        is_voter = bool(self._byte())
        return Member(self._text(), self._text(), is_voter)


class HardStateFile:
    """Keeps the two files and the state in them. Thread-safe.

    Args:
        files: The file system.
        paths: The two files.
    """

    def __init__(self, files: FileSystem, paths: tuple[str, str]) -> None:
        self._files = files
        self._paths = paths
        self._lock = threading.Lock()
        # Kept open, or a shortage of descriptors would count as a failed save.
        self._fds: dict[str, int] = {}
        self._number = 0
        self._failure = ""
        self.state = HardState()
        """State on disk."""

    @property
    def save_count(self) -> int:
        """Number of saves so far, also of earlier processes; 0 if there is no state on disk."""
        return self._number

    def read_blocking(self) -> HardState | None:
        """Return the state without changing anything; None if there is none or it is damaged.

        Raises:
            OSError: A file cannot be read.
        """
        found, _ = self._read_both()
        return max(found, key=lambda each: each[0])[1] if found else None

    def load_blocking(self) -> HardState | None:
        """Read the state, and repair a file that lacks it; None if there are no files.

        Raises:
            HardStateLost: No file is whole; promises may be lost.
            OSError: A file cannot be read or repaired.
        """
        found, problems = self._read_both()
        if not found:
            if problems:
                raise HardStateLost("; ".join(problems))
            return None
        for problem in problems:
            logger.warning("hard state repaired from its copy reason=%s", problem)
        self._number, self.state = max(found, key=lambda each: each[0])
        if len(found) < len(self._paths) or found[0] != found[1]:
            self._write_both(self._number, self.state)
        return self.state

    def _read_both(self) -> tuple[list[tuple[int, HardState]], list[str]]:
        """Return what the whole files have, and the problems of the others.

        Raises:
            OSError: A file cannot be read.
        """
        found: list[tuple[int, HardState]] = []
        problems = []
        for path in self._paths:
            try:
                data = self._read(path)
                if data is not None:
                    found.append(decode_state(data))
            except ValueError as error:
                problems.append(f"{path} is torn or damaged: {error}")
        return found, problems

    def save_blocking(self, state: HardState, *, number_min: int = 0) -> None:
        """Replace the state, durably, unless it is the one on disk. Any thread.

        Args:
            state: The state.
            number_min: The least number that the save on disk has afterwards.

        Raises:
            StoreError: It would forget a term or a vote, or it does not fit; nothing was changed.
            StoreBroken: It could not be saved, or a save before could not; it may or may not be
                on disk. Make no more promises until a restart.
        """
        with self._lock:
            if self._failure:
                raise StoreBroken(self._failure)
            if state == self.state and self._number >= max(number_min, 1):
                return
            before = self.state
            if state.term < before.term or state.commit < before.commit:
                raise StoreError(f"a member cannot go back from {before} to {state}")
            if state.term == before.term and before.vote not in (None, state.vote):
                raise StoreError(
                    f"the vote of term {state.term} belongs to {before.vote}, not to {state.vote}"
                )
            number = max(self._number + 1, number_min)
            try:
                self._write_both(number, state)
            except OSError as error:
                self._failure = f"the hard state cannot be saved: {error}. Restart the broker"
                raise StoreBroken(self._failure) from error
            self._number, self.state = number, state

    def _write_both(self, number: int, state: HardState) -> None:
        data = encode_state(number, state)
        for path in self._paths:
            if self._files.stat(path) is None:
                self._create(path, data)
            else:
                self._overwrite(path, data)

    def _create(self, path: str, data: bytes) -> None:
        self._close(path)
        temporary = f"{path}.tmp"
        self._fds[path] = self._files.open(temporary, create=True)
        self._overwrite(path, data)
        self._files.rename(temporary, path)
        self._files.fsync_dir(path.rpartition("/")[0])

    def _overwrite(self, path: str, data: bytes) -> None:
        fd = self._fds.get(path)
        if fd is None:
            fd = self._fds[path] = self._files.open(path, create=True)
        write_all(self._files, fd, data, 0)
        self._files.ftruncate(fd, FILE_BYTES)
        self._files.fdatasync(fd)

    def close(self) -> None:
        """Close the files; the next save opens them again."""
        with self._lock:
            for path in self._paths:
                self._close(path)

    def _close(self, path: str) -> None:
        fd = self._fds.pop(path, None)
        if fd is not None:
            self._files.close(fd)

    def _read(self, path: str) -> bytes | None:
        """Return the contents of a file, and at most a byte more; None if it does not exist."""
        if self._files.stat(path) is None:
            return None
        fd = self._files.open(path)
        try:
            return self._files.pread(fd, FILE_BYTES + 1, 0)
        finally:
            self._files.close(fd)


def _check(state: HardState) -> None:
    positions = [each.position for each in state.configurations]
    numbers = (state.commit, state.watermark, state.floor, *positions)
    if not 0 <= state.suspect <= LOG_UNUSABLE:
        raise StoreError(f"{state.suspect} is no kind of loss")
    if not 0 <= state.term <= TERM_MAX:
        raise StoreError(f"term {state.term} is not between 0 and {TERM_MAX}")
    if not all(0 <= number <= _POSITION_MAX for number in numbers):
        raise StoreError(f"a number of the hard state is impossible: {numbers}")
    if len(state.configurations) > CONFIGURATION_COUNT_MAX:
        raise StoreError(f"the hard state has {len(state.configurations)} configurations")
    names = [state.vote] if state.vote is not None else []
    for configuration in state.configurations:
        if len(configuration.members) > MEMBER_COUNT_MAX:
            raise StoreError(f"a group has at most {MEMBER_COUNT_MAX} members")
        names += [member.name for member in configuration.members]
        for member in configuration.members:
            if len(member.address.encode()) > MEMBER_ADDRESS_BYTES_MAX:
                raise StoreError(f"the address {member.address!r} is too long")
    for name in names:
        if not 0 < len(name.encode()) <= MEMBER_NAME_BYTES_MAX:
            raise StoreError(f"{name!r} is no name of a member: it is empty or too long")


def _text(text: str) -> bytes:
    data = text.encode()
    return bytes([len(data)]) + data
