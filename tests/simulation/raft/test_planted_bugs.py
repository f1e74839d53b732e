"""The checks find bugs: each of these, planted, is found by the check that is named beside it.

Only that check is on, so that none of them is idle. Some bugs are listed twice: with the check of
the rule itself, and with the check of the harm that is done later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest

from . import bugs, checks, faults
from .bugs import Plant
from .checks import Violation
from .faults import Fault
from .schedules import Story, random_faults, returning_node, run_schedule

SEEDS = range(100)
"""Seeds within which a bug must be found."""


class Case(NamedTuple):
    """A bug, the check that finds it, and the schedules in which it does."""

    plant: Plant
    check: str
    faults: Sequence[Fault] = ()
    size: int = 3
    story: Story = random_faults

    def run(self, seed: int, *, only: Sequence[str] = ()) -> None:
        run_schedule(seed, story=self.story, faults=self.faults, size=self.size, only=only)

    def __str__(self) -> str:
        return f"{self.plant.__name__}: {self.check}"


POWER = (faults.slow_disk, faults.cut_power, faults.cut_all_power)
CUTS = (faults.isolate, faults.split, faults.freeze)

CASES = [
    Case(bugs.ack_before_fsync, checks.PROMISE_DURABLE, POWER),
    Case(bugs.ack_before_fsync, checks.DURABLE_MAJORITY, POWER),
    Case(bugs.ack_before_fsync, checks.LEADER_COMPLETENESS, POWER),
    Case(bugs.ack_before_fsync, checks.ACKNOWLEDGED_KEPT, POWER),
    Case(bugs.own_fsync_not_awaited, checks.DURABLE_MAJORITY, POWER),
    Case(bugs.own_fsync_not_awaited, checks.LEADER_COMPLETENESS, (*POWER, faults.isolate)),
    Case(
        bugs.flush_counts_for_replaced_bytes,
        checks.PROMISE_DURABLE,
        (faults.slow_disk, faults.split, faults.freeze),
    ),
    Case(bugs.ack_without_comparing, checks.DURABLE_MAJORITY, CUTS),
    Case(bugs.duplicate_connection_counted_twice, checks.DURABLE_MAJORITY, (faults.lossy,), size=5),
    Case(bugs.learners_counted, checks.DURABLE_MAJORITY, (faults.change_members, faults.slow_disk)),
    Case(bugs.vote_sent_before_it_is_saved, checks.PROMISE_DURABLE, POWER),
    Case(bugs.vote_not_saved, checks.PROMISE_DURABLE, POWER),
    Case(bugs.vote_for_anybody, checks.LEADER_COMPLETENESS, CUTS),
    Case(bugs.votes_counted_twice, checks.VOTE_MAJORITY, (faults.lossy, faults.kill), size=5),
    Case(bugs.stale_term_accepted, checks.CORE, (faults.isolate, faults.lossy)),
    Case(bugs.suspect_votes, checks.UNFIT_SILENT, (faults.damage, faults.lossy)),
    Case(bugs.suspect_votes, checks.LEADER_COMPLETENESS, (faults.damage, faults.lossy)),
    Case(bugs.failed_node_goes_on, checks.UNFIT_SILENT, (faults.fail_disk,)),
    Case(bugs.pre_vote_off, checks.NO_DISRUPTION, story=returning_node),
    Case(bugs.lease_off, checks.NO_DISRUPTION, story=returning_node),
    Case(bugs.check_quorum_off, checks.QUORUM_CONTACT, (faults.isolate,)),
    Case(bugs.lease_longer_than_the_time_out, checks.QUORUM_CONTACT, (faults.isolate,)),
    Case(bugs.old_term_committed_by_counting, checks.OWN_TERM, CUTS),
    Case(bugs.no_term_record, checks.TERM_RECORD, CUTS),
    Case(bugs.no_term_record, checks.LIVENESS, (faults.kill,)),
    Case(bugs.two_changes_at_once, checks.ONE_CHANGE, (faults.change_members, faults.slow_disk)),
    Case(bugs.change_before_own_commit, checks.ONE_CHANGE, (faults.change_members, *CUTS)),
    Case(bugs.truncate_on_every_append, checks.COMMITTED_KEPT, (faults.lossy,)),
    Case(bugs.conflict_not_cut, checks.LOG_MATCHING, (faults.isolate,)),
    Case(bugs.commit_what_was_not_compared, checks.STATE_MACHINE_SAFETY, CUTS),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_check_finds_the_bug(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.plant(monkeypatch)
    for seed in SEEDS:
        try:
            case.run(seed, only=[case.check])
        except Violation:
            return
    pytest.fail(f"not found in {len(SEEDS)} schedules")


def test_nothing_is_found_where_nothing_is_planted() -> None:
    for seed, case in enumerate(CASES):
        case.run(seed)


def test_every_bug_is_planted() -> None:
    assert {case.plant for case in CASES} == set(bugs.ALL)
