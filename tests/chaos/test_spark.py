"""Exactly once through Spark, while all is killed; see ``rocketpost.testing.spark_campaign``."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.testing.spark_campaign import SparkCampaign

pytestmark = pytest.mark.long


async def test_every_message_once(
    tmp_path: Path, seed: int, rounds: int, spark_messages: int
) -> None:
    with SparkCampaign(
        tmp_path, seed=seed, messages=spark_messages, delivery="exactlyOnce"
    ) as campaign:
        report = await campaign.run(max(1, rounds // 2))
        print(report)
    assert (report.lost, report.repeated, report.disordered) == (0, 0, 0)


async def test_the_campaign_finds_repeats(tmp_path: Path, seed: int, rounds: int) -> None:
    """Without numbers messages are stored twice: a campaign that finds none proves nothing."""
    with SparkCampaign(tmp_path, seed=seed, messages=8000, delivery="atLeastOnce") as campaign:
        report = await campaign.run(max(4, rounds // 10))
        print(report)
    assert report.lost == 0
    assert report.repeated > 0
