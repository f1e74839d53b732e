"""A group of three real brokers in network namespaces: cuts, kills, freezes, power cuts, damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from chaos.group import network
from chaos.group.campaign import FaultKind, run_campaign
from chaos.group.faults import DAMAGES, KILLS, PARTITIONS, POWER, freeze_leader
from chaos.volatile_disk import is_supported
from rocketpost.testing.ledger import PromiseBroken

ROUNDS_MAX = 40
BROKEN = (PromiseBroken, TimeoutError)

pytestmark = pytest.mark.timeout(3 * 3600)


@pytest.fixture(autouse=True, scope="module")
def _namespaces() -> None:
    if reason := network.why_not():
        pytest.skip(reason)


def test_partitions(tmp_path: Path, seed: int, rounds: int) -> None:
    run_campaign(tmp_path, PARTITIONS, 2 * rounds, seed=seed)


def test_kills(tmp_path: Path, seed: int, rounds: int) -> None:
    run_campaign(tmp_path, KILLS, 5 * rounds, seed=seed)


def test_frozen_leaders(tmp_path: Path, seed: int, rounds: int) -> None:
    run_campaign(tmp_path, [freeze_leader], rounds, seed=seed)


@pytest.mark.parametrize("kind", POWER, ids=lambda kind: kind.__name__)
def test_power_cuts(tmp_path: Path, seed: int, rounds: int, kind: FaultKind) -> None:
    if not is_supported(tmp_path):
        pytest.skip("files here cannot carry the attributes of a disk that forgets")
    run_campaign(tmp_path, [kind], rounds, seed=seed, is_volatile=True)


def test_damage_of_a_minority(tmp_path: Path, seed: int, rounds: int) -> None:
    run_campaign(tmp_path, DAMAGES, rounds, seed=seed)


@pytest.mark.parametrize(
    ("bug", "faults"),
    [
        ("commit_alone", PARTITIONS),
        ("vote_for_shorter_logs", PARTITIONS),
        ("acknowledge_before_flush", POWER),
        ("keep_a_damaged_log", DAMAGES),
    ],
)
def test_the_campaigns_find(
    tmp_path: Path, seed: int, bug: str, faults: Sequence[FaultKind]
) -> None:
    with pytest.raises(BROKEN):
        run_campaign(tmp_path, faults, ROUNDS_MAX, seed=seed, bug=bug, is_volatile=faults is POWER)
