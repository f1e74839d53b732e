"""Settings of the store, with RocketMQ's keys, so that an existing ``broker.conf`` works."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from rocketpost.codec.frames import FRAME_BYTES_MAX
from rocketpost.errors import ConfigError
from rocketpost.model.delay_levels import parse_delay_levels
from rocketpost.settings import apply_clamps, option

RECORD_SLACK_BYTES: Final = 64 * 1024
"""Largest size of a record beyond its body: topic, properties and fixed fields."""

MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX - 256 * 1024
"""The largest body; a larger one could be stored, but would not fit in a pull response."""

_ENTRY_BYTES: Final = 20
_TIMER_PRECISION_MS_MAX: Final = 60_000
_TIMER_ROLL_SLOTS_MAX: Final = 2 * 604_800 - 60
_TIMER_LOG_FILE_BYTES_MIN: Final = 4096
_INT_MAX: Final = 2**31 - 1
"""Largest value, as in Java; a longer wait would fail and end a thread of the store."""


class FlushMode(enum.Enum):
    """Moment at which a message counts as stored."""

    ASYNC_FLUSH = "after the write; the disk follows"
    SYNC_FLUSH = "when it is on disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The store's part of ``broker.conf``."""

    root: str = option("storePathRootDir", "", important=True)
    commit_log_path: str = option("storePathCommitLog", "", important=True)
    segment_bytes: int = option("mappedFileSizeCommitLog", 1024**3)
    queue_file_bytes: int = option("mappedFileSizeConsumeQueue", 6_000_000)
    message_bytes_max: int = option(
        "maxMessageSize", 4 * 1024**2, mutable=True, clamp=(1, MESSAGE_BYTES_MAX)
    )
    long_topics: bool = option("autoMessageVersionOnTopicLen", True)
    verify_crc: bool = option("checkCRCOnRecover", True)

    append_checksum: bool = option("enabledAppendPropCRC", False)
    require_checksum: bool = option("forceVerifyPropCRC", False)

    scrub_enabled: bool = option("scrubCommitLogEnable", True)
    scrub_interval_hours: int = option("scrubCommitLogIntervalHours", 168, mutable=True)
    scrub_bytes_per_second: int = option("scrubCommitLogBytesPerSecond", 4 * 1024**2, mutable=True)
    read_check_interval_ms: int = option("checkCRCOnReadInterval", 30_000, mutable=True)

    flush_mode: FlushMode = option("flushDiskType", FlushMode.ASYNC_FLUSH, important=True)
    flush_interval_ms: int = option("flushIntervalCommitLog", 500, mutable=True)
    queue_flush_interval_ms: int = option("flushIntervalConsumeQueue", 1000, mutable=True)
    queue_flush_thorough_ms: int = option("flushConsumeQueueThoroughInterval", 60_000, mutable=True)

    index_enabled: bool = option("messageIndexEnable", True)
    index_slot_count: int = option("maxHashSlotNum", 5_000_000)
    index_entry_count: int = option("maxIndexNum", 20_000_000)

    delete_when: str = option("deleteWhen", "04", mutable=True, important=True)
    reserved_hours: int = option("fileReservedTime", 72, mutable=True, important=True)
    disk_ratio_max: int = option("diskMaxUsedSpaceRatio", 75, mutable=True, clamp=(10, 95))
    disk_ratio_force: int = option("diskSpaceCleanForciblyRatio", 85, mutable=True, clamp=(30, 85))
    disk_ratio_warning: int = option("diskSpaceWarningLevelRatio", 90, mutable=True, clamp=(35, 90))
    clean_forcibly: bool = option("cleanFileForciblyEnable", True, mutable=True)
    clean_interval_ms: int = option("cleanResourceInterval", 10_000)
    clean_batch_count_max: int = option("deleteFileBatchMax", 10, mutable=True)

    delay_levels: str = option(
        "messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )

    timer_enabled: bool = option("timerWheelEnable", True)
    timer_precision_ms: int = option("timerPrecisionMs", 1000)
    timer_roll_slots: int = option(
        "timerRollWindowSlot",
        172_800,
        clamp=(2, _TIMER_ROLL_SLOTS_MAX),
        below=_TIMER_ROLL_SLOTS_MAX,
    )
    timer_delay_sec_max: int = option("timerMaxDelaySec", 366 * 86_400, mutable=True)
    timer_flush_interval_ms: int = option("timerFlushIntervalMs", 1000, mutable=True)
    timer_log_file_bytes: int = option("mappedFileSizeTimerLog", 100 * 1024**2)
    timer_slot_count_max: int = option("timerCongestNumEachSlot", _INT_MAX, mutable=True)
    timer_stop_enqueue: bool = option("timerStopEnqueue", False, mutable=True)
    timer_stop_dequeue: bool = option("timerStopDequeue", False, mutable=True)

    @property
    def timer_roll_window_ms(self) -> int:
        """Longest time that a timed message waits before it is stored again.

        A message that is due later is stored again before its segment could expire.
        """
        kept_ms = self.reserved_hours * 3_600_000 * 2 // 3
        return min(self.timer_roll_slots * self.timer_precision_ms, kept_ms)

    def __post_init__(self) -> None:
        """Check the values, apply clamps, and round queue files up to whole entries."""
        for key, ratio in (
            ("diskMaxUsedSpaceRatio", self.disk_ratio_max),
            ("diskSpaceCleanForciblyRatio", self.disk_ratio_force),
            ("diskSpaceWarningLevelRatio", self.disk_ratio_warning),
        ):
            if not 1 <= ratio <= 100:
                raise ConfigError(f"{key}={ratio} must be a percentage from 1 to 100")
        if self.message_bytes_max < 1:
            raise ConfigError(f"maxMessageSize={self.message_bytes_max} must be at least 1")
        apply_clamps(self)
        if "," in self.commit_log_path:
            raise ConfigError(
                "storePathCommitLog must name a single directory; lists of directories are "
                "not supported"
            )
        for key, value in (
            ("mappedFileSizeConsumeQueue", self.queue_file_bytes),
            ("flushIntervalCommitLog", self.flush_interval_ms),
            ("flushIntervalConsumeQueue", self.queue_flush_interval_ms),
            ("flushConsumeQueueThoroughInterval", self.queue_flush_thorough_ms),
            ("maxHashSlotNum", self.index_slot_count),
            ("scrubCommitLogIntervalHours", self.scrub_interval_hours),
            ("scrubCommitLogBytesPerSecond", self.scrub_bytes_per_second),
            ("maxIndexNum", self.index_entry_count),
            ("fileReservedTime", self.reserved_hours),
            ("cleanResourceInterval", self.clean_interval_ms),
            ("deleteFileBatchMax", self.clean_batch_count_max),
            ("timerMaxDelaySec", self.timer_delay_sec_max),
            ("timerFlushIntervalMs", self.timer_flush_interval_ms),
            ("timerCongestNumEachSlot", self.timer_slot_count_max),
            ("mappedFileSizeTimerLog", self.timer_log_file_bytes),
        ):
            if not 0 < value <= _INT_MAX:
                raise ConfigError(f"{key}={value} must be between 1 and {_INT_MAX}")
        if not 0 <= self.read_check_interval_ms <= _INT_MAX:
            raise ConfigError(
                f"checkCRCOnReadInterval={self.read_check_interval_ms} must be between 0 and "
                f"{_INT_MAX}"
            )
        if self.message_bytes_max >= self.segment_bytes:
            raise ConfigError("maxMessageSize must be smaller than mappedFileSizeCommitLog")
        self._check_timer()
        parse_delete_hours(self.delete_when)
        parse_delay_levels(self.delay_levels)
        rounded = -(-self.queue_file_bytes // _ENTRY_BYTES) * _ENTRY_BYTES
        object.__setattr__(self, "queue_file_bytes", rounded)

    def _check_timer(self) -> None:
        if not 1 <= self.timer_precision_ms <= _TIMER_PRECISION_MS_MAX:
            raise ConfigError(
                f"timerPrecisionMs={self.timer_precision_ms} must be between 1 and "
                f"{_TIMER_PRECISION_MS_MAX}"
            )
        if self.timer_roll_slots * self.timer_precision_ms > _INT_MAX:
            raise ConfigError(
                f"timerRollWindowSlot={self.timer_roll_slots} of "
                f"{self.timer_precision_ms} ms each exceeds the {_INT_MAX} ms that an "
                "entry of the timer log can hold; lower one of them"
            )
        if self.timer_log_file_bytes < _TIMER_LOG_FILE_BYTES_MIN:
            raise ConfigError(
                f"mappedFileSizeTimerLog={self.timer_log_file_bytes} must be at least "
                f"{_TIMER_LOG_FILE_BYTES_MIN}"
            )


def parse_delete_hours(text: str) -> frozenset[int]:
    """Read ``deleteWhen``: hours of the day, separated by semicolons.

    Raises:
        ConfigError: A part is not an hour.
    """
    hours = set()
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if not part.isdecimal() or int(part) > 23:
            raise ConfigError(f"deleteWhen={text!r} must be hours of the day, like 04;16")
        hours.add(int(part))
    return frozenset(hours)
