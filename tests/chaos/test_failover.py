"""The time in which a group takes messages again after its leader was killed."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from integration.up_group import live_through_kills, up_group

MEDIAN_SECONDS_MAX = 1.5
P99_SECONDS_MAX = 3.0
KILLS_OF_A_GROUP = 5
"""Whoever is killed more often is restarted later, after half a minute in the end."""

pytestmark = pytest.mark.timeout(3 * 3600)


async def test_kills_of_leaders_cost_a_second_and_no_message(tmp_path: Path, rounds: int) -> None:
    times: list[float] = []
    while len(times) < rounds:
        async with up_group(tmp_path / str(len(times))) as group:
            kills = min(KILLS_OF_A_GROUP, rounds - len(times))
            times += await live_through_kills(group, kills)
    times.sort()
    median, p99 = statistics.median(times), times[int(0.99 * (len(times) - 1))]
    print(f"{len(times)} kills: median={median:.2f} p99={p99:.2f} max={times[-1]:.2f}")
    assert median <= MEDIAN_SECONDS_MAX
    assert p99 <= P99_SECONDS_MAX
