from __future__ import annotations

import pytest

from rocketpost.admin.commands.monitoring import VERDICTS, exit_code, select_for_log, verdict_row
from rocketpost.diagnosis.group_alarms import Alarm, Verdict


def test_a_row_has_the_change_and_the_reason() -> None:
    verdict = Verdict("G", 1, 24, 11, None, Alarm.STILL, "T a/0: no member takes messages")
    line = VERDICTS.line(verdict_row(verdict))
    assert line.split()[:6] == ["G", "1", "24", "+11", "STILL", "T"]


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
    assert [each.group for each in select_for_log(now, before)] == ["again", "ill"]
