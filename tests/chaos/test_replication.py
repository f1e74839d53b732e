"""A master and its slave that are killed and frozen hundreds of times, and lost disks."""

from __future__ import annotations

from pathlib import Path

from rocketpost.testing.replicas.campaign import ReplicaCampaign


async def test_kills_freezes_and_lost_disks(tmp_path: Path, seed: int, rounds: int) -> None:
    """SYNC_MASTER with SYNC_FLUSH: what was acknowledged outlives the master's disk."""
    with ReplicaCampaign(tmp_path, seed=seed) as campaign:
        try:
            report = await campaign.run(3 * rounds)
        finally:
            print(campaign.report)
        assert report.promotions == 3 * rounds // 10
        assert report.counts.acknowledged > 3 * rounds
