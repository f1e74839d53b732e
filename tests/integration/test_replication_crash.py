"""A few disturbances of a real master and slave, and a lost disk. ``tests/chaos`` has hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.testing.replicas.campaign import ReplicaCampaign

pytestmark = pytest.mark.slow

SEED = 20261


async def test_acknowledged_messages_outlive_the_disk_of_the_master(tmp_path: Path) -> None:
    with ReplicaCampaign(tmp_path, seed=SEED, promote_every=2) as campaign:
        report = await campaign.run(2)
        assert report.promotions == 1
        assert report.counts.acknowledged > 50
