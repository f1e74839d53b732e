from __future__ import annotations

from rocketpost.console.actions.plan import (
    VALID_SECONDS,
    Outcome,
    Plan,
    Plans,
    Step,
    apply_steps,
)
from rocketpost.errors import ConnectionLost, RequestTimeout, RocketpostError

PLAN = Plan(action="a", title="A", steps=[Step(target="x", before="1", after="2")])


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_ticket_works_once_for_its_session_and_time() -> None:
    clock = Clock()
    plans = Plans(clock)
    token = plans.issue(PLAN, {"topic": "T"}, session="one")
    assert plans.take(token, session="another") is None
    found = plans.take(token, session="one")
    assert found is not None
    assert (found.fields, found.digest) == ({"topic": "T"}, PLAN.digest)
    assert plans.take(token, session="one") is None
    late = plans.issue(PLAN, {}, session="one")
    clock.now += VALID_SECONDS + 1
    assert plans.take(late, session="one") is None
    assert plans.take("made up", session="one") is None


def test_the_digest_changes_with_what_was_shown() -> None:
    other = Plan(action="a", title="A", steps=[Step(target="x", before="9", after="2")])
    assert other.digest != PLAN.digest
    target = Plan(action="a", title="A", steps=[Step(target="x", before="1", after="3")])
    assert target.digest != PLAN.digest


def test_values_that_move_are_not_compared_but_targets_are() -> None:
    def make(before: str, after: str) -> Plan:
        step = Step(target="q", before=before, after=after)
        return Plan(action="a", title="A", steps=[step], risks=[before], typed=before, moves=True)

    assert make("1", "0").digest == make("5", "0").digest
    assert make("1", "0").digest != make("1", "4").digest


async def test_steps_stop_at_the_first_that_fails() -> None:
    errors: dict[str, RocketpostError] = {
        "refused": RocketpostError("no"),
        "silent": RequestTimeout("late"),
        "cut": ConnectionLost("cut"),
    }

    async def work(step: Step) -> str | None:
        if step.target in errors:
            raise errors[step.target]
        return None if step.target == "same" else "changed"

    async def outcomes(*targets: str) -> list[Outcome]:
        found = await apply_steps([Step(target=each) for each in targets], work)
        return [each.outcome for each in found]

    assert await outcomes("new", "same") == [Outcome.DONE, Outcome.UNCHANGED]
    assert await outcomes("refused", "new") == [Outcome.REFUSED, Outcome.NOT_TRIED]
    assert await outcomes("new", "silent", "new") == [
        Outcome.DONE,
        Outcome.UNKNOWN,
        Outcome.NOT_TRIED,
    ]
    assert await outcomes("cut") == [Outcome.UNKNOWN]
