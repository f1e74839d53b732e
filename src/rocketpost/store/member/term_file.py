"""The file ``epochFileCheckpoint``: terms and the positions at which they begin.

    2              number of lines below
    773307083      CRC-32 of the lines below with their line ends, without the sign bit
    7-7000         term 7 begins at position 7000
    8-8000         term 8 begins at position 8000

Text in RocketMQ's format; its brokers call a term an epoch. Terms and positions both ascend. Bytes
before the first position have term 0, unless that position is where the log begins.

``epochFileCheckpoint.bak`` is a copy of the file. A save replaces both, each by a rename, so a copy
is never torn, and damage to one of them is repaired from the other. A span is saved before the
first byte of its term is written, and cut while the file ``truncating`` exists. Therefore a save
that was interrupted between the two files is harmless: the log has no byte on which they differ.

A file that differs in any byte from what this module would write is damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple
from zlib import crc32

from rocketpost.errors import StoreError
from rocketpost.model.members import TERM_MAX
from rocketpost.store.files import FileSystem, write_all

logger = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size from which a file is taken for damaged without reading it."""
POSITION_MAX: Final = 2**63 - 1
_CRC_MASK: Final = 0x7FFF_FFFF


class TermSpan(NamedTuple):
    """A term and the position of its first byte."""

    term: int
    start: int


Spans = tuple[TermSpan, ...]


class LoadedTerms(NamedTuple):
    """Contents of the two files."""

    spans: Spans | None
    """None if neither file is whole: there is none, or ``problem`` describes the damage."""
    problem: str = ""
    """Damage that was found; repaired if there are spans."""


def encode_terms(spans: Sequence[tuple[int, int]]) -> bytes:
    """Return the contents of a file."""
    lines = "".join(f"{term}-{start}\n" for term, start in spans).encode()
    return b"%d\n%d\n%b" % (len(spans), crc32(lines) & _CRC_MASK, lines)


def decode_terms(data: bytes) -> Spans:
    """Read the contents of a file.

    Raises:
        ValueError: The file is damaged.
    """
    try:
        lines = data.decode("ascii").split("\n")[2:-1]
        pairs = [line.partition("-") for line in lines]
        spans = tuple(TermSpan(int(term), int(start)) for term, _, start in pairs)
    except ValueError:
        raise ValueError("it has a line that is not a term and a position") from None
    if encode_terms(spans) != data:
        raise ValueError("its CRC or its number of lines does not match")
    check_spans(spans)
    return spans


def check_spans(spans: Sequence[tuple[int, int]]) -> None:
    """Check that terms and positions are possible and ascend.

    Raises:
        ValueError: They are impossible, or do not ascend.
    """
    last_term, last_start = 0, -1
    for term, start in spans:
        if not last_term < term <= TERM_MAX or not last_start < start <= POSITION_MAX:
            raise ValueError(f"term {term} at {start} cannot follow term {last_term}")
        last_term, last_start = term, start


class TermFile:
    """Keeps the two files and their spans. Not thread-safe: one change at a time.

    Args:
        files: The file system.
        path: The file; its copy has the suffix ``.bak``.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._copy = f"{path}.bak"
        self.spans: Spans = ()
        """Spans on disk, in ascending order."""

    def load_blocking(self) -> LoadedTerms:
        """Read the spans; if only one of the files is whole, repair the other.

        Raises:
            OSError: A file cannot be read or repaired.
        """
        problems = []
        found: list[Spans | None] = []
        for path in (self._path, self._copy):
            try:
                found.append(self._read(path))
            except ValueError as error:
                found.append(None)
                problems.append(f"{path} is damaged: {error}")
        problem = "; ".join(problems)
        spans = found[0] if found[0] is not None else found[1]
        if spans is None:
            return LoadedTerms(None, problem)
        if found[0] is None and not problem:
            problem = f"{self._path} is missing"
        if problem:
            logger.error("term table repaired from its copy reason=%s", problem)
        self.spans = spans
        if found[0] != found[1]:
            self.replace_blocking(spans)
        return LoadedTerms(spans, problem)

    def cut_blocking(self, position: int) -> None:
        """Remove the terms that begin at ``position`` or later, durably.

        Raises:
            OSError: The files could not be saved; they may or may not have those terms.
        """
        kept = tuple(span for span in self.spans if span.start < position)
        if kept != self.spans:
            self.replace_blocking(kept)

    def forget_before_blocking(self, position: int) -> None:
        """Remove terms of bytes before ``position``, where the log begins, durably.

        The term of the byte before it stays: members compare logs by it.

        Raises:
            OSError: The files could not be saved; they may or may not have those terms.
        """
        gone = sum(span.start < position for span in self.spans) - 1
        if gone > 0:
            self.replace_blocking(self.spans[gone:])

    def replace_blocking(self, spans: Sequence[tuple[int, int]]) -> None:
        """Save other spans, durably; call it before the first byte of a new term is written.

        Raises:
            StoreError: They are impossible; nothing was changed.
            OSError: They could not be saved; each file has the old ones or the new ones.
        """
        try:
            check_spans(spans)
        except ValueError as error:
            raise StoreError(f"refusing to save {self._path}: {error}") from error
        data = encode_terms(spans)
        for path in (self._path, self._copy):
            self._write(path, data)
        self._files.fsync_dir(self._path.rpartition("/")[0])
        self.spans = tuple(TermSpan(*span) for span in spans)

    def _read(self, path: str) -> Spans | None:
        """Return the spans in a file; None if it does not exist."""
        stat = self._files.stat(path)
        if stat is None:
            return None
        if stat.is_directory or stat.size > FILE_BYTES_MAX:
            raise ValueError("it is not a small file")
        fd = self._files.open(path)
        try:
            return decode_terms(self._files.pread(fd, stat.size, 0) if stat.size else b"")
        finally:
            self._files.close(fd)

    def _write(self, path: str, data: bytes) -> None:
        temporary = f"{path}.tmp"
        fd = self._files.open(temporary, create=True)
        try:
            self._files.ftruncate(fd, 0)
            write_all(self._files, fd, data, 0)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self._files.rename(temporary, path)
