"""Whether groups keep up: one round of looking compared with the round before. Pure.

ok       nothing waits, or less than the thresholds and it moves
LAG      more messages wait than the threshold
DELAY    the next message has waited for longer than the threshold
STILL    messages wait, and no offset of some queue has moved since the round before
OFFLINE  messages wait, and nobody is connected
UNKNOWN  a broker could not be asked
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from rocketpost.admin.lag import lag_of
from rocketpost.admin.render import Column, Table
from rocketpost.codec.bodies.offset import ConsumeState
from rocketpost.model.route import MessageQueue


class Alarm(enum.Enum):
    """How a group fares; the first that applies."""

    UNKNOWN = "UNKNOWN"
    OFFLINE = "OFFLINE"
    STILL = "STILL"
    LAG = "LAG"
    DELAY = "DELAY"
    OK = "ok"


class Thresholds(NamedTuple):
    """What is too much; None is never too much."""

    messages: int | None = None
    seconds: float | None = None


class Sample(NamedTuple):
    """One group in one round. ``problem`` is why it could not be asked about, if so."""

    group: str
    members: int
    state: ConsumeState
    delay_ms: int | None = None
    problem: str = ""


class Verdict(NamedTuple):
    """What is said of a group after a round."""

    group: str
    members: int
    lag: int
    change: int | None
    delay_ms: int | None
    alarm: Alarm
    why: str


VERDICTS = Table(
    "%-40s  %-7s  %-12s  %-10s  %-10s  %-8s  %s",
    [
        Column("#Group", "group"),
        Column("#Count", "members"),
        Column("#Diff Total", "diffTotal"),
        Column("#Change", "change", lambda value: "" if value is None else f"{value:+d}"),
        Column("#Delay", "delayMs", lambda ms: "" if ms is None else f"{ms / 1000:.1f} s"),
        Column("#State", "state"),
        Column("#Why", "why"),
    ],
)


def row(verdict: Verdict) -> tuple[object, ...]:
    """Return a verdict as a row of :data:`VERDICTS`."""
    return (*verdict[:5], verdict.alarm.value, verdict.why)


def judge(sample: Sample, before: Sample | None, thresholds: Thresholds) -> Verdict:
    """Say how a group fares, given the round before if there was one."""
    lag = _lag(sample.state)
    known = before is not None and not before.problem and not sample.problem
    change = lag - _lag(before.state) if before is not None and known else None
    alarm, why = _alarm(sample, before if known else None, thresholds, lag)
    return Verdict(sample.group, sample.members, lag, change, sample.delay_ms, alarm, why)


def _alarm(
    sample: Sample, before: Sample | None, thresholds: Thresholds, lag: int
) -> tuple[Alarm, str]:
    if sample.problem:
        return Alarm.UNKNOWN, sample.problem
    if lag and not sample.members:
        return Alarm.OFFLINE, "no member is online"
    still = _still(sample.state, before.state) if before is not None else []
    if still:
        return Alarm.STILL, _why_still(sample.state, still)
    if thresholds.messages is not None and lag > thresholds.messages:
        return Alarm.LAG, f"more than {thresholds.messages} messages wait"
    delay_ms = sample.delay_ms
    if thresholds.seconds is not None and (delay_ms or 0) > thresholds.seconds * 1000:
        return Alarm.DELAY, f"the next message has waited for more than {thresholds.seconds:g} s"
    return Alarm.OK, ""


def _still(state: ConsumeState, before: ConsumeState) -> list[MessageQueue]:
    """Return queues where something waited in both rounds and the offset is the same."""
    found = [
        queue
        for queue, progress in state.queues.items()
        if (then := before.queues.get(queue)) is not None
        and lag_of(progress)
        and lag_of(then)
        and then.consumer_offset == progress.consumer_offset
    ]
    return sorted(found, key=lambda queue: queue.sort_key)


def _why_still(state: ConsumeState, still: Sequence[MessageQueue]) -> str:
    first, more = still[0], len(still) - 1
    seen = state.queues[first].standing
    where = f"{first.topic} {first.broker_name}/{first.queue_id}"
    others = f" (and {more} more queues)" if more else ""
    return where + others + ("" if seen is msgspec.UNSET else f": {seen}")


def _lag(state: ConsumeState) -> int:
    return sum(map(lag_of, state.queues.values()))


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Return 0 if all is well, 3 if there is an alarm, 1 if something is not known and no alarm."""
    alarms = {verdict.alarm for verdict in verdicts}
    if alarms - {Alarm.OK, Alarm.UNKNOWN}:
        return 3
    return 1 if Alarm.UNKNOWN in alarms else 0


def changed(verdicts: Sequence[Verdict], before: Mapping[str, Alarm]) -> list[Verdict]:
    """Return what a log of rounds should show: alarms, and groups that were in one before."""
    return [
        verdict
        for verdict in verdicts
        if verdict.alarm is not Alarm.OK or before.get(verdict.group, Alarm.OK) is not Alarm.OK
    ]
