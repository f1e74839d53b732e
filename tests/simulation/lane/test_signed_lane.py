"""With access control on, the lanes change nothing but the cost.

Requests are signed rightly, wrongly or not at all, by users who may, may not or may no longer send
them; users and rules change in between. Replies, files, offsets, counters and lines of the audit
log must be the same with and without lanes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rocketpost.access.info import UserInfo
from rocketpost.server.access.gate import Gate
from rocketpost.server.access.logins import Logins
from rocketpost.server.settings.access import AccessConfig
from rocketpost.server.writer.send_lane import SendLane

from .pull_rig import PullRig
from .pull_traffic import pull_steps
from .rig import MODES, OFF, PEERS, Rig
from .signed import Signatures, SignedTraffic, access_outcome, make_access, signers_of
from .test_send_lane import compare
from .traffic import Step, steps_of

PULLS = 250


async def _happen(rig: Any, steps: list[Step]) -> dict[str, Any]:
    for step in steps:
        step.act(rig)
        if step.name in ("turn", "settle"):
            await (rig.turn() if step.name == "turn" else rig.settle())
    await rig.settle()
    rig.close()
    await rig.turn()
    outcome: dict[str, Any] = rig.outcome() | access_outcome(rig.access)
    return outcome


async def run_sends(
    root: Path, mode: str, steps: list[Step], config: AccessConfig | None = None
) -> dict[str, Any]:
    """Let sends happen to a rig of one mode; returns the outcome."""
    with signers_of(mode):
        rig = Rig(root / mode, mode, access=make_access(config))
        outcome = await _happen(rig, steps)
    is_open = config is not None and config.authentication_whitelist
    assert bool(rig.taken) == (mode != OFF and not is_open)
    return outcome


async def run_pulls(root: Path, mode: str, steps: list[Step]) -> tuple[dict[str, Any], int]:
    """Let pulls happen to a rig; returns the outcome, and how many pulls the lane answered."""
    with signers_of(mode):
        rig = PullRig(root / mode, mode, access=make_access())
        return await _happen(rig, steps), rig.answered


def sends_of(seed: int, frames: int = 200, mistakes: float = 0.08) -> list[Step]:
    """Return what happens to a rig that gets signed sends."""
    return steps_of(seed, frames, len(PEERS), make=lambda rng: SignedTraffic(rng, mistakes))


def pulls_of(seed: int) -> list[Step]:
    """Return what happens to a rig that gets signed pulls."""
    return pull_steps(seed, PULLS, len(PEERS), signed=lambda rng: Signatures(rng, 0.04))


@pytest.mark.parametrize("number", range(4))
def test_signed_sends_are_the_same(tmp_path: Path, number: int) -> None:
    steps = sends_of(number, mistakes=[0.0, 0.02, 0.08, 0.4][number])
    expected = asyncio.run(run_sends(tmp_path, OFF, steps))
    assert expected["audit"]
    for mode in MODES:
        if mode != OFF:
            compare(expected, asyncio.run(run_sends(tmp_path, mode, steps)), mode)


@pytest.mark.parametrize(
    "lists",
    [
        {"authentication_whitelist": "10"},
        {"authorization_whitelist": "10,320"},
        {"authorization_enabled": False},
    ],
)
def test_white_lists_act_alike(tmp_path: Path, lists: dict[str, Any]) -> None:
    given = {"authentication_enabled": True, "authorization_enabled": True} | lists
    steps = sends_of(77)
    config = AccessConfig(**given)
    expected = asyncio.run(run_sends(tmp_path, OFF, steps, config))
    found = asyncio.run(run_sends(tmp_path, MODES[-1], steps, config))
    compare(expected, found, MODES[-1])


@pytest.mark.parametrize("number", range(4))
def test_signed_pulls_are_the_same(tmp_path: Path, number: int) -> None:
    steps = pulls_of(number)
    expected, _ = asyncio.run(run_pulls(tmp_path, OFF, steps))
    assert expected["audit"]
    for mode in MODES:
        if mode != OFF:
            found, answered = asyncio.run(run_pulls(tmp_path, mode, steps))
            compare(expected, found, mode)
            assert answered


# Mistakes that the comparison must find; else it proves nothing.


@contextmanager
def changes_of_users_are_missed() -> Iterator[None]:
    with patch.object(Gate, "revision", 1):
        yield


@contextmanager
def rights_are_not_asked_for() -> Iterator[None]:
    with patch.object(Logins, "_may", lambda *given: True):
        yield


@contextmanager
def signatures_are_not_verified() -> Iterator[None]:
    real = SendLane.take

    def take(self: Any, *given: Any) -> int:
        logins, self._logins = self._logins, None
        try:
            return real(self, *given)
        finally:
            self._logins = logins

    with patch.object(SendLane, "take", take):
        yield


@pytest.mark.parametrize(
    "bug",
    [
        changes_of_users_are_missed,
        rights_are_not_asked_for,
        signatures_are_not_verified,
    ],
)
def test_a_planted_bug_is_found(tmp_path: Path, bug: Any) -> None:
    mode = MODES[-1]
    # Requests of one kind are admitted without a right, so that the lane must ask for itself.
    config = AccessConfig(
        authentication_enabled=True, authorization_enabled=True, authorization_whitelist="10"
    )
    for seed in range(12):
        steps = sends_of(seed)
        root = tmp_path / str(seed)
        expected = asyncio.run(run_sends(root, OFF, steps, config))
        try:
            with bug():
                compare(expected, asyncio.run(run_sends(root, mode, steps, config)), mode)
        except AssertionError:
            return
    pytest.fail("the bug was not found")


@pytest.mark.parametrize("bug", [changes_of_users_are_missed, rights_are_not_asked_for])
def test_a_planted_bug_in_pulls_is_found(tmp_path: Path, bug: Any) -> None:
    mode = MODES[-1]
    for seed in range(12):
        steps = pulls_of(seed)
        root = tmp_path / str(seed)
        expected, _ = asyncio.run(run_pulls(root, OFF, steps))
        try:
            with bug():
                compare(expected, asyncio.run(run_pulls(root, mode, steps))[0], mode)
        except AssertionError:
            return
    pytest.fail("the bug was not found")


def test_a_send_of_a_user_whose_secret_changed_is_refused_at_once(tmp_path: Path) -> None:
    """The next request after a change is refused, though the lane took the one before."""
    rng = random.Random(5)
    traffic = SignedTraffic(rng, mistakes=0.0)
    frames = [traffic._send(plain=True) for _ in range(60)]

    async def run() -> list[int]:
        with signers_of(MODES[-1]):
            rig = Rig(tmp_path, MODES[-1], access=make_access())
            rig.feed(0, b"".join(frames[:30]))
            await rig.settle()
            taken = rig.taken
            for name in ("orders", "all", "root", "reader", "中文"):
                info = UserInfo(username=name, password="another one")
                rig.access.table.update_user(info, caller=None)
            rig.feed(0, b"".join(frames[30:]))
            await rig.settle()
            rig.close()
            gate = rig.access.gate
            assert gate is not None
            return [taken > 0, rig.taken - taken, gate.failures.total]

    assert asyncio.run(run()) == [True, 0, 30]
