"""Campaigns on simulated clusters, each from one seed: faults, kinds of messages, and checks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from rocketpost.testing import SimulatedCluster
from rocketpost.testing.sim.campaign import SETTINGS, SimulatedCampaign
from rocketpost.testing.workloads import GROUP_KINDS, Workload

ROUNDS: Final = 4
_KINDS: Final = 3
"""Kinds of messages in one campaign, besides plain ones."""


def run_campaign(
    seed: int, nodes: int, kinds: Sequence[type[Workload]] = (), *, rounds: int = ROUNDS
) -> tuple[SimulatedCampaign, str]:
    """Run a campaign under load; return it, and the fingerprint of all files afterwards."""
    with SimulatedCluster(nodes=nodes, seed=seed, settings=SETTINGS) as cluster:
        campaign = SimulatedCampaign(cluster, kinds)
        cluster.run(campaign.run(rounds))
        return campaign, cluster.fingerprint()


def kinds_of(seed: int) -> list[type[Workload]]:
    """Return the kinds of messages of a campaign with calm load."""
    return random.Random(f"kinds {seed}").sample(GROUP_KINDS, _KINDS)


class CalmCampaign:
    """A campaign of a group of three with some kinds of messages, and little load.

    Most of its virtual time passes without work, so that many seeds can be run.

    Args:
        seed: Everything follows from it.
        kinds: The kinds of messages; those of the seed if None.
    """

    def __init__(self, seed: int, kinds: Sequence[type[Workload]] | None = None) -> None:
        self.virtual_seconds = 0.0
        self.acknowledged: dict[str, int] = {}
        """Number of acknowledged messages by kind."""
        self._seed = seed
        self._kinds = kinds_of(seed) if kinds is None else kinds

    def run(self, *, rounds: int = ROUNDS) -> str:
        """Run it; return the fingerprint of all files.

        Raises:
            PromiseBroken: Promises were broken.
        """
        with SimulatedCluster(nodes=3, seed=self._seed, settings=SETTINGS) as cluster:
            begin = cluster.now
            campaign = SimulatedCampaign(
                cluster, self._kinds, rest_seconds=8.0, kind_rest_seconds=5.0, calm_seconds=20.0
            )
            try:
                cluster.run(campaign.run(rounds))
            finally:
                self.virtual_seconds = cluster.now - begin
            self.acknowledged = {
                "Plain": campaign.counts.acknowledged,
                **{each.topic: len(each.acknowledged) for each in campaign.workloads},
            }
            return cluster.fingerprint()
