"""Pulls whose records must come from the disk, which is slow as long as a test wants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.server.cold_reads import COUNT_MAX, READ_AHEAD_BYTES
from rocketpost.store.files import RealFiles

from .handlers.test_in_process import InProcessWorld, a_pull

LATER_MS = 120_000


class SlowDisk:
    """Has nothing in memory, and reads only when it is told to."""

    def __init__(self, world: InProcessWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_started = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._may_read = threading.Event()
        self.reads: list[tuple[int, int]] = []
        self._warm = world.pulls.cold_reads._warm
        monkeypatch.setattr(RealFiles, "is_cached", lambda self, path, offset, size: False)
        monkeypatch.setattr(world.pulls.cold_reads, "_warm", self.warm)

    def warm(self, position: int, size: int) -> None:
        self._loop.call_soon_threadsafe(self.is_started.set)
        assert self._may_read.wait(10)
        self.reads.append((position, size))
        self._warm(position, size)

    def read(self) -> None:
        self._may_read.set()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[InProcessWorld]:
    world = InProcessWorld(tmp_path / "store")
    for number in range(3):
        world.send(body=b"cold %d" % number)
    world.clock.advance(ms=LATER_MS)  # no longer trusted unchecked
    yield world
    world.pulls.close()
    world.close()


@pytest.fixture
async def disk(world: InProcessWorld, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlowDisk]:
    disk = SlowDisk(world, monkeypatch)
    yield disk
    disk.read()


async def test_the_loop_continues_while_the_disk_reads(
    world: InProcessWorld, disk: SlowDisk
) -> None:
    expected = world.pulls.service.resume(_hold(world))
    world.clock.advance(ms=LATER_MS)
    call = asyncio.create_task(world.client.pull(a_pull()))
    await disk.is_started.wait()
    assert len(world.pulls.cold_reads) == 1
    answer = await world.client.pull(a_pull(99))  # another pull, served meanwhile
    assert answer.pulled.status == "OFFSET_OVERFLOW_BADLY"
    assert not call.done()
    disk.read()
    answer = await call
    assert answer.pulled.message_count == 3
    assert b"".join(answer.pulled.views) == b"".join(expected.pulled.views)
    [(_, size)] = disk.reads
    assert size == READ_AHEAD_BYTES
    assert world.pulls.runtime_values()["coldReads"] == "1"


def _hold(world: InProcessWorld):  # type: ignore[no-untyped-def]
    return world.pulls.service.pull(a_pull(), world.client)


async def test_a_disk_that_fails_is_left_to_the_check_of_the_records(
    world: InProcessWorld, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(position: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(world.pulls.cold_reads, "_warm", fail)
    answer = await world.client.pull(a_pull())
    assert answer.pulled.message_count == 3  # the check could read them


async def test_a_lost_client_is_forgotten(world: InProcessWorld, disk: SlowDisk) -> None:
    call = asyncio.create_task(world.client.pull(a_pull()))
    await disk.is_started.wait()
    world.pulls.cold_reads.drop(world.client)
    assert len(world.pulls.cold_reads) == 0
    call.cancel()


async def test_the_end_of_a_term_answers_all(world: InProcessWorld, disk: SlowDisk) -> None:
    calls = [asyncio.create_task(world.client.pull(a_pull())) for _ in range(6)]
    await disk.is_started.wait()
    world.pulls.cold_reads.close()
    answers = await asyncio.gather(*calls)
    assert [answer.pulled.message_count for answer in answers] == [3] * 6


async def test_too_many_wait_on_the_loop(
    world: InProcessWorld, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketpost.server.cold_reads.COUNT_MAX", 1)
    assert COUNT_MAX > 1
    call = asyncio.create_task(world.client.pull(a_pull()))
    await disk.is_started.wait()
    answer = await world.client.pull(a_pull())
    assert answer.pulled.message_count == 3
    assert not call.done()
    disk.read()
    await call
