"""Exactly once through Spark, while all is killed; see ``rocketpost.testing.spark_campaign``.

The whole proof takes about half an hour::

    pytest tests/chaos/test_spark.py -m "" -s --spark-messages 100000 --spark-kills 60
"""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.testing.spark_campaign import SparkCampaign

pytestmark = pytest.mark.long

CAMPAIGNS_MAX = 4


async def test_every_message_once(
    tmp_path: Path, seed: int, spark_kills: int, spark_messages: int
) -> None:
    with SparkCampaign(
        tmp_path, seed=seed, messages=spark_messages, delivery="exactlyOnce"
    ) as campaign:
        report = await campaign.run(spark_kills)
        print(report)
    assert (report.lost, report.repeated, report.disordered) == (0, 0, 0)
    assert report.kills.total() == spark_kills
    assert min(report.hits["copy"], report.hits["lake"]) > 0


async def test_the_campaign_finds_repeats(
    tmp_path: Path, seed: int, spark_kills: int, spark_messages: int
) -> None:
    """Without numbers messages are stored twice: a campaign that finds none proves nothing."""
    # As many messages for each kill as above, but not so many kills: they may all miss by luck.
    kills = min(spark_kills, 12)
    messages = spark_messages * kills // spark_kills
    for number in range(CAMPAIGNS_MAX):
        directory = tmp_path / str(number)
        directory.mkdir()
        with SparkCampaign(
            directory, seed=seed + number, messages=messages, delivery="atLeastOnce"
        ) as campaign:
            report = await campaign.run(kills)
            print(report)
        assert report.lost == 0
        if report.repeated:
            return
    pytest.fail(f"nothing was stored twice in {CAMPAIGNS_MAX} campaigns")
