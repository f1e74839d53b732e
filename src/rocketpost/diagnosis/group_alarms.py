"""Alarms about groups that do not keep up, from two rounds of samples. Pure.

ok       nothing waits, or less than the thresholds and offsets move
LAG      more messages wait than the threshold
DELAY    the next message has waited for longer than the threshold
STILL    messages wait, and the offset of some queue has not moved since the previous round
OFFLINE  messages wait, and no member is connected
UNKNOWN  a broker did not answer
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rocketpost.codec.bodies.offset import ConsumeState
from rocketpost.diagnosis.lag import queue_lag, total_lag
from rocketpost.model.route import MessageQueue


class Alarm(enum.Enum):
    """The condition of a group; the first that applies."""

    UNKNOWN = "UNKNOWN"
    OFFLINE = "OFFLINE"
    STILL = "STILL"
    LAG = "LAG"
    DELAY = "DELAY"
    OK = "ok"


class Thresholds(NamedTuple):
    """Limits above which there is an alarm; None is no limit."""

    messages: int | None = None
    seconds: float | None = None


class Sample(NamedTuple):
    """One group in one round. ``problem`` says why a broker did not answer, if so."""

    group: str
    members: int
    state: ConsumeState
    delay_ms: int | None = None
    problem: str = ""


class Verdict(NamedTuple):
    """The verdict on a group after a round."""

    group: str
    members: int
    lag: int
    change: int | None
    delay_ms: int | None
    alarm: Alarm
    why: str


def judge_group(sample: Sample, before: Sample | None, thresholds: Thresholds) -> Verdict:
    """Return the verdict on a group, given the previous round if there was one."""
    lag = total_lag(sample.state)
    known = before is not None and not before.problem and not sample.problem
    change = lag - total_lag(before.state) if before is not None and known else None
    alarm, why = _judge_alarm(sample, before if known else None, thresholds, lag)
    return Verdict(sample.group, sample.members, lag, change, sample.delay_ms, alarm, why)


def _judge_alarm(
    sample: Sample, before: Sample | None, thresholds: Thresholds, lag: int
) -> tuple[Alarm, str]:
    if sample.problem:
        return Alarm.UNKNOWN, sample.problem
    if lag and not sample.members:
        return Alarm.OFFLINE, "no member is online"
    still = _find_still(sample.state, before.state) if before is not None else []
    if still:
        return Alarm.STILL, _describe_still(sample.state, still)
    if thresholds.messages is not None and lag > thresholds.messages:
        return Alarm.LAG, f"more than {thresholds.messages} messages wait"
    delay_ms = sample.delay_ms
    if thresholds.seconds is not None and (delay_ms or 0) > thresholds.seconds * 1000:
        return Alarm.DELAY, f"the next message has waited for more than {thresholds.seconds:g} s"
    return Alarm.OK, ""


def _find_still(state: ConsumeState, before: ConsumeState) -> list[MessageQueue]:
    """Return the queues with a lag in both rounds and the same offset."""
    found = [
        queue
        for queue, progress in state.queues.items()
        if (then := before.queues.get(queue)) is not None
        and queue_lag(progress)
        and queue_lag(then)
        and then.consumer_offset == progress.consumer_offset
    ]
    return sorted(found, key=lambda queue: queue.sort_key)


def _describe_still(state: ConsumeState, still: Sequence[MessageQueue]) -> str:
    first, more = still[0], len(still) - 1
    seen = state.queues[first].standing
    where = f"{first.topic} {first.broker_name}/{first.queue_id}"
    others = f" (and {more} more queue{'s' if more > 1 else ''})" if more else ""
    return where + others + ("" if seen is msgspec.UNSET else f": {seen}")
