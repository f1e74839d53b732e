"""Saves of a member's promises: one covers many requests, and a failure is final."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

from rocketpost.errors import StoreBroken
from rocketpost.server.group import state_saver
from rocketpost.server.group.state_saver import StateSaver
from rocketpost.testing.waiting import until


class Promises:
    """Files that can be slow, and can fail."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, str | None]] = []
        self.progress: list[tuple[int, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = 0
        self.is_broken = False

    def save_vote_blocking(self, term: int, vote: str | None) -> None:
        self.begun += 1
        self.gate.wait()
        if self.is_broken:
            raise StoreBroken("the disk is gone")
        self.saved.append((term, vote))

    def save_progress_blocking(self, commit: int, acknowledged: int) -> None:
        if self.is_broken:
            raise StoreBroken("the disk is gone")
        self.progress.append((commit, acknowledged))


class Saving:
    """A saver, and what it has told."""

    def __init__(self) -> None:
        self.promises = Promises()
        self.numbers: list[int] = []
        self.failures: list[str] = []
        self.position = (0, 0)
        self.looks = 0
        self.saver = StateSaver(
            self.promises,
            progress=self.look,
            on_saved=self.numbers.append,
            on_failed=self.failures.append,
        )

    def look(self) -> tuple[int, int]:
        self.looks += 1
        return self.position

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[StateSaver]:
        task = self.task = asyncio.create_task(self.saver.run())
        try:
            yield self.saver
        finally:
            self.promises.gate.set()
            task.cancel()
            await asyncio.wait((task,))
            await self.saver.close()


async def test_requests_during_a_save_share_the_next() -> None:
    saving = Saving()
    async with saving.running() as saver:
        saving.promises.gate.clear()
        saver.save(1, 1, "a")
        await until(lambda: saving.promises.begun == 1)
        saver.save(2, 2, None)
        saver.save(3, 3, "b")
        assert saving.numbers == [], "nothing is promised before it is durable"
        saving.promises.gate.set()
        await until(lambda: saving.numbers == [1, 3])
        assert saving.promises.saved == [(1, "a"), (3, "b")]
        assert saver.save_count == 2


async def test_progress_is_saved_now_and_then_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_saver, "PROGRESS_SECONDS", 0.001)
    saving = Saving()
    async with saving.running():
        saving.position = (10, 20)
        await until(lambda: saving.promises.progress)
        looks = saving.looks
        await until(lambda: saving.looks > looks + 2)
        assert saving.promises.progress == [(10, 20)], "only if there is news"
        saving.position = (30, 30)
    assert saving.promises.progress == [(10, 20), (30, 30)]


async def test_a_failed_save_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_saver, "PROGRESS_SECONDS", 0.001)
    saving = Saving()
    async with saving.running() as saver:
        saving.promises.is_broken = True
        saver.save(1, 1, "a")
        await until(lambda: saving.failures)
        saving.promises.is_broken = False
        saver.save(2, 2, None)
        saving.position = (1, 1)
        await until(saving.task.done)
    assert (saving.failures, saving.numbers) == (["the disk is gone"], [])
    assert saving.promises.saved == saving.promises.progress == []


async def test_progress_that_cannot_be_saved_is_a_failure_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_saver, "PROGRESS_SECONDS", 0.001)
    saving = Saving()
    async with saving.running():
        saving.promises.is_broken = True
        saving.position = (1, 1)
        await until(lambda: saving.failures == ["the disk is gone"])
