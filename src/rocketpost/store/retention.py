"""Choice of the segments that may be deleted, and the check that there is room to write.

:func:`plan_cleaning` decides from facts and touches nothing; :func:`gather_facts_blocking` reads
the facts. The store carries a plan out: it forgets the segments, then unlinks them on a thread of
its own, then tells queues and index where the log begins now.

    now and then     the hour is one of ``deleteWhen``, or the partition is over
                     ``diskMaxUsedSpaceRatio``, or an administrator asked: expired segments go
    over the second  ``diskSpaceCleanForciblyRatio``: unexpired ones go too, oldest first, if
                     ``cleanFileForciblyEnable``
    over the third   ``diskSpaceWarningLevelRatio``: also, writes are rejected, until the partition
                     is back under the second

Expired segments stay while somebody holds them; what is forced out goes all the same. What the
broker itself still has to deliver is forced out by nothing: from there on every segment stays, and
a disk that fills up for that reason ends in refused sends, not in lost messages. At most
``deleteFileBatchMax`` segments go in one round, the last one never. Unlike RocketMQ, which takes a
full batch, we force out no more than brings the partition under the forcing level.
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
    """One segment: where it begins, how long it is, when it was last written."""

    start: Position
    size: int
    modified_ms: int


class CleanFacts(NamedTuple):
    """Facts that a plan is made from.

    ``segments`` are oldest first. ``usages`` are the partitions of the commit log and of the
    queues; None where it could not be read. ``is_rejecting`` is what the last plan said. From
    ``held`` on nothing may expire, though the disk may force it out; from ``needed`` on nothing may
    go at all.
    """

    segments: Sequence[SegmentFact]
    usages: Sequence[DiskUsage | None]
    now_ms: int
    hour: int
    is_rejecting: bool = False
    is_asked: bool = False
    held: Position | None = None
    needed: Position | None = None


class CleanPlan(NamedTuple):
    """Plan: segments to delete (oldest first) and why, and why writes are rejected, if so.

    ``why_kept`` says why fewer go than should, ``ratio`` how full the fuller partition is.
    """

    gone: tuple[Position, ...]
    why_gone: str
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
    """Return the levels that the settings say."""
    return Levels(
        clean=config.disk_ratio_max / 100,
        force=config.disk_ratio_force / 100,
        warning=config.disk_ratio_warning / 100,
    )


def plan_cleaning(facts: CleanFacts, config: StoreConfig) -> CleanPlan:
    """Decide what goes and whether writes do."""
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
    why_gone = reason if chosen.gone else ""
    return CleanPlan(chosen.gone, why_gone, why_rejecting, chosen.why_kept, ratio)


def check_levels(wanted: StoreConfig, current: StoreConfig, *, ratio: float) -> None:
    """Check that lower levels do not have messages deleted or refused at once.

    Args:
        wanted: The settings that somebody wants.
        current: The settings in force.
        ratio: How full the disk is.

    Raises:
        ConfigError: They do; the text says which level and how full the disk is.
    """
    after, before = levels_of(wanted), levels_of(current)
    for key, high, low, what in (
        ("diskSpaceCleanForciblyRatio", before.force, after.force, "deleted before their time"),
        ("diskSpaceWarningLevelRatio", before.warning, after.warning, "refused"),
    ):
        if low < high and ratio > low:
            raise ConfigError(
                f"{key} cannot be lowered to {low:.0%} now: the disk is {ratio:.0%} full, and "
                f"messages would be {what} at once; make room first, or set it in the broker's "
                "file and restart"
            )


def _reason_to_clean(
    facts: CleanFacts, config: StoreConfig, *, ratio: float, is_unknown: bool
) -> str:
    levels = levels_of(config)
    if facts.is_asked:
        return "an administrator asked for it"
    if ratio > min(levels.clean, levels.force, levels.warning):
        return f"the disk is {ratio:.0%} full"
    if is_unknown:
        return "the room on the disk cannot be told"
    if facts.hour in parse_delete_hours(config.delete_when):
        return "the hour of deleteWhen has come"
    return ""


def _excess_bytes(usage: DiskUsage, level: float) -> int:
    usable = usage.used_bytes + usage.free_bytes
    return max(usage.used_bytes - int(usable * level), 0)


class _Chosen(NamedTuple):
    gone: tuple[Position, ...]
    why_kept: str | None


def _choose(facts: CleanFacts, config: StoreConfig, excess_bytes: int) -> _Chosen:
    expired_before = facts.now_ms - config.reserved_hours * _HOUR_MS
    gone: list[Position] = []
    for segment in facts.segments[:-1][: config.clean_batch_count_max]:
        is_held = facts.held is not None and segment.start + segment.size > facts.held
        is_expired = segment.modified_ms <= expired_before and not is_held
        if not is_expired and excess_bytes <= 0:
            break
        if facts.needed is not None and segment.start + segment.size > facts.needed:
            return _Chosen(tuple(gone), f"what lies at {facts.needed} is still to be delivered")
        gone.append(segment.start)
        excess_bytes -= segment.size
    return _Chosen(tuple(gone), None)


def gather_facts_blocking(
    files: FileSystem,
    segments: Iterable[tuple[Position, int, str]],
    *,
    paths: Iterable[str],
    now_ms: int,
    hour: int,
    is_rejecting: bool = False,
    is_asked: bool = False,
    held: Position | None = None,
    needed: Position | None = None,
) -> CleanFacts:
    """Read from the disk what a plan needs.

    Args:
        files: The file system.
        segments: Start, size and path of each, oldest first; one whose file is gone counts as old.
        paths: A path on each partition that matters: the commit log's, the queues'.
        now_ms: The time.
        hour: The hour of the day where the broker runs.
        is_rejecting: What the last plan said.
        is_asked: Whether an administrator wants expired segments to go now.
        held: Where the oldest record lies that somebody still needs.
        needed: Where the oldest record lies that the broker has to deliver.
    """
    found = []
    for start, size, path in segments:
        stat = files.stat(path)
        found.append(SegmentFact(start, size, stat.modified_ms if stat else 0))
    usages = [_usage(files, path) for path in paths]
    return CleanFacts(found, usages, now_ms, hour, is_rejecting, is_asked, held, needed)


def _usage(files: FileSystem, path: str) -> DiskUsage | None:
    try:
        return files.usage(path)
    except OSError:
        return None
