"""Campaigns on simulated clusters: load of every kind and faults, from a few seeds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rocketpost.testing import SimulatedCluster
from rocketpost.testing.sim.campaign import SETTINGS, SimulatedCampaign
from rocketpost.testing.workloads import EVERY_KIND, Workload

pytestmark = pytest.mark.slow

ROUNDS = 4


def run_campaign(
    seed: int, nodes: int, kinds: Sequence[type[Workload]] = (), *, rounds: int = ROUNDS
) -> tuple[SimulatedCampaign, str]:
    """Run a campaign; return it, and the fingerprint of all files afterwards."""
    with SimulatedCluster(nodes=nodes, seed=seed, settings=SETTINGS) as cluster:
        campaign = SimulatedCampaign(cluster, kinds)
        cluster.run(campaign.run(rounds))
        return campaign, cluster.fingerprint()


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("nodes", [1, 3])
def test_plain_messages(number: int, nodes: int) -> None:
    campaign, _ = run_campaign(number, nodes)
    assert campaign.counts.acknowledged > 100
    assert sum(campaign.faults.values()) == ROUNDS


def test_a_campaign_is_repeated_to_the_last_byte() -> None:
    assert run_campaign(5, 3, rounds=2)[1] == run_campaign(5, 3, rounds=2)[1]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind(kind: type[Workload]) -> None:
    campaign, _ = run_campaign(1, 1, [kind], rounds=2)
    assert campaign.workloads[0].acknowledged
