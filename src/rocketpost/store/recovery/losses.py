"""Damage found by a recovery: collected while the log is read, reported at the end."""

from __future__ import annotations

from typing import Final

from rocketpost.kernel.record_scan import BLANK, INVALID, scan_records
from rocketpost.store.integrity.damage import BAD_BODY, BAD_RECORD, Damage, DamageRegister
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.queue.consume_queue import TAIL_BYTES_MAX
from rocketpost.store.queue.files import ENTRY_BYTES
from rocketpost.store.queue.replay import PlacedEntry
from rocketpost.store.recovery.resync import RECORD_BYTES_MIN, BadRange

NO_RECORD: Final = "no sound record"
ZEROS: Final = "zeros where records were"
MISSING: Final = "files of the commit log are missing"
_BYTES: Final = frozenset((BAD_BODY, BAD_RECORD, NO_RECORD, ZEROS, MISSING))
"""Reasons of damage that is healed when the right bytes are restored."""
_UNSAVED_COUNT_MAX: Final = TAIL_BYTES_MAX // ENTRY_BYTES
"""Largest number of entries that a queue file may lack after a kill."""


class Losses:
    """The losses of one recovery."""

    def __init__(self, register: DamageRegister, *, now_ms: int) -> None:
        self._register = register
        self._now_ms = now_ms
        self._found: list[Damage] = []
        self._unknown: list[tuple[int, int]] = []
        self.unknown_from = 0
        """Position before which queue files show the assigned offsets."""

    def add(self, bad: BadRange, *, is_known: bool) -> None:
        """Add a damaged range; ``is_known`` if its queue and offset are known."""
        topic, queue_id, queue_offset = None, -1, -1
        if bad.entry is not None:
            _, _, topic, queue_id, queue_offset, *_ = bad.entry
        reason = BAD_RECORD if bad.is_body_sound else BAD_BODY
        if bad.is_zero or bad.entry is None:
            reason = ZEROS if bad.is_zero else NO_RECORD
        self._found.append(
            Damage(
                bad.begin, bad.end, reason, topic, queue_id, queue_offset, self._now_ms, "recovery"
            )
        )
        if not is_known:
            self._add_unknown(bad.begin, (bad.end - bad.begin) // RECORD_BYTES_MIN)

    def add_misplaced(self, placed: PlacedEntry, topic: str, queue_id: int, reason: str) -> None:
        """Add a record that does not fit into the queue that it names."""
        begin, end = placed.position, placed.position + placed.size
        self._found.append(
            Damage(
                begin, end, reason, topic, queue_id, placed.queue_offset, self._now_ms, "recovery"
            )
        )
        self._add_unknown(begin, 1)

    def add_missing(self, begin: int, end: int) -> None:
        """Add positions whose files are missing; the register has them already."""
        self._add_unknown(begin, (end - begin) // RECORD_BYTES_MIN)

    def _add_unknown(self, begin: int, count: int) -> None:
        if begin >= self.unknown_from:
            self._unknown.append((begin, count))

    def count_after(self, position: int) -> int:
        """Return how many offsets a queue may have lost after its last record at ``position``.

        The queues of lost records are not known. A queue with a later record shows how many it
        lost. Each other queue may have lost as many as fit in the damage, but no more than its
        file can lack.
        """
        lost = sum(count for begin, count in self._unknown if begin > position)
        return min(lost, _UNSAVED_COUNT_MAX)

    def report(self, segments: SegmentedLog, end: int) -> None:
        """Bring the register up to date with a recovered log that ends at ``end``."""
        first = segments.first
        if first is not None:
            self._register.forget_before(first.start)
        self._register.forget_from(end)
        for damage in self._register.all():
            if damage.reason in _BYTES and _is_healed(segments, damage):
                self._register.forget(damage)
        for damage in sorted(self._found, key=lambda damage: damage.begin):
            self._register.report_from_thread(damage)


def _is_healed(segments: SegmentedLog, damage: Damage) -> bool:
    """Tell whether sound records fill the range, since the right bytes were restored."""
    position = damage.begin
    while position < damage.end:
        segment = segments.find(position)
        if segment is None:
            return False
        _, at, verdict = scan_records(
            segment.view(), position - segment.start, position, count_max=4096
        )
        if verdict == INVALID:
            return segment.start + at >= damage.end
        position = segment.end if verdict == BLANK else segment.start + at
    return True
