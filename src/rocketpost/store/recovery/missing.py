"""Missing files of the commit log: the start is refused, unless an option accepts the loss.

Positions accepted as lost are in the register of damage, so that later starts succeed. Lost
positions are not reused: the log continues after them.
"""

from __future__ import annotations

from itertools import chain, islice, pairwise
from typing import Final

from rocketpost.errors import StoreError
from rocketpost.store.integrity.damage import Damage, DamageRegister
from rocketpost.store.layout import file_name
from rocketpost.store.log.segmented_log import SegmentedLog
from rocketpost.store.recovery.losses import MISSING

ACCEPT_OPTION: Final = "--accept-missing-log"
"""The option of ``mqbroker`` and ``rocketpost up`` to start without the files."""
_NAMED_MAX: Final = 3


class MissingLog:
    """Looks for missing segments. Used once, before the log is read.

    Args:
        segments: The segments found.
        damage: Knows the losses accepted earlier.
        accept: Whether to continue without the missing segments.
        now_ms: The time.
    """

    def __init__(
        self, segments: SegmentedLog, damage: DamageRegister, *, accept: bool, now_ms: int
    ) -> None:
        self._segments = segments
        self._damage = damage
        self._accept = accept
        self._now_ms = now_ms

    def check(self, *, first: int | None, end: int) -> list[tuple[int, int]]:
        """Check that all of [``first``, ``end``) exists, or is accepted as lost.

        Args:
            first: First position of the log, if known.
            end: Position before which everything was in the log.

        Returns:
            The ranges that this call accepted as lost.

        Raises:
            StoreError: Files are missing.
        """
        missing = [
            (begin, stop)
            for begin, stop in self._holes(first, end)
            if self._damage.next_sound(begin) < stop
        ]
        if missing and not self._accept:
            raise StoreError(self._describe(missing))
        for begin, stop in missing:
            damage = Damage(begin, stop, MISSING, found_ms=self._now_ms, found_by="recovery")
            self._damage.report_from_thread(damage)
        self._damage.save_blocking()
        return missing

    def resume_at(self, end: int) -> int:
        """Return the first position from ``end`` on that a record may have.

        No record is put in the place of a missing segment: the next segment follows it.
        """
        last = self._segments.last
        if end <= (last.end if last is not None else 0):
            return end
        size = self._segments.segment_bytes
        return -(-end // size) * size

    def _holes(self, first: int | None, end: int) -> list[tuple[int, int]]:
        segments = self._segments.all()
        end = self.resume_at(end)
        if not segments:
            return [(first or 0, end)] if end > (first or 0) else []
        holes = []
        if first is not None and first < segments[0].start:
            holes.append((first, segments[0].start))
        holes += [(a.end, b.start) for a, b in pairwise(segments) if a.end < b.start]
        if end > segments[-1].end:
            holes.append((segments[-1].end, end))
        return holes

    def _describe(self, missing: list[tuple[int, int]]) -> str:
        size = self._segments.segment_bytes
        starts = [range(begin - begin % size, stop, size) for begin, stop in missing]
        listed = ", ".join(map(file_name, islice(chain(*starts), _NAMED_MAX)))
        count = sum(map(len, starts))
        if count > _NAMED_MAX:
            listed += f" and {count - _NAMED_MAX} more"
        return (
            f"the commit log in {self._segments.directory} lacks {listed}, which held "
            f"messages. Restore the files; or start once with the option {ACCEPT_OPTION} "
            "to continue without their messages, which are then reported as lost"
        )
