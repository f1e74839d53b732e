"""10,000 lives of groups on simulated disks, and 1,000 campaigns of whole simulated clusters.

They are those of ``tests/simulation/group`` and ``tests/simulation/cluster``, from other seeds in
every run. A failure names the seed.
"""

from __future__ import annotations

import logging
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # for the processes, too

from chaos.seeds import chunks_of
from rocketpost.testing.workloads import GROUP_KINDS
from simulation.cluster.campaigns import CalmCampaign
from simulation.group.test_group import live

LIVES: list[dict[str, Any]] = [
    {"is_harmed": True},
    {"is_harmed": False},
    {"is_harmed": True, "is_changing": True},
    {"is_harmed": False, "is_changing": True},
    {"is_harmed": False, "count": 5},
]
"""What seeds have in turn: damage of a minority, members that change, and five members."""

REPEAT_EVERY = 20
"""One cluster in so many is run twice, and all of its files must be equal."""

SPEED_MIN = 50.0
"""Least seconds of virtual time for a second of CPU."""

pytestmark = pytest.mark.timeout(6 * 3600)


@dataclass(slots=True)
class Chunk:
    """What a process reports about some seeds."""

    failures: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, other: Chunk) -> None:
        self.failures += other.failures
        self.counts += other.counts
        self.virtual_seconds += other.virtual_seconds
        self.cpu_seconds += other.cpu_seconds


def run_lives(first: int, count: int) -> Chunk:
    """Run groups on simulated disks."""
    logging.disable(logging.CRITICAL)
    found = Chunk()
    began = time.process_time()
    for seed in range(first, first + count):
        kind = LIVES[seed % len(LIVES)]
        try:
            group = live(random.Random(seed), **kind)
        except Exception:
            found.failures.append(f"seed {seed}, {kind}:\n{traceback.format_exc()}")
            continue
        found.counts.update(group.counts)
        found.counts["acknowledged"] += len(group.acknowledged)
        found.counts["leaders"] += len(group.leaders)
    found.cpu_seconds = time.process_time() - began
    return found


def run_clusters(first: int, count: int) -> Chunk:
    """Run campaigns of simulated clusters."""
    logging.disable(logging.CRITICAL)
    found = Chunk()
    for seed in range(first, first + count):
        prints = set()
        for _ in range(2 if seed % REPEAT_EVERY == 0 else 1):
            campaign = CalmCampaign(seed)
            began = time.process_time()
            try:
                prints.add(campaign.run())
            except Exception:
                found.failures.append(f"seed {seed}:\n{traceback.format_exc()}")
            found.cpu_seconds += time.process_time() - began
            found.virtual_seconds += campaign.virtual_seconds
            found.counts.update(campaign.acknowledged)
        if len(prints) > 1:
            found.failures.append(f"seed {seed}: files differ: {prints}")
    return found


def report(chunks: Any) -> Chunk:
    """Return the sum of all chunks, and print it; failures are printed as they are found."""
    total = Chunk()
    for chunk in chunks:
        for failure in chunk.failures:
            print(failure, flush=True)
        total.add(chunk)
    speed = total.virtual_seconds / total.cpu_seconds
    print(f"cpu={total.cpu_seconds:.0f} s, {speed:.0f} x real time, {dict(total.counts)}")
    return total


def test_groups_on_simulated_disks(seed: int, group_seeds: int, processes: int) -> None:
    first = seed * 1_000_000
    total = report(chunks_of(run_lives, first, group_seeds, chunk=50, processes=processes))
    assert not total.failures, f"{len(total.failures)} of {group_seeds}: {total.failures[0]}"


def test_simulated_clusters(seed: int, cluster_seeds: int, processes: int) -> None:
    first = seed * 1_000_000
    total = report(chunks_of(run_clusters, first, cluster_seeds, chunk=10, processes=processes))
    assert not total.failures, f"{len(total.failures)} of {cluster_seeds}: {total.failures[0]}"
    assert {kind.topic for kind in GROUP_KINDS} <= set(total.counts)
    assert total.virtual_seconds / total.cpu_seconds >= SPEED_MIN
