"""The send lane changes nothing but the cost: same replies, same files, same counters."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from rocketpost.server.writer.log_writer import LogWriter
from rocketpost.server.writer.send_lane import SendLane
from rocketpost.store.config import FlushMode
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.wave import Wave
from rocketpost.transport.connection import Connection

from .rig import MODES, OFF, PEERS, Rig
from .traffic import Step, steps_of


async def run(root: Path, mode: str, steps: list[Step], **more: Any) -> dict[str, Any]:
    """Let all steps happen to a rig of one mode; returns the outcome."""
    rig = Rig(root / mode, mode, **more)
    for step in steps:
        step.act(rig)
        if step.name == "turn":
            await rig.turn()
        elif step.name == "settle":
            await rig.settle()
    await rig.settle()
    rig.close()
    assert bool(rig.taken) == (mode != OFF)
    return rig.outcome()


def compare(expected: dict[str, Any], found: dict[str, Any], mode: str) -> None:
    """Fail at the first difference."""
    for what, value in expected.items():
        if what == "files":
            assert list(found[what]) == list(value), f"{mode}: other files"
            for name, data in value.items():
                assert found[what][name] == data, f"{mode}: {name} differs"
        else:
            assert found[what] == value, f"{mode}: {what} differ"


def check(root: Path, steps: list[Step], modes: list[str], **more: Any) -> None:
    """Compare modes with that without a lane."""
    expected = asyncio.run(run(root, OFF, steps, **more))
    for mode in modes:
        if mode != OFF:
            compare(expected, asyncio.run(run(root, mode, steps, **more)), mode)


def test_replies_files_and_counters_are_the_same(tmp_path: Path, seed: int) -> None:
    check(tmp_path, steps_of(seed, 150, len(PEERS)), MODES, seed=seed)


@pytest.mark.parametrize("number", range(3))
def test_the_same_holds_under_sync_flush(tmp_path: Path, number: int) -> None:
    steps = steps_of(number, 150, len(PEERS), failures=False)
    check(tmp_path, steps, MODES, seed=number, flush_mode=FlushMode.SYNC_FLUSH)


# Mistakes that the comparison must find; else it proves nothing.


@contextmanager
def offsets_are_not_taken_back() -> Iterator[None]:
    real = Dispatcher.forget_from

    def forget_from(self: Any, position: int) -> None:
        offsets = self._queues.slots.next_offsets
        before = offsets[:]
        real(self, position)
        offsets[:] = before

    with patch.object(Dispatcher, "forget_from", forget_from):
        yield


@contextmanager
def an_offset_is_skipped() -> Iterator[None]:
    real = Wave.take

    def take(self: Any, packer: Any) -> None:
        before = packer.row_at - self.row_end
        real(self, packer)
        if before > 3:
            self.next_offsets[self.rows[(packer.row_at - 1) * 5 + 3]] += 1

    with patch.object(Wave, "take", take):
        yield


@contextmanager
def sends_are_answered_when_they_are_taken() -> Iterator[None]:
    real = LogWriter.submit

    def submit(self: Any, send: Any) -> None:
        if isinstance(send.submitter, SendLane):
            send.submitter.acknowledge([send])
            send.answers, send.replies = 0, b""
        real(self, send)

    with patch.object(LogWriter, "submit", submit):
        yield


@contextmanager
def an_arrival_is_not_reported() -> Iterator[None]:
    def show(self: Any, confirmed: Any) -> None:
        arrivals = self._store.confirm(confirmed)
        for listener in self.arrival_listeners:
            listener(arrivals[:-1] if len(arrivals) > 2 else arrivals)

    with patch.object(LogWriter, "_show", show):
        yield


@contextmanager
def answers_are_not_expected() -> Iterator[None]:
    with patch.object(Connection, "expect_answers", lambda self, count: None):
        yield


@contextmanager
def changes_of_topics_are_missed() -> Iterator[None]:
    with patch.object(SendLane, "forget_topics", lambda self: None):
        yield


@contextmanager
def failures_are_counted_once_a_call() -> Iterator[None]:
    def refuse_unwritten(self: Any, sends: list[Any], error: Any) -> None:
        for _ in sends:
            self._stats.count_failed_put()
        self.refuse(sends, error)

    with patch.object(SendLane, "refuse_unwritten", refuse_unwritten):
        yield


@pytest.mark.parametrize(
    "bug",
    [
        offsets_are_not_taken_back,
        an_offset_is_skipped,
        sends_are_answered_when_they_are_taken,
        an_arrival_is_not_reported,
        answers_are_not_expected,
        changes_of_topics_are_missed,
        failures_are_counted_once_a_call,
    ],
)
def test_a_planted_bug_is_found(tmp_path: Path, bug: Any) -> None:
    mode = MODES[-1]
    for seed in range(12):
        steps = steps_of(seed, 150, len(PEERS))
        root = tmp_path / str(seed)
        expected = asyncio.run(run(root, OFF, steps, seed=seed))
        try:
            with bug():
                compare(expected, asyncio.run(run(root, mode, steps, seed=seed)), mode)
        except AssertionError:
            return
    pytest.fail("the bug was not found")
