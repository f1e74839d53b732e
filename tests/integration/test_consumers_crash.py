"""Consumers that are killed, frozen and joined by others; ``tests/chaos`` has many more rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.testing.consumer_campaign import ConsumerCampaign

pytestmark = pytest.mark.slow

SEED = 20263


@pytest.mark.parametrize(
    "orderly",
    [False, pytest.param(True, marks=pytest.mark.long)],
    ids=["concurrent", "orderly"],
)
async def test_acknowledged_messages_are_handled_whichever_process_dies(
    tmp_path: Path, orderly: bool
) -> None:
    with ConsumerCampaign(tmp_path, seed=SEED, orderly=orderly) as campaign:
        report = await campaign.run(1)
    assert report.kills + report.stops == report.freezes == 1
    assert report.acknowledged > 100
    assert report.changes > 0
