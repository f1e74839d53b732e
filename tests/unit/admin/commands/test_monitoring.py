from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rocketpost.admin.commands.monitoring import (
    VERDICTS,
    exit_code,
    select_for_log,
    start_monitoring,
    verdict_row,
)
from rocketpost.codec.bodies.offset import ConsumeState
from rocketpost.codec.faults import ConsumerNotOnline
from rocketpost.diagnosis.group_alarms import Alarm, Verdict
from rocketpost.testing.virtual_time import in_virtual_time


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


class LeavingBroker:
    """An admin client whose only broker is registered at first, and not any more later."""

    name_servers = ("name:1",)

    def __init__(self) -> None:
        self.cluster = self.groups = self
        self._brokers = [{"broker": "b"}, {}]

    async def info(self) -> Any:
        return SimpleNamespace(broker_addr_table=self._brokers.pop(0))

    async def topics(self) -> list[str]:
        return ["%RETRY%payers"]

    async def progress(self, group: str, topic: str | None) -> ConsumeState:
        return ConsumeState(queues={})

    async def connections(self, group: str) -> Any:
        raise ConsumerNotOnline("nobody")


@in_virtual_time
async def test_a_group_whose_brokers_left_is_unknown_and_monitoring_continues(
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = start_monitoring.callback.__wrapped__  # type: ignore[union-attr]
    options = dict.fromkeys(("topic", "messages", "seconds"))
    with pytest.raises(SystemExit) as ended:
        await work(
            LeavingBroker(),
            groups=(),
            interval=1.0,
            rounds=2,
            until_ok=False,
            as_json=True,
            **options,
        )
    assert ended.value.code == 1
    first, second = capsys.readouterr().out.splitlines()
    assert '"state":"ok"' in first
    assert '"state":"UNKNOWN","why":"no broker is registered at the name server name:1;' in second
