"""Groups whose members die, freeze and join; see ``rocketpost.testing.consumer_campaign``."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.testing.consumer_campaign import REAL_BROKER, SMALL_WINDOW, ConsumerCampaign
from rocketpost.testing.ledger import PromiseBroken

ODD = str(Path(__file__).with_name("odd_consumer.py"))
ROUNDS_MAX = 12

KINDS = pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
BUGS = [
    ("commits_what_it_fetched", False, "were not handled"),
    ("trusts_its_memory", False, "were in flight"),
    ("goes_back", False, "were in flight"),
    ("needs_no_lock", True, "while|was the last"),
    ("unlocks_too_early", True, "while"),
    ("hands_out_backwards", True, "while|was begun after|was the last"),
]


@KINDS
async def test_members_die_freeze_and_join(
    tmp_path: Path, seed: int, rounds: int, orderly: bool
) -> None:
    with ConsumerCampaign(tmp_path, seed=seed, orderly=orderly) as campaign:
        report = await campaign.run(max(1, rounds // 4))
    print(report)
    assert report.acknowledged > 100 * report.rounds
    assert report.kills
    assert report.changes > 3 * report.rounds


@KINDS
async def test_real_minutes(tmp_path: Path, seed: int, rounds: int, orderly: bool) -> None:
    """Nothing is shortened: a member is given up after two minutes, its lock after one."""
    campaign = ConsumerCampaign(
        tmp_path, seed=seed, orderly=orderly, broker=REAL_BROKER, consumer=SMALL_WINDOW
    )
    with campaign:
        report = await campaign.run(max(1, rounds // 50))
    print(report)
    assert report.freezes == report.rounds


@pytest.mark.parametrize(("bug", "orderly", "symptom"), BUGS)
async def test_planted_bugs_show(
    tmp_path: Path, seed: int, bug: str, orderly: bool, symptom: str
) -> None:
    program = [ODD, "--bug", bug]
    campaign = ConsumerCampaign(tmp_path, seed=seed, orderly=orderly, program=program)
    with campaign, pytest.raises(PromiseBroken, match=symptom):
        await campaign.run(ROUNDS_MAX)
