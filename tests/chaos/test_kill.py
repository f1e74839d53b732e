"""Brokers that are killed hundreds of times under load; see ``rocketpost.testing.campaign``."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.odd import odd_campaign
from chaos.volatile_disk import is_supported
from rocketpost.testing.campaign import Campaign


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_kill(tmp_path: Path, seed: int, rounds: int, flush: str) -> None:
    with Campaign(tmp_path, seed=seed, settings={"flushDiskType": flush}) as campaign:
        report = await campaign.run(rounds)
        print(report)
        assert report.kills >= rounds * 3 // 4
        assert report.counts.acknowledged > rounds
        assert not report.refusals.keys() - {"14: the broker is shutting down"}


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_stop_under_load(tmp_path: Path, seed: int, rounds: int, flush: str) -> None:
    """SIGTERM under load, in half of the rounds with SIGKILL right behind."""
    settings = {"flushDiskType": flush}
    with Campaign(tmp_path, seed=seed, settings=settings, stop_share=1.0) as campaign:
        report = await campaign.run(max(12, rounds // 5))  # so that both ways of dying occur
        print(report)
        assert report.stops
        assert report.kills_while_stopping


async def test_power_cut(tmp_path: Path, seed: int, rounds: int) -> None:
    """SYNC_FLUSH promises that what is acknowledged, or was read, is on the disk itself."""
    if not is_supported(tmp_path):
        pytest.skip("the file system of the temporary directory has no extended attributes")
    campaign = odd_campaign(
        tmp_path, seed=seed, flush="SYNC_FLUSH", loses_power=True, sync_seconds=0.005
    )
    with campaign:
        print(await campaign.run(max(1, rounds // 2)))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_kill_while_writes_fail(tmp_path: Path, seed: int, rounds: int, flush: str) -> None:
    """Now and then a write finds the disk full, half done: refused, and nothing else changes."""
    campaign = odd_campaign(tmp_path, seed=seed, flush=flush, full_every=40)
    with campaign:
        report = await campaign.run(max(1, rounds // 5))
        print(report)
        assert any("No space left" in reason for reason in report.refusals)
