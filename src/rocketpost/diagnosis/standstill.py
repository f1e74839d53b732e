"""Queues with waiting messages, and what each of them waits for. Pure.

Brokers report what can be seen from outside. Rocketpost's consumers report what they do with a
queue; for Java's consumers it is concluded from the times and counts that they report.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rocketpost.codec.bodies.leniency import fill
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.diagnosis.lag import queue_lag
from rocketpost.diagnosis.running_info import RunningInfo
from rocketpost.model.route import MessageQueue

_BLOCKED_MS: Final = 60_000
_IDLE_MS: Final = 120_000


class WaitingQueue(NamedTuple):
    """A queue with waiting messages, and the reason."""

    topic: str
    broker_name: str
    queue_id: int
    lag: int
    reason: str


def find_waiting_queues(
    state: ConsumeState, infos: Mapping[str, RunningInfo], *, now_ms: int
) -> list[WaitingQueue]:
    """Return the queues in which a group is behind, or its offset is beyond the end.

    Args:
        state: The group's offsets.
        infos: The reports of its members, by client id.
        now_ms: The time.
    """
    return [
        WaitingQueue(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            queue_lag(progress),
            describe_standstill(queue, progress, infos, now_ms=now_ms),
        )
        for queue, progress in sorted(state.queues.items(), key=lambda item: item[0].sort_key)
        if progress.broker_offset != progress.consumer_offset
    ]


def describe_standstill(
    queue: MessageQueue,
    progress: QueueProgress,
    infos: Mapping[str, RunningInfo],
    *,
    now_ms: int,
) -> str:
    """Return what keeps a group from advancing in a queue."""
    seen = progress.standing if progress.standing is not msgspec.UNSET else ""
    owners = sorted(client for client, info in infos.items() if queue in info.queues)
    reasons = [
        f"{client}: {text}"
        for client in owners
        if (text := _describe_owner(infos[client], queue, now_ms=now_ms))
    ]
    pops = any(info.pops for info in infos.values())
    if infos and not owners and not pops:
        reasons.append(f"none of {len(infos)} members has the queue")
    elif len(owners) > 1:
        reasons.append(f"{len(owners)} members have the queue")
    if not reasons:
        reasons.append(seen or ("" if owners or pops else "no member is online"))
    return "; ".join(reasons) or "it moves"


def _describe_owner(info: RunningInfo, queue: MessageQueue, *, now_ms: int) -> str:
    values = info.queues[queue]
    if "standing" in values:
        return fill(str, values["standing"])
    if info.properties.get("PROP_CONSUMEORDERLY") == "true":
        return _describe_ordered(values, now_ms=now_ms)
    return _describe_concurrent(values, now_ms=now_ms)


def _describe_ordered(values: Mapping[str, Any], *, now_ms: int) -> str:
    if not values.get("locked"):
        return f"cannot lock it, last had it {_ago(values, 'lastLockTimestamp', now_ms)}"
    if values.get("droped") and values.get("tryUnlockTimes"):
        return f"tried {values['tryUnlockTimes']} times to unlock it"
    return _describe_concurrent(values, now_ms=now_ms)


def _describe_concurrent(values: Mapping[str, Any], *, now_ms: int) -> str:
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
