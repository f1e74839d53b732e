"""A master and its slave that are killed and frozen hundreds of times, and lost disks."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.testing.ledger import PromiseBroken
from rocketpost.testing.replicas.campaign import ReplicaCampaign
from rocketpost.testing.secure.certificates import CertificateFolder

pytestmark = pytest.mark.timeout(3 * 3600)

ODD = Path(__file__).parent / "odd_replica.py"
ROUNDS_MAX = 30

BUGS = [
    ("count_what_is_sent", "is owed|is lost"),
    ("report_before_append", "is owed|is lost|a stop under load"),
    ("last_segment_only", "can be read|is lost|has holes"),
]


async def test_kills_freezes_and_lost_disks(tmp_path: Path, seed: int, rounds: int) -> None:
    """SYNC_MASTER with SYNC_FLUSH: what was acknowledged outlives the master's disk."""
    with ReplicaCampaign(tmp_path, seed=seed) as campaign:
        try:
            report = await campaign.run(3 * rounds)
        finally:
            print(campaign.report)
        assert report.promotions == 3 * rounds // 10
        assert report.counts.acknowledged > 3 * rounds


async def test_kills_freezes_and_lost_disks_with_tls(
    tmp_path: Path, seed: int, rounds: int
) -> None:
    """The same, with an encrypted stream between master and slave."""
    folder = CertificateFolder(tmp_path / "certificates")
    keys = folder.issue()
    tls = {
        "tls.server.mode": "permissive",  # the load of this test is sent in plain
        "tls.enable": "true",
        "tls.server.certPath": keys.certificate,
        "tls.server.keyPath": keys.key,
        "tls.client.trustCertPath": folder.root,
    }
    with ReplicaCampaign(tmp_path, seed=seed, settings=tls, name_server=tls) as campaign:
        try:
            report = await campaign.run(rounds // 3)
        finally:
            print(campaign.report)
        assert report.promotions == rounds // 30
        assert report.counts.acknowledged > rounds // 3


@pytest.mark.parametrize(("bug", "symptom"), BUGS)
async def test_lost_disks_reveal(tmp_path: Path, seed: int, bug: str, symptom: str) -> None:
    program = [str(ODD), bug]
    with (
        ReplicaCampaign(tmp_path, seed=seed, promote_every=2, program=program) as campaign,
        pytest.raises(PromiseBroken, match=symptom),
    ):
        await campaign.run(ROUNDS_MAX)
