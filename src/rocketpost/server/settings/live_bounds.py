"""Narrower limits for settings that are changed over the wire, where a change could do damage.

Anyone who can reach the port can change settings while the broker runs, but only its operator can
edit its file. So a request may not cause messages to be deleted or refused while there is room, nor
weaken the broker's promises. The file may. If the file itself exceeds a limit, requests may go as
far as the file. A change from before these limits is dropped at the next start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketpost.errors import ConfigError
from rocketpost.server.settings.logs import parse_levels

_INT_MAX: Final = 2**31 - 1
_DAY_MS: Final = 86_400_000


class Bound(NamedTuple):
    """Range within which a request may set a number, and the effect of other values."""

    low: int
    high: int
    why: str


BOUNDS: Final[Mapping[str, Bound]] = {
    "fileReservedTime": Bound(24, _INT_MAX, "messages would be deleted within a day"),
    "diskMaxUsedSpaceRatio": Bound(
        50, 100, "expired messages would be deleted although there is room"
    ),
    "diskSpaceCleanForciblyRatio": Bound(
        75, 100, "unexpired messages would be deleted although there is room"
    ),
    "diskSpaceWarningLevelRatio": Bound(
        80, 100, "messages would be refused although there is room"
    ),
    "maxMessageSize": Bound(64 * 1024, _INT_MAX, "ordinary messages would be refused"),
    "flushIntervalCommitLog": Bound(1, 60_000, "a power cut would lose more messages"),
    "flushIntervalConsumeQueue": Bound(1, 60_000, "a start after a crash would take longer"),
    "flushConsumeQueueThoroughInterval": Bound(
        1, 600_000, "a start after a crash would take longer"
    ),
    "scrubCommitLogIntervalHours": Bound(1, 24 * 30, "damage could stay unnoticed for long"),
    "scrubCommitLogBytesPerSecond": Bound(
        64 * 1024, 256 * 1024**2, "a round of the scrub would never end, or take the whole disk"
    ),
    "checkCRCOnReadInterval": Bound(0, 60_000, "damaged messages could be served unnoticed"),
    "timerFlushIntervalMs": Bound(1, 60_000, "a start after a crash would take longer"),
    "transactionTimeOut": Bound(1000, _INT_MAX, "transactions would be checked too soon"),
    "transactionCheckMax": Bound(5, _INT_MAX, "pending transactions would be discarded too soon"),
    "transactionCheckInterval": Bound(
        1000, _INT_MAX, "pending transactions would be discarded too soon"
    ),
    "slaveTimeout": Bound(100, 600_000, "sends would be answered too soon, or wait for long"),
    "haTransferBatchSize": Bound(1024, 4 * 1024**2 - 12, "slaves would follow slowly"),
    "haMaxGapNotInSync": Bound(
        1024**2, 2**62, "slaves would count as unavailable although they follow"
    ),
    "maxHaTransferByteInSecond": Bound(1024**2, 2**62, "slaves would fall behind"),
    "idempotentProducersMax": Bound(1000, _INT_MAX, "repeated sends would be stored twice"),
    "idempotentProducerIdleSeconds": Bound(3600, _INT_MAX, "repeated sends would be stored twice"),
}


def live_problem(key: str, value: str, *, from_file: Mapping[str, str], now_ms: int) -> str | None:
    """Return the reason why a request may not set a key to a value; None if it may.

    The settings class checks values that are not numbers. Levels of the log are checked here too: a
    change that was saved before a part of the server got another name must not stop the next start.
    """
    if key == "logLevel":
        return _level_problem(value)
    in_file = from_file.get(key, "").strip()
    if key == "cleanFileForciblyEnable":
        if in_file.lower() == "false" and value.strip().lower() == "true":
            return f"{key}=true is refused: the broker's file forbids it; change the file"
        return None
    number = _number(value)
    if number is None:
        return None
    bound: Bound | None
    if key == "startAcceptSendRequestTimeStamp":
        bound = Bound(0, now_ms + _DAY_MS, "messages would be refused for days")
    elif key == "inSyncReplicas":
        is_sync = from_file.get("brokerRole", "").strip().upper() == "SYNC_MASTER"
        fewest = _number(in_file) or (2 if is_sync else 1)
        bound = Bound(fewest, 64, "messages would be acknowledged before slaves have them")
    else:
        bound = BOUNDS.get(key)
    if bound is None:
        return None
    allowed = _number(in_file)
    low, high = bound.low, bound.high
    if allowed is not None:
        low, high = min(low, allowed), max(high, allowed)
    if low <= number <= high:
        return None
    return (
        f"{key}={number} is refused: {bound.why}; a request may set {low} to {high}, "
        "for other values edit the broker's file"
    )


def _level_problem(value: str) -> str | None:
    if not value.strip(" ,"):
        return "logLevel needs a value, such as logLevel=INFO"
    try:
        parse_levels(value)
    except ConfigError as error:
        return str(error)
    return None


def _number(text: str) -> int | None:
    try:
        return int(text.strip())
    except ValueError:
        return None
