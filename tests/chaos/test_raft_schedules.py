"""100,000 random schedules of simulated Raft groups, and the harm that planted bugs do late.

The schedules are those of ``tests/simulation/raft``, from other seeds in every run. They use all
cores; a failure names the seed, and the command that runs it again with its trace.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # for the processes, too

from chaos.seeds import chunks_of
from simulation.raft import bugs, checks, faults
from simulation.raft.checks import Violation
from simulation.raft.exhaustive import explore
from simulation.raft.schedules import returning_node, run_schedule
from simulation.raft.test_exhaustive import led_group, new_group
from simulation.raft.test_planted_bugs import CUTS, POWER, Case

CHUNK = 250
"""Schedules that a process runs before it reports."""

RETURNS_EVERY = 20
"""One schedule in so many is that of a node that returns to a healthy group."""

HARM_SEEDS = 3000
"""Seeds within which a bug must do the harm that it is listed with."""

pytestmark = pytest.mark.timeout(4 * 3600)


def run_chunk(first: int, count: int) -> list[str]:
    """Run schedules, and return the reports of those that failed."""
    reports = []
    for seed in range(first, first + count):
        try:
            run_schedule(seed)
            if seed % RETURNS_EVERY == 0:
                run_schedule(seed, story=returning_node)
        except Exception as error:
            reports.append("\n".join([f"seed {seed}: {error!r}", *error.__notes__]))
    return reports


def test_random_schedules(seed: int, schedules: int, processes: int) -> None:
    first = seed * 1_000_000
    chunks = chunks_of(run_chunk, first, schedules, chunk=CHUNK, processes=processes)
    reports = [report for chunk in chunks for report in chunk]
    assert not reports, f"{len(reports)} of {schedules} failed; the first:\n{reports[0]}"


def test_all_orders_of_more_events() -> None:
    """The exhaustive model of ``make test``, with longer stories."""
    assert explore(new_group(), depth=6) > 20_000
    assert explore(led_group(), depth=8) > 10_000


OLD_TERMS = (faults.strand, faults.lossy)
"""Faults in which leaders leave entries with few others, as in figure 8 of the Raft paper."""

HARM = [
    Case(bugs.own_fsync_not_awaited, checks.ACKNOWLEDGED_KEPT, POWER),
    Case(bugs.vote_not_saved, checks.VOTE_ONCE, (faults.kill, faults.lossy)),
    Case(bugs.vote_sent_before_it_is_saved, checks.VOTE_ONCE, (*POWER, faults.lossy)),
    Case(bugs.stale_term_accepted, checks.LOG_MATCHING, (faults.isolate, faults.lossy)),
    Case(bugs.votes_counted_twice, checks.ELECTION_SAFETY, (faults.lossy, faults.kill), size=5),
    Case(bugs.old_term_committed_by_counting, checks.LEADER_COMPLETENESS, OLD_TERMS),
    Case(bugs.two_changes_at_once, checks.LEADER_COMPLETENESS, (faults.change_members, *CUTS)),
]


@pytest.mark.parametrize("case", HARM, ids=str)
def test_a_bug_does_its_harm(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of harm are not idle: each finds a bug although the check of its rule is off."""
    case.plant(monkeypatch)
    for seed in range(HARM_SEEDS):
        try:
            case.run(seed, only=[case.check])
        except Violation:
            return
    pytest.fail(f"not found in {HARM_SEEDS} schedules")
