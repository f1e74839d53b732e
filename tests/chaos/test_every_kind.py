"""Every message kind at once, at a broker that is killed again and again.

Plain, batched and large sends, commits, topics that come and go, ordered, delayed, timed, recalled,
transactional, popped, retried and numbered messages share one log of small files, so that it rolls
all the time. Each kind is judged from outside by what its users were promised.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.odd import PROGRAM
from rocketpost.testing.campaign import Campaign
from rocketpost.testing.cluster import Cluster
from rocketpost.testing.ledger import PromiseBroken
from rocketpost.testing.workloads import (
    EVERY_KIND,
    NumberedWorkload,
    OrderedWorkload,
    PoppedWorkload,
    RetriedWorkload,
    TimedWorkload,
    TransactionWorkload,
    Workload,
    base,
)
from rocketpost.testing.workloads.timed import LEVELS_SECONDS

pytestmark = pytest.mark.long

SETTINGS = {
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in LEVELS_SECONDS),
    "recallMessageEnable": "true",
    "mappedFileSizeTimerLog": "65536",
    "timerPrecisionMs": "100",
    "timerRollWindowSlot": "20",
    "timerFlushIntervalMs": "150",
    "transactionTimeOut": "200",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "25",
    "transactionOpBatchInterval": "300",
    "flushProducerStateInterval": "60",
}
LIFE_SECONDS_MAX = 2.0
ROUNDS_WITH_BUG = 12
SETTLE_SECONDS_WITH_BUG = 15.0


def campaign_of(
    kinds: Sequence[type[Workload]],
    directory: Path,
    cluster: Cluster,
    *,
    seed: int,
    flush: str,
    bug: str = "",
) -> Campaign:
    return Campaign(
        directory / "broker",
        seed=seed,
        settings={**SETTINGS, "namesrvAddr": cluster.addresses, "flushDiskType": flush},
        workloads=kinds,
        life_seconds_max=LIFE_SECONDS_MAX,
        program=[PROGRAM, "--bug", bug, "--"] if bug else None,
    )


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_every_kind(tmp_path: Path, seed: int, rounds: int, flush: str) -> None:
    with (
        Cluster(tmp_path, brokers=0) as cluster,
        campaign_of(EVERY_KIND, tmp_path, cluster, seed=seed, flush=flush) as campaign,
    ):
        try:
            report = await campaign.run(rounds)
        finally:
            print(campaign.report, *campaign.workloads, sep="\n")
        assert report.kills >= rounds * 3 // 4
        assert all(workload.acknowledged for workload in campaign.workloads)


BUGS = [
    (PoppedWorkload, "pop_acks_ignored", "came again after their acknowledgement"),
    (RetriedWorkload, "send_backs_dropped", "were never handled|are no dead letters"),
    (TimedWorkload, "delays_cut_short", "came early"),
    (TransactionWorkload, "rollbacks_delivered", "were delivered without a commit"),
    (NumberedWorkload, "duplicates_stored", "are stored twice"),
    (OrderedWorkload, "pulls_skip", "saw"),
]


@pytest.mark.parametrize(("kind", "bug", "symptom"), BUGS)
async def test_bugs_of_a_kind_are_found(
    tmp_path: Path,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Workload],
    bug: str,
    symptom: str,
) -> None:
    monkeypatch.setattr(base, "SETTLE_SECONDS", SETTLE_SECONDS_WITH_BUG)
    with (
        Cluster(tmp_path, brokers=0) as cluster,
        campaign_of([kind], tmp_path, cluster, seed=seed, flush="ASYNC_FLUSH", bug=bug) as campaign,
        pytest.raises(PromiseBroken, match=symptom),
    ):
        await campaign.run(ROUNDS_WITH_BUG)
