"""Whatever befalls a group, it keeps its promises, and works again once it is healed.

``make test`` runs some hundreds of schedules, ``make chaos`` 100,000 of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import faults
from .bugs import ack_before_fsync
from .checks import Violation
from .group import Group
from .schedules import returning_node, run_schedule

SCHEDULES = 8
"""Schedules per seed of the command line, so that a test takes a fraction of a second."""


def seeds_of(seed: int, request: pytest.FixtureRequest) -> range:
    """Return the schedules of a test; only one if it is run again with ``--seed``."""
    is_again = request.config.getoption("--seed") is not None
    return range(seed, seed + 1) if is_again else range(seed * SCHEDULES, (seed + 1) * SCHEDULES)


def test_random_faults(seed: int, request: pytest.FixtureRequest) -> None:
    for each in seeds_of(seed, request):
        run_schedule(each)


def test_a_returning_node_deposes_nobody(seed: int) -> None:
    run_schedule(seed, story=returning_node)


def test_a_failed_schedule_shows_how_to_run_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ack_before_fsync(monkeypatch)
    with pytest.raises(Violation) as caught:
        run_schedule(5, faults=[faults.slow_disk])
    notes = "\n".join(caught.value.__notes__)
    assert "test_schedules.py --seed=5" in notes
    assert "AppendReply" in notes


DIGEST = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
from simulation.raft.group import Group
digest = hashlib.sha256()
for seed in range(4):
    group = Group(seed, traced=True)
    group.run()
    digest.update("\\n".join(group.trace).encode())
print(digest.hexdigest())
"""


@pytest.mark.slow
def test_a_seed_decides_everything() -> None:
    """Two processes do the same, although their sets are in different orders."""
    tests = Path(__file__).resolve().parents[2]
    digests = {
        subprocess.run(
            [sys.executable, "-c", DIGEST, str(tests)],
            env={**os.environ, "PYTHONHASHSEED": order},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for order in ("1", "2")
    }
    assert len(digests) == 1


def test_schedules_have_everything_in_them() -> None:
    """The schedules of ``make test`` elect, commit, cut, stop, damage and change members."""
    groups = []
    for seed in range(40):
        groups.append(Group(seed))
        groups[-1].run()
    assert {fault for group in groups for fault in group.faults} == set(faults.ALL)
    assert sum(len(group.checks.leaders) for group in groups) > 100
    assert sum(len(group.checks.chain) for group in groups) > 4000
    assert sum(group.records - len(group.checks.chain) for group in groups) > 50
    assert any(server.log.first > 0 for group in groups for server in group.servers.values())
    assert any(server.log.changes for group in groups for server in group.servers.values())


@pytest.mark.parametrize(
    "found",
    [
        200_019_089,  # a node deleted bytes that were not durable, and lost the rest with its power
        200_020_156,  # a node took over a log, and did not know that its beginning is committed
    ],
)
def test_schedules_that_have_failed(found: int) -> None:
    """Both were faults of the simulated nodes."""
    run_schedule(found)
