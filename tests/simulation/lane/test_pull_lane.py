"""The pull lane changes nothing but the cost: same answers, same offsets, same counters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.pull.known_pulls import KnownPulls
from rocketpost.broker.stats import BrokerStats

from .pull_rig import PullRig
from .pull_traffic import pull_steps
from .rig import MODES, OFF, PEERS
from .test_send_lane import compare
from .traffic import Step

FRAMES = 300


async def run(root: Path, mode: str, steps: list[Step]) -> tuple[dict[str, Any], int]:
    """Let all steps happen to a rig of one mode.

    Returns:
        The outcome, and the number of pulls that the lane answered.
    """
    rig = PullRig(root / mode, mode)
    for step in steps:
        step.act(rig)
        if step.name == "turn":
            await rig.turn()
        elif step.name == "settle":
            await rig.settle()
    await rig.settle()
    rig.close()
    await rig.turn()
    return rig.outcome(), rig.answered


@pytest.mark.parametrize("number", range(6))
def test_answers_offsets_and_counters_are_the_same(tmp_path: Path, number: int) -> None:
    steps = pull_steps(number, FRAMES, len(PEERS))
    expected, _ = asyncio.run(run(tmp_path, OFF, steps))
    for mode in MODES:
        if mode != OFF:
            found, answered = asyncio.run(run(tmp_path, mode, steps))
            compare(expected, found, mode)
            assert answered


# Mistakes that the comparison must find; else it proves nothing.


@contextmanager
def changes_of_topics_are_missed() -> Iterator[None]:
    real = KnownPulls.answer

    def answer(self: Any, shape: bytes, lane: Any) -> bytes | None:
        known = self._known.get(shape)
        if known is not None and known.topic is not None:
            known.topic = self._topics.find(known.topic_name)
        return real(self, shape, lane)

    with patch.object(KnownPulls, "answer", answer):
        yield


@contextmanager
def changes_of_groups_are_missed() -> Iterator[None]:
    real = KnownPulls.answer

    def answer(self: Any, shape: bytes, lane: Any) -> bytes | None:
        known = self._known.get(shape)
        if known is not None and known.topic is not None:
            known.group = self._groups.find(known.group_name)
        return real(self, shape, lane)

    with patch.object(KnownPulls, "answer", answer):
        yield


@contextmanager
def changes_of_subscriptions_are_missed() -> Iterator[None]:
    with patch.object(KnownPulls, "_is_subscribed", lambda self, known: True):
        yield


@contextmanager
def changes_of_settings_are_missed() -> Iterator[None]:
    with patch.object(KnownPulls, "forget", lambda self: None):
        yield


@contextmanager
def resets_are_missed() -> Iterator[None]:
    real = KnownPulls.answer

    def answer(self: Any, shape: bytes, lane: Any) -> bytes | None:
        with patch.object(self._offsets, "resets", {}):
            return real(self, shape, lane)

    with patch.object(KnownPulls, "answer", answer):
        yield


@contextmanager
def answers_are_not_counted() -> Iterator[None]:
    real = KnownPulls._count_calls

    def count_calls(self: Any) -> None:
        with patch.object(BrokerStats, "count_get_of", lambda self, *given: None):
            real(self)

    with patch.object(KnownPulls, "_count_calls", count_calls):
        yield


@contextmanager
def commits_are_lost() -> Iterator[None]:
    real = KnownPulls.answer

    def answer(self: Any, shape: bytes, lane: Any) -> bytes | None:
        with patch.object(OffsetTable, "commit_of", lambda self, *given: True):
            return real(self, shape, lane)

    with patch.object(KnownPulls, "answer", answer):
        yield


@pytest.mark.parametrize(
    "bug",
    [
        changes_of_topics_are_missed,
        changes_of_groups_are_missed,
        changes_of_subscriptions_are_missed,
        changes_of_settings_are_missed,
        resets_are_missed,
        answers_are_not_counted,
        commits_are_lost,
    ],
)
def test_a_planted_bug_is_found(tmp_path: Path, bug: Any) -> None:
    mode = MODES[-1]
    for seed in range(30):
        steps = pull_steps(seed, FRAMES, len(PEERS))
        root = tmp_path / str(seed)
        expected, _ = asyncio.run(run(root, OFF, steps))
        try:
            with bug():
                compare(expected, asyncio.run(run(root, mode, steps))[0], mode)
        except AssertionError:
            return
    pytest.fail("the bug was not found")
