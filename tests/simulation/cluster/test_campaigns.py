"""Campaigns on simulated clusters: load of every kind and faults, from a few seeds."""

from __future__ import annotations

import pytest

from rocketpost.testing.workloads import EVERY_KIND, GROUP_KINDS, Workload

from .campaigns import ROUNDS, CalmCampaign, kinds_of, run_campaign

pytestmark = pytest.mark.slow


LONG = pytest.mark.long


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=LONG), pytest.param(2, marks=LONG)])
@pytest.mark.parametrize("nodes", [1, 3])
def test_plain_messages(number: int, nodes: int) -> None:
    campaign, _ = run_campaign(number, nodes)
    assert campaign.counts.acknowledged > 100
    assert sum(campaign.faults.values()) == ROUNDS


@LONG
def test_a_campaign_is_repeated_to_the_last_byte() -> None:
    assert run_campaign(5, 3, rounds=2)[1] == run_campaign(5, 3, rounds=2)[1]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind(kind: type[Workload]) -> None:
    campaign, _ = run_campaign(1, 1, [kind], rounds=2)
    assert campaign.workloads[0].acknowledged


@pytest.mark.parametrize("kind", GROUP_KINDS)
def test_every_kind_in_a_group(kind: type[Workload]) -> None:
    campaign = CalmCampaign(1, [kind])
    campaign.run(rounds=2)
    assert campaign.acknowledged[kind.topic]


def test_seeds_have_every_kind() -> None:
    assert {kind for seed in range(20) for kind in kinds_of(seed)} == set(GROUP_KINDS)
