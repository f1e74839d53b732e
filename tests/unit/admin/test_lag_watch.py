from __future__ import annotations

import pytest

from rocketpost.admin.lag_watch import (
    VERDICTS,
    Alarm,
    Sample,
    Thresholds,
    Verdict,
    changed,
    exit_code,
    judge,
    row,
)
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.model.route import MessageQueue


def sample(*offsets: tuple[int, int], members: int = 1, **more: object) -> Sample:
    queues = {
        MessageQueue("a", number, "T"): QueueProgress(
            broker_offset=end, consumer_offset=offset, standing="no member takes messages"
        )
        for number, (end, offset) in enumerate(offsets)
    }
    return Sample("G", members, ConsumeState(queues=queues), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "before", "alarm"),
    [
        (sample((9, 9)), None, Alarm.OK),
        (sample((9, 4)), None, Alarm.OK),  # the first round cannot tell whether it moves
        (sample((9, 5)), sample((9, 4)), Alarm.OK),
        (sample((9, 4)), sample((9, 4)), Alarm.STILL),
        (sample((9, 5), (9, 4)), sample((9, 4), (9, 4)), Alarm.STILL),
        (sample((9, 4)), sample((4, 4)), Alarm.OK),  # nothing waited before
        (sample((99, 4)), sample((4, 4)), Alarm.LAG),
        (sample((9, 4), members=0), None, Alarm.OFFLINE),
        (sample((9, 9), members=0), None, Alarm.OK),
        (sample((9, 4), delay_ms=2001), None, Alarm.DELAY),
        (sample((9, 4), delay_ms=2000), None, Alarm.OK),
        (sample(problem="no answer"), sample((9, 4)), Alarm.UNKNOWN),
        (sample((9, 4)), sample(problem="no answer"), Alarm.OK),
    ],
)
def test_groups_that_do_not_keep_up_are_found(
    now: Sample, before: Sample | None, alarm: Alarm
) -> None:
    verdict = judge(now, before, Thresholds(messages=50, seconds=2.0))
    assert verdict.alarm is alarm
    assert bool(verdict.why) == (alarm is not Alarm.OK)


def test_without_thresholds_nothing_is_too_much() -> None:
    assert judge(sample((10**9, 0), delay_ms=10**9), None, Thresholds()).alarm is Alarm.OK


def test_the_change_and_the_cause_are_told() -> None:
    verdict = judge(sample((20, 4), (9, 1)), sample((9, 4), (9, 1)), Thresholds())
    assert (verdict.lag, verdict.change) == (24, 11)
    assert verdict.why == "T a/0 (and 1 more queues): no member takes messages"
    assert VERDICTS.line(row(verdict)).split()[:6] == ["G", "1", "24", "+11", "STILL", "T"]


def verdict(alarm: Alarm, group: str = "G") -> Verdict:
    return Verdict(group, 1, 0, None, None, alarm, "")


@pytest.mark.parametrize(
    ("alarms", "code"),
    [([], 0), ([Alarm.OK], 0), ([Alarm.OK, Alarm.UNKNOWN], 1), ([Alarm.UNKNOWN, Alarm.LAG], 3)],
)
def test_scripts_can_trust_the_exit_status(alarms: list[Alarm], code: int) -> None:
    assert exit_code([verdict(alarm) for alarm in alarms]) == code


def test_a_log_of_rounds_has_alarms_and_their_ends() -> None:
    now = [verdict(Alarm.OK, "well"), verdict(Alarm.OK, "again"), verdict(Alarm.LAG, "ill")]
    before = {"well": Alarm.OK, "again": Alarm.STILL}
    assert [each.group for each in changed(now, before)] == ["again", "ill"]
