"""Kinds of schedules, and the report of one that fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence

from .checks import NO_DISRUPTION
from .faults import Fault
from .group import Group

TRACE_LINES = 120
"""Number of lines of a failed schedule's trace that are shown, counted from its end."""

COMMAND = "pytest tests/simulation/raft/test_schedules.py"

Story = Callable[[Group], None]


def random_faults(group: Group) -> None:
    """Live through the group's kinds of faults, and heal."""
    group.run()


def returning_node(group: Group) -> None:
    """Cut off a follower of a healthy group for a while; its return must not depose the leader."""
    group.faults = []
    group.live(3000)
    group.expect(group.has_leader, 3000, "no leader is elected")
    leader = group.leader()
    if leader is None:
        return
    term = leader.term
    group.is_quiet = group.rng.random() < 0.5
    node = group.rng.choice([name for name in group.servers if name != leader.name])
    if group.rng.random() < 0.5:
        group.network.isolate(node, group.servers)
    else:
        group.network.blocked |= {(name, node) for name in group.servers}
    group.note("network", "blocks %s", sorted(group.network.blocked))
    pause(group, 2000 + int(group.rng.random() * 2000))
    group.network.heal()
    group.note("network", "is whole again")
    pause(group, 3000)
    if max(server.term for server in group.servers.values()) != term:
        group.checks.fail(NO_DISRUPTION, f"{node} has ended term {term} of {leader.name}")
    group.heal()


def pause(group: Group, span_ms: int) -> None:
    group.scheduler.run_until(group.scheduler.now_ms + span_ms)


def run_schedule(
    seed: int,
    *,
    story: Story = random_faults,
    faults: Sequence[Fault] | None = None,
    size: int = 0,
    only: Iterable[str] = (),
) -> None:
    """Run the schedule of a seed.

    Raises:
        Violation: A check failed. Its notes, like those of any other error, have the command to run
            it again, and the last part of the trace, from a second run of the same seed.
    """
    try:
        story(Group(seed, faults=faults, size=size, only=only))
    except Exception as error:
        traced = Group(seed, faults=faults, size=size, only=only, traced=True)
        with contextlib.suppress(Exception):
            story(traced)
        assert traced.trace is not None
        error.add_note(f"kinds of faults: {[fault.__name__ for fault in traced.faults]}")
        error.add_note("\n".join(traced.trace[-TRACE_LINES:]))
        error.add_note(f"run again with: {COMMAND} --seed={seed}")
        raise
