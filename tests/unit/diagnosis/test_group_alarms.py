from __future__ import annotations

import pytest

from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress
from rocketpost.diagnosis.group_alarms import Alarm, Sample, Thresholds, judge_group
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
    verdict = judge_group(now, before, Thresholds(messages=50, seconds=2.0))
    assert verdict.alarm is alarm
    assert bool(verdict.why) == (alarm is not Alarm.OK)


def test_without_thresholds_nothing_is_too_much() -> None:
    assert judge_group(sample((10**9, 0), delay_ms=10**9), None, Thresholds()).alarm is Alarm.OK


def test_the_change_and_the_cause_are_reported() -> None:
    verdict = judge_group(sample((20, 4), (9, 1)), sample((9, 4), (9, 1)), Thresholds())
    assert (verdict.lag, verdict.change) == (24, 11)
    assert verdict.why == "T a/0 (and 1 more queue): no member takes messages"
