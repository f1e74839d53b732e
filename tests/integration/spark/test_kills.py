"""A few kills under Spark, of every kind; ``tests/chaos`` has many."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.testing.spark_campaign import SparkCampaign

pytestmark = pytest.mark.long

SEED = 20264


async def test_every_message_is_copied_and_archived_once(tmp_path: Path) -> None:
    with SparkCampaign(tmp_path, seed=SEED, messages=4000, delivery="exactlyOnce") as campaign:
        report = await campaign.run(6)
        print(report)
    assert report.kills.total() == 6
    assert (report.lost, report.repeated, report.disordered) == (0, 0, 0)
