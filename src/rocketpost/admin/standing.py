"""Which queues have messages that wait, and what each waits for. Pure.

Brokers tell what can be seen from outside, our own consumers what they are doing with a queue; of
Java's consumers it is read from the times and counts that they report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rocketpost.admin.lag import lag_of
from rocketpost.admin.render import Column, Table
from rocketpost.admin.running_info import RunningInfo
from rocketpost.codec.bodies.leniency import fill
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.model.route import MessageQueue

_BLOCKED_MS: Final = 60_000
_IDLE_MS: Final = 120_000

STANDING: Final = Table(
    "%-64s  %-32s  %-4s  %-10s  %s",
    [
        Column("#Topic", "topic"),
        Column("#Broker Name", "brokerName"),
        Column("#QID", "queueId"),
        Column("#Diff", "diff"),
        Column("#Waits because", "standing"),
    ],
)


def standing_rows(
    state: ConsumeState, infos: Mapping[str, RunningInfo], *, now_ms: int
) -> list[tuple[object, ...]]:
    """Return a row for each queue that a group is behind in, or whose offset is beyond its end.

    Args:
        state: How far the group has come.
        infos: What its members tell, by client id.
        now_ms: The time.
    """
    return [
        (
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            lag_of(progress),
            standing_text(queue, progress, infos, now_ms=now_ms),
        )
        for queue, progress in sorted(state.queues.items(), key=lambda item: item[0].sort_key)
        if progress.broker_offset != progress.consumer_offset
    ]


def standing_text(
    queue: MessageQueue,
    progress: QueueProgress,
    infos: Mapping[str, RunningInfo],
    *,
    now_ms: int,
) -> str:
    """Return what keeps a group from going on in a queue."""
    seen = progress.standing if progress.standing is not msgspec.UNSET else ""
    owners = sorted(client for client, info in infos.items() if queue in info.queues)
    told = [
        f"{client}: {text}"
        for client in owners
        if (text := _by_owner(infos[client], queue, now_ms=now_ms))
    ]
    if infos and not owners:
        told.append(f"none of {len(infos)} members has the queue")
    elif len(owners) > 1:
        told.append(f"{len(owners)} members have the queue")
    if not told:
        told.append(seen or ("" if owners else "no member is online"))
    return "; ".join(told) or "it moves"


def _by_owner(info: RunningInfo, queue: MessageQueue, *, now_ms: int) -> str:
    values = info.queues[queue]
    if "standing" in values:
        return fill(str, values["standing"])
    if info.properties.get("PROP_CONSUMEORDERLY") == "true":
        return _orderly(values, now_ms=now_ms)
    return _concurrent(values, now_ms=now_ms)


def _orderly(values: Mapping[str, Any], *, now_ms: int) -> str:
    if not values.get("locked"):
        return f"cannot lock it, last had it {_ago(values, 'lastLockTimestamp', now_ms)}"
    if values.get("droped") and values.get("tryUnlockTimes"):
        return f"tried {values['tryUnlockTimes']} times to unlock it"
    return _concurrent(values, now_ms=now_ms)


def _concurrent(values: Mapping[str, Any], *, now_ms: int) -> str:
    cached = fill(int, values.get("cachedMsgCount", 0))
    if cached and now_ms - fill(int, values.get("lastConsumeTimestamp", 0)) > _BLOCKED_MS:
        when = _ago(values, "lastConsumeTimestamp", now_ms)
        first = values.get("cachedMsgMinOffset")
        return f"holds {cached} messages from offset {first} and finished one last {when}"
    if now_ms - fill(int, values.get("lastPullTimestamp", 0)) > _IDLE_MS:
        return f"pulled it last {_ago(values, 'lastPullTimestamp', now_ms)}"
    return ""


def _ago(values: Mapping[str, Any], key: str, now_ms: int) -> str:
    then_ms = fill(int, values.get(key, 0))
    return f"{max(0, now_ms - then_ms) / 1000:.0f} s ago" if then_ms > 0 else "never"
