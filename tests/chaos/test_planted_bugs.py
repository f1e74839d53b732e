"""The campaigns find bugs: each of these brokers has one, and none gets away with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.odd import odd_campaign
from chaos.volatile_disk import is_supported
from rocketpost.testing.ledger import PromiseBroken
from rocketpost.testing.process import ServerFailed

ROUNDS_MAX = 30

SEEN_BY_KILLS = [
    ("ack_before_commit", "ASYNC_FLUSH", "is owed|was altered|meant message"),
    ("deletion_not_saved", "ASYNC_FLUSH", "came back|half undone|meant message|can be read"),
    ("offsets_start_over", "ASYNC_FLUSH", "meant message"),
    (
        "checkpoint_runs_ahead",
        "ASYNC_FLUSH",
        "is owed|can be read|finds 0|meant message|is gone|begins at",
    ),
]
SEEN_BY_POWER_CUTS = [
    ("ack_before_fsync", "is owed|is gone|finds 0|is lost"),
    ("visible_before_durable", "is owed|a reader saw|is gone"),
    ("no_crc_check", "can be read|was altered|nobody sent|lost properties"),
    ("tables_not_synced", "is gone|is empty|was committed long ago|damaged"),
]


@pytest.mark.parametrize(("bug", "flush", "symptom"), SEEN_BY_KILLS)
async def test_kills_reveal(tmp_path: Path, seed: int, bug: str, flush: str, symptom: str) -> None:
    with (
        odd_campaign(tmp_path, seed=seed, flush=flush, bug=bug) as campaign,
        pytest.raises((PromiseBroken, ServerFailed), match=symptom),
    ):
        await campaign.run(ROUNDS_MAX)


@pytest.mark.parametrize(("bug", "symptom"), SEEN_BY_POWER_CUTS)
async def test_power_cuts_reveal(tmp_path: Path, seed: int, bug: str, symptom: str) -> None:
    if not is_supported(tmp_path):
        pytest.skip("the file system of the temporary directory has no extended attributes")
    with (
        odd_campaign(
            tmp_path,
            seed=seed,
            flush="SYNC_FLUSH",
            bug=bug,
            loses_power=True,
            sync_seconds=0.02,
            large_share=0.1,
        ) as campaign,
        pytest.raises((PromiseBroken, ServerFailed), match=symptom),
    ):
        await campaign.run(ROUNDS_MAX)


async def test_failed_writes_reveal_counters_that_stay(tmp_path: Path, seed: int) -> None:
    with (
        odd_campaign(
            tmp_path, seed=seed, flush="ASYNC_FLUSH", bug="counters_stay", full_every=40
        ) as campaign,
        pytest.raises(
            (PromiseBroken, ServerFailed),
            match=r"holes|can be read|is owed|meant message|begins at",
        ),
    ):
        await campaign.run(ROUNDS_MAX)
