"""Damaged ranges of the commit log: bytes that hold no sound record and were not cut off.

Recovery, reads and the scrub report damage here. The register logs one ERROR line for each new
range and keeps all of them in ``damage.json`` in the store's root:

    {"unlisted": 0, "ranges": [{"begin": 4096, "end": 5120, "reason": "body CRC does not match",
     "topic": "orders", "queue_id": 3, "queue_offset": 17, "found": "2026-01-02T03:04:05.678Z",
     "found_by": "recovery"}], "crc": 123456789}

Nothing depends on this file: if it is lost or damaged, it is filled again as damage is found again.
It lists the losses, and readers need not check the same bytes twice.
"""

from __future__ import annotations

import bisect
import logging
import threading
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Annotated, Final, NamedTuple
from zlib import crc32

import msgspec

from rocketpost.store.files import FileSystem, read_whole_blocking, write_all

logger = logging.getLogger(__name__)

BAD_BODY: Final = "the body does not match its CRC"
BAD_RECORD: Final = "the record does not match its checksum, __CRC32#"
UNREADABLE: Final = "it cannot be read from its file"
NO_CHECKSUM: Final = "it has no checksum, __CRC32#, which forceVerifyPropCRC requires"
RANGE_COUNT_MAX: Final = 4096
"""Largest number of ranges listed; more are only counted."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class Damage(NamedTuple):
    """One damaged range [``begin``, ``end``) of the commit log and its message, if known."""

    begin: int
    end: int
    reason: str
    topic: str | None = None
    queue_id: int = -1
    queue_offset: int = -1
    found_ms: int = 0
    found_by: str = "read"
    """``recovery``, ``read`` or ``scrub``."""


class _Range(msgspec.Struct):
    begin: int
    end: int
    reason: str
    topic: str | None
    queue_id: int
    queue_offset: int
    found: Annotated[datetime, msgspec.Meta(tz=True)]
    found_by: str


class _File(msgspec.Struct):
    unlisted: int = 0
    ranges: list[_Range] = []
    crc: int = 0
    """CRC-32 of the ranges, to detect a changed digit."""

    def checksum(self) -> int:
        return crc32(msgspec.json.encode(self.ranges))


class DamageRegister:
    """The known damaged ranges, in the order of their positions. Thread-safe."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._begins: list[int] = []
        self._ranges: list[Damage] = []  # disjoint, sorted by ``begin``
        self._is_changed = False
        self.unlisted_count = 0
        """Number of reports that found the list full."""

    def load_blocking(self) -> None:
        """Read the file, if there is one; a damaged file is set aside."""
        data = read_whole_blocking(self._files, self._path)
        if not data:
            return
        try:
            stored = msgspec.json.decode(data, type=_File)
            if stored.crc != stored.checksum():
                raise ValueError("its checksum does not match")
            found = sorted(map(_from_stored, stored.ranges), key=attrgetter("begin"))
            if any(damage.begin < 0 or damage.end <= damage.begin for damage in found):
                raise ValueError("a range ends before it begins")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            aside = self._path + ".damaged"
            logger.error(
                "list of damage cannot be read, starting an empty one path=%s moved_to=%s"
                " reason=%s", self._path, aside, error,
            )  # fmt: skip
            self._files.rename(self._path, aside)
            return
        with self._lock:
            self.unlisted_count = stored.unlisted
            for damage in found[:RANGE_COUNT_MAX]:
                self._insert(damage)
            self._is_changed = False

    def report_from_thread(self, damage: Damage) -> bool:
        """Note a damaged range; returns whether it was new.

        A range that overlaps known ones widens them and is not new.
        """
        assert 0 <= damage.begin < damage.end
        with self._lock:
            if self._overlapping(damage.begin, damage.end):
                self._insert(damage)
                return False
            if len(self._ranges) >= RANGE_COUNT_MAX:
                self.unlisted_count += 1
                self._is_changed = True
                is_listed, is_first_unlisted = False, self.unlisted_count == 1
            else:
                self._insert(damage)
                is_listed, is_first_unlisted = True, False
        if is_listed:
            logger.error(
                "commit log is damaged position=%s bytes=%s topic=%s queue=%s offset=%s "
                "found_by=%s reason=%s; the bytes are kept, but their messages cannot be "
                "read",
                damage.begin, damage.end - damage.begin, damage.topic, damage.queue_id,
                damage.queue_offset, damage.found_by, damage.reason,
            )  # fmt: skip
        elif is_first_unlisted:
            logger.error(
                "commit log has more than %s damaged ranges, the others are only counted"
                " position=%s", RANGE_COUNT_MAX, damage.begin,
            )  # fmt: skip
        return is_listed

    def all(self) -> list[Damage]:
        """Return the listed ranges in the order of their positions."""
        with self._lock:
            return list(self._ranges)

    @property
    def count(self) -> int:
        """Number of listed ranges."""
        return len(self._ranges)

    @property
    def is_changed(self) -> bool:
        """Whether there are changes that are not in the file yet."""
        return self._is_changed

    def find_covering(self, position: int) -> Damage | None:
        """Return the range that holds ``position``, or None."""
        with self._lock:
            at = bisect.bisect_right(self._begins, position) - 1
            if at >= 0 and position < self._ranges[at].end:
                return self._ranges[at]
            return None

    def next_sound(self, position: int) -> int:
        """Return the first position from ``position`` on that is in no range."""
        with self._lock:
            at = max(bisect.bisect_right(self._begins, position) - 1, 0)
            while at < len(self._ranges) and self._ranges[at].begin <= position:
                position = max(position, self._ranges[at].end)
                at += 1
            return position

    def forget_before(self, position: int) -> None:
        """Forget ranges that end at or before ``position``: their segments have expired."""
        with self._lock:
            kept = [damage for damage in self._ranges if damage.end > position]
            self._replace(kept)

    def forget_from(self, position: int) -> None:
        """Forget ranges that begin at or after ``position``, the end of the log."""
        with self._lock:
            self._replace([damage for damage in self._ranges if damage.begin < position])

    def forget(self, damage: Damage) -> None:
        """Forget one range, because its bytes are sound again."""
        with self._lock:
            self._replace([known for known in self._ranges if known != damage])

    def save_blocking(self) -> None:
        """Replace the file, durably, if something changed. Any thread."""
        with self._saving:
            with self._lock:
                if not self._is_changed:
                    return
                self._is_changed = False
                stored = _File(self.unlisted_count, list(map(_to_stored, self._ranges)))
                stored.crc = stored.checksum()
            try:
                self._save(msgspec.json.format(msgspec.json.encode(stored), indent=1))
            except OSError:
                self._is_changed = True
                raise

    def _save(self, data: bytes) -> None:
        temporary = self._path + ".tmp"
        fd = self._files.open(temporary, create=True)
        try:
            self._files.ftruncate(fd, 0)
            write_all(self._files, fd, data, 0)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        self._files.rename(temporary, self._path)
        self._files.fsync_dir(self._path.rpartition("/")[0])

    def _overlapping(self, begin: int, end: int) -> list[Damage]:
        low = max(bisect.bisect_right(self._begins, begin) - 1, 0)
        high = bisect.bisect_left(self._begins, end)
        return [damage for damage in self._ranges[low:high] if damage.end > begin]

    def _insert(self, damage: Damage) -> None:
        """Add a range, merged with those that it overlaps; the first of them supplies the facts."""
        known = self._overlapping(damage.begin, damage.end)
        if known:
            begin = min(damage.begin, known[0].begin)
            end = max(damage.end, *(other.end for other in known))
            if len(known) == 1 and (begin, end) == known[0][:2]:
                return
            damage = known[0]._replace(begin=begin, end=end)
        low = bisect.bisect_left(self._begins, known[0].begin if known else damage.begin)
        self._ranges[low : low + len(known)] = [damage]
        self._begins[low : low + len(known)] = [damage.begin]
        self._is_changed = True

    def _replace(self, ranges: list[Damage]) -> None:
        if len(ranges) != len(self._ranges):
            self._ranges = ranges
            self._begins = [damage.begin for damage in ranges]
            self._is_changed = True


def _from_stored(stored: _Range) -> Damage:
    return Damage(
        stored.begin,
        stored.end,
        stored.reason,
        stored.topic,
        stored.queue_id,
        stored.queue_offset,
        (stored.found - _EPOCH) // _MILLISECOND,
        stored.found_by,
    )


def _to_stored(damage: Damage) -> _Range:
    return _Range(
        damage.begin,
        damage.end,
        damage.reason,
        damage.topic,
        damage.queue_id,
        damage.queue_offset,
        _EPOCH + damage.found_ms * _MILLISECOND,
        damage.found_by,
    )
