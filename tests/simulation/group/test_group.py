"""Groups of three and five on disks that lose power and fail: nothing acknowledged is lost."""

from __future__ import annotations

import random

import pytest

from .group import Group


def live(
    rng: random.Random,
    *,
    count: int = 3,
    steps: int = 1500,
    is_harmed: bool,
    is_changing: bool = False,
) -> Group:
    group = Group(rng, count=count, is_harmed=is_harmed, is_changing=is_changing)
    group.run(steps)
    group.heal()
    group.check_end()
    return group


def test_three_members(seed: int, rng: random.Random) -> None:
    live(rng, is_harmed=False)


def test_five_members(seed: int, rng: random.Random) -> None:
    live(rng, count=5, is_harmed=False)


def test_three_members_of_which_one_is_damaged(seed: int, rng: random.Random) -> None:
    live(rng, is_harmed=True)


def test_members_that_come_and_go(seed: int, rng: random.Random) -> None:
    live(rng, is_harmed=False, is_changing=True)


def test_members_that_come_and_go_and_are_damaged(seed: int, rng: random.Random) -> None:
    live(rng, is_harmed=True, is_changing=True)


@pytest.mark.long
def test_long_lives(seed: int, rng: random.Random) -> None:
    live(rng, steps=15_000, is_harmed=True)


def test_the_same_seed_leads_to_the_same_life() -> None:
    one, two = (live(random.Random(7), is_harmed=True) for _ in range(2))
    assert one.history == two.history
    assert one.leaders == two.leaders


def test_schedules_meet_what_they_are_for() -> None:
    """Something is acknowledged, leaders change, and disks fail."""
    groups = [live(random.Random(seed), is_harmed=True) for seed in range(10)]
    assert sum(len(group.acknowledged) for group in groups) > 200
    assert sum(len(group.leaders) for group in groups) > 15
    met = {what for group in groups for what in group.counts}
    assert {"power cuts", "power cuts in a call", "kills", "failures", "damages"} <= met
