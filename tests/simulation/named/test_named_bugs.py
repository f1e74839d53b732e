"""The 25 bugs that a group must not have: each is planted, and found by the checker beside it.

The list is that of the design of groups. Bugs of the state machine are found by the schedules of
``simulation.raft``, those of store and log by ``simulation.group``, and those of a whole broker by
the stories beside this module. Each has the seed that finds it; as code changes, schedules do, so
the seeds after it are tried as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from ..group import test_planted_bugs as group_bugs
from ..group.group import Group
from ..group.test_power_cuts import a_damaged_leader_is_not_copied
from ..raft import bugs as raft_bugs
from ..raft import checks, faults
from ..raft.checks import Violation
from ..raft.faults import Fault
from ..raft.schedules import run_schedule
from ..raft.test_planted_bugs import CUTS, POWER
from . import bugs, stories

pytestmark = pytest.mark.slow

SEEDS_MAX = 100
"""Seeds within which a bug must be found, counted from its own."""

Plant = Callable[[pytest.MonkeyPatch], None]
Checker = Callable[[int], object]
"""Runs what follows from a seed, and fails if a promise is broken."""


def by_raft(check: str, kinds: Sequence[Fault], *, size: int = 3) -> Checker:
    """Find a bug by the schedules of simulated nodes, with one check on."""

    def run(seed: int) -> None:
        run_schedule(seed, faults=kinds, size=size, only=[check])

    return run


def by_group(seed: int) -> None:
    """Find a bug by a group of real stores on simulated disks."""
    group = Group(random.Random(seed), is_harmed=True)
    group.run(1500)
    group.heal()
    group.check_end()


class Named(NamedTuple):
    """A bug of the list, and what must fail with it."""

    name: str
    plant: Plant
    checker: Checker
    finding: str
    """Part of what the checker says about it."""
    seed: int = 0


POWER_AND_CUTS = (faults.isolate, *POWER)
LOSSY = (faults.lossy,)
ISOLATED = (faults.isolate,)

ALL = [
    Named(
        "ack before fsync",
        raft_bugs.ack_before_fsync,
        by_raft(checks.PROMISE_DURABLE, POWER),
        checks.PROMISE_DURABLE,
        seed=4,
    ),
    Named(
        "ack before own fsync counted",
        raft_bugs.own_fsync_not_awaited,
        by_raft(checks.DURABLE_MAJORITY, POWER),
        checks.DURABLE_MAJORITY,
    ),
    Named(
        "vote not saved",
        raft_bugs.vote_not_saved,
        by_raft(checks.PROMISE_DURABLE, POWER),
        checks.PROMISE_DURABLE,
    ),
    Named(
        "commit by counting an old term",
        raft_bugs.old_term_committed_by_counting,
        by_raft(checks.OWN_TERM, CUTS),
        checks.OWN_TERM,
    ),
    Named(
        "no term record",
        raft_bugs.no_term_record,
        by_raft(checks.TERM_RECORD, CUTS),
        checks.TERM_RECORD,
    ),
    Named(
        "stale term accepted",
        raft_bugs.stale_term_accepted,
        by_raft(checks.CORE, (faults.isolate, faults.lossy)),
        checks.CORE,
        seed=8,
    ),
    Named(
        "truncate below commit",
        raft_bugs.truncate_on_every_append,
        by_raft(checks.COMMITTED_KEPT, LOSSY),
        checks.COMMITTED_KEPT,
    ),
    Named(
        "truncate not reaching pending",
        bugs.truncate_not_reaching_pending,
        stories.messages_that_were_cut_off_are_gone,
        "members show different messages",
    ),
    Named(
        "next_offset not restored",
        bugs.next_offset_not_restored,
        stories.messages_that_were_cut_off_are_gone,
        "members show different messages",
    ),
    Named(
        "visible before commit",
        bugs.visible_before_commit,
        by_group,
        "visible before it is committed",
    ),
    Named(
        "recovery shows the uncommitted tail",
        bugs.recovery_shows_the_uncommitted_tail,
        stories.a_restart_shows_only_what_is_committed,
        "it shows what is not committed",
    ),
    Named(
        "relay answers from a deposed leader",
        bugs.relay_answers_from_a_deposed_leader,
        stories.a_relay_asks_the_leader_of_today,
        "passed on in vain",
    ),
    Named(
        "ticket of an old term acknowledged",
        bugs.ticket_of_an_old_term_acknowledged,
        stories.a_deposed_leader_acknowledges_nothing,
        "an acknowledged message is lost",
    ),
    Named(
        "check-quorum off",
        raft_bugs.check_quorum_off,
        by_raft(checks.QUORUM_CONTACT, ISOLATED),
        checks.QUORUM_CONTACT,
    ),
    Named(
        "lease longer than the time-out",
        raft_bugs.lease_longer_than_the_time_out,
        by_raft(checks.QUORUM_CONTACT, ISOLATED),
        checks.QUORUM_CONTACT,
    ),
    Named(
        "registration without state version",
        bugs.registration_without_state_version,
        stories.the_next_leader_is_found,
        "the name server refuses the leader",
    ),
    Named(
        "follower acks a batch with a bad CRC",
        bugs.follower_acks_a_batch_with_a_bad_crc,
        lambda _: a_damaged_leader_is_not_copied(),
        "two histories",
    ),
    Named(
        "locks forgotten",
        bugs.locks_forgotten,
        stories.a_queue_has_one_holder,
        "a holds the queue",
    ),
    Named(
        "topic deletion applied at another position",
        bugs.topic_deletion_applied_at_another_position,
        stories.deleted_topics_are_equal,
        "a member has deleted too much",
    ),
    Named(
        "snapshot tables newer than their position",
        bugs.snapshot_tables_newer_than_their_position,
        stories.changes_that_were_not_committed_are_taken_back,
        "a change was kept that was not committed",
    ),
    Named(
        "timer delivered by two leaders",
        bugs.timer_delivered_by_two_leaders,
        stories.timed_messages_are_delivered_once,
        "a timed message was delivered twice",
    ),
    Named(
        "SUSPECT node votes",
        raft_bugs.suspect_votes,
        by_raft(checks.UNFIT_SILENT, (faults.damage, faults.lossy)),
        checks.UNFIT_SILENT,
    ),
    Named(
        "duplicate connection counted twice",
        raft_bugs.duplicate_connection_counted_twice,
        by_raft(checks.DURABLE_MAJORITY, LOSSY, size=5),
        checks.DURABLE_MAJORITY,
    ),
    Named(
        "in-sync set shrunk before the group agreed",
        bugs.set_shrunk_before_the_group_agreed,
        by_raft(checks.DURABLE_MAJORITY, POWER_AND_CUTS),
        checks.DURABLE_MAJORITY,
    ),
    Named(
        "scrub repairs from the minority",
        group_bugs.repairs_old_log_from_a_minority,
        by_group,
        "two histories",
        seed=13,
    ),
]


@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_is_found(bug: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(bug.seed, bug.seed + SEEDS_MAX):
        if (found := finding_of(bug, seed)) is not None:
            assert bug.finding in found
            return
    pytest.fail(f"not found by {SEEDS_MAX} seeds")


def finding_of(bug: Named, seed: int) -> str | None:
    """Return what the checker says about the run of a seed; None if it finds nothing."""
    try:
        bug.checker(seed)
    except (AssertionError, Violation) as error:
        return str(error)
    return None


@pytest.mark.parametrize("bug", ALL, ids=lambda bug: bug.name)
def test_nothing_is_found_without_the_bug(bug: Named) -> None:
    bug.checker(bug.seed)


def test_all_are_there() -> None:
    assert len({bug.plant for bug in ALL}) == 25
