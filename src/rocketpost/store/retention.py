"""Choice of the segments that may be deleted, and the check that there is room to write.

:func:`plan_cleaning` decides from facts and changes nothing; :func:`gather_facts_blocking` reads
the facts. The store executes a plan (``store.cleaning``): it hides the segments from readers, trims
the queues, then unlinks the files on a thread.

    now and then     the hour is one of ``deleteWhen``, or the partition is over
                     ``diskMaxUsedSpaceRatio``, or an administrator asks for it: delete expired ones
    over the second  ``diskSpaceCleanForciblyRatio``: delete others too, oldest first, if
                     ``cleanFileForciblyEnable``
    over the third   ``diskSpaceWarningLevelRatio``: also reject writes, until the partition
                     is below the second again

Expired segments stay while they are held, but can still be forced out. Messages that the broker
itself has yet to deliver are never forced out: every segment from the first of them on stays. If
the disk fills up, sends are refused and no message is lost. At most ``deleteFileBatchMax`` segments
are deleted in one round, and never the last. Unlike RocketMQ, which deletes a full batch, we force
out only enough to bring the partition under the forcing level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rocketpost.errors import ConfigError
from rocketpost.model.ids import Position
from rocketpost.store.config import StoreConfig, parse_delete_hours
from rocketpost.store.files import DiskUsage, FileSystem

_HOUR_MS = 3_600_000


class SegmentFact(NamedTuple):
    """One segment: its start, its size, and the time of its last write."""

    start: Position
    size: int
    modified_ms: int


class CleanFacts(NamedTuple):
    """Facts that a plan is made from.

    ``segments`` are oldest first. ``usages`` are the partitions of the commit log and of the
    queues; None if it could not be read. ``is_rejecting`` is that of the last plan. Records from
    ``held`` on may not expire, but can be forced out; those from ``needed`` on must not be deleted.
    """

    segments: Sequence[SegmentFact]
    usages: Sequence[DiskUsage | None]
    now_ms: int
    hour: int
    is_rejecting: bool = False
    is_requested: bool = False
    held: Position | None = None
    needed: Position | None = None


class CleanPlan(NamedTuple):
    """Segments to delete (oldest first), and the reasons to delete them and to reject writes.

    ``why_kept`` is the reason why fewer are deleted than should be; ``ratio`` is the used share of
    the fuller partition.
    """

    to_delete: tuple[Position, ...]
    why_delete: str
    why_rejecting: str | None
    why_kept: str | None = None
    ratio: float = 0.0

    @property
    def is_rejecting(self) -> bool:
        """Whether writes are to be refused."""
        return self.why_rejecting is not None


class Levels(NamedTuple):
    """The three levels as shares of the partition."""

    clean: float
    force: float
    warning: float


def levels_of(config: StoreConfig) -> Levels:
    """Return the levels in the settings."""
    return Levels(
        clean=config.disk_ratio_max / 100,
        force=config.disk_ratio_force / 100,
        warning=config.disk_ratio_warning / 100,
    )


def plan_cleaning(facts: CleanFacts, config: StoreConfig) -> CleanPlan:
    """Decide which segments to delete, and whether to reject writes."""
    levels = levels_of(config)
    ratios = [usage.ratio for usage in facts.usages if usage is not None]
    ratio = max(ratios, default=0.0)
    is_unknown = len(ratios) < len(facts.usages)
    is_rejecting = ratio > levels.warning or (facts.is_rejecting and ratio > levels.force)
    reason = _reason_to_clean(facts, config, ratio=ratio, is_unknown=is_unknown)
    chosen = _Chosen((), None)
    if reason:
        excess = 0
        if config.clean_forcibly and ratio > levels.force:
            excess = max(_excess_bytes(usage, levels.force) for usage in facts.usages if usage)
        chosen = _choose(facts, config, excess)
    why_rejecting = (
        f"the disk is {ratio:.0%} full, over {levels.warning:.0%} (diskSpaceWarningLevelRatio); "
        f"messages are accepted again below {levels.force:.0%}"
        if is_rejecting
        else None
    )
    why_delete = reason if chosen.to_delete else ""
    return CleanPlan(chosen.to_delete, why_delete, why_rejecting, chosen.why_kept, ratio)


def check_levels(wanted: StoreConfig, current: StoreConfig, *, ratio: float) -> None:
    """Check that lower levels do not cause messages to be deleted or refused at once.

    Args:
        wanted: The new settings.
        current: The settings in force.
        ratio: Used share of the disk.

    Raises:
        ConfigError: They would cause that; the text names the level and the used share.
    """
    after, before = levels_of(wanted), levels_of(current)
    for key, high, low, what in (
        ("diskSpaceCleanForciblyRatio", before.force, after.force, "deleted before they expire"),
        ("diskSpaceWarningLevelRatio", before.warning, after.warning, "refused"),
    ):
        if low < high and ratio > low:
            raise ConfigError(
                f"{key} cannot be lowered to {low:.0%} now: the disk is {ratio:.0%} full, "
                f"and messages would be {what} at once; make room first, or set it in the "
                "broker's configuration file and restart"
            )


def _reason_to_clean(
    facts: CleanFacts, config: StoreConfig, *, ratio: float, is_unknown: bool
) -> str:
    levels = levels_of(config)
    if facts.is_requested:
        return "an administrator requested it"
    if ratio > min(levels.clean, levels.force, levels.warning):
        return f"the disk is {ratio:.0%} full"
    if is_unknown:
        return "the free space of the disk cannot be read"
    if facts.hour in parse_delete_hours(config.delete_when):
        return "it is an hour of deleteWhen"
    return ""


def _excess_bytes(usage: DiskUsage, level: float) -> int:
    usable = usage.used_bytes + usage.free_bytes
    return max(usage.used_bytes - int(usable * level), 0)


class _Chosen(NamedTuple):
    to_delete: tuple[Position, ...]
    why_kept: str | None


def _choose(facts: CleanFacts, config: StoreConfig, excess_bytes: int) -> _Chosen:
    expired_before = facts.now_ms - config.reserved_hours * _HOUR_MS
    to_delete: list[Position] = []
    for segment in facts.segments[:-1][: config.clean_batch_count_max]:
        is_held = facts.held is not None and segment.start + segment.size > facts.held
        is_expired = segment.modified_ms <= expired_before and not is_held
        if not is_expired and excess_bytes <= 0:
            break
        if facts.needed is not None and segment.start + segment.size > facts.needed:
            why_kept = f"messages from position {facts.needed} on are still to be delivered"
            return _Chosen(tuple(to_delete), why_kept)
        to_delete.append(segment.start)
        excess_bytes -= segment.size
    return _Chosen(tuple(to_delete), None)


def gather_facts_blocking(
    files: FileSystem,
    segments: Iterable[tuple[Position, int, str]],
    *,
    paths: Iterable[str],
    now_ms: int,
    hour: int,
    is_rejecting: bool = False,
    is_requested: bool = False,
    held: Position | None = None,
    needed: Position | None = None,
) -> CleanFacts:
    """Read the facts for a plan from the disk.

    Args:
        files: The file system.
        segments: Start, size and path of each, oldest first; one without a file counts as old.
        paths: A path on each partition that matters: the commit log's, the queues'.
        now_ms: The time.
        hour: The hour of the day in the broker's time zone.
        is_rejecting: Whether the last plan rejected writes.
        is_requested: Whether an administrator wants expired segments deleted now.
        held: Position of the oldest record that is still needed.
        needed: Position of the oldest record that the broker has to deliver.
    """
    found = []
    for start, size, path in segments:
        stat = files.stat(path)
        found.append(SegmentFact(start, size, stat.modified_ms if stat else 0))
    usages = [_usage(files, path) for path in paths]
    return CleanFacts(found, usages, now_ms, hour, is_rejecting, is_requested, held, needed)


def _usage(files: FileSystem, path: str) -> DiskUsage | None:
    try:
        return files.usage(path)
    except OSError:
        return None
