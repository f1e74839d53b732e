"""The revival sleeps until something is due, and looks again when something is due earlier."""

from __future__ import annotations

import asyncio

import pytest

from rocketpost.broker.pop.changes import Change
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server import due_loop
from rocketpost.server.popping.recorder import PopRecorder
from rocketpost.server.popping.revival import Revival
from rocketpost.store.draft import Appended, Draft
from rocketpost.testing.clock import FakeClock
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import until

DRAFT = Draft("R", 0, 0, 0, 0, b"", b"", 0, 0, b"", b"")
STORED = Appended(Position(0), 1, QueueOffset(0), 0, "R", 0, 0, (), None)


class Service:
    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.due: list[int] = []
        self.revived: list[int] = []

    def next_due_ms(self) -> int | None:
        return min(self.due, default=None)

    def revive(self) -> list[Change]:
        now_ms = self.clock.now_ms()
        self.revived += [each for each in self.due if each <= now_ms]
        self.due = [each for each in self.due if each > now_ms]
        return [Change([DRAFT])]

    def settle(self, change: Change) -> None:
        assert change.is_stored


def put(drafts: list[Draft]) -> asyncio.Future[list[Appended]]:
    stored: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
    stored.set_result([STORED])
    return stored


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_earlier_due_time_wakes_it() -> None:
    clock = FakeClock()
    now_ms = clock.now_ms()
    service = Service(clock)
    revival = Revival(service=service, recorder=PopRecorder(put), clock=clock)
    running = asyncio.ensure_future(revival.run())
    try:
        await turns()
        service.due = [now_ms + 60_000]
        revival.due_changed()
        await turns()
        assert service.revived == []
        service.due.append(now_ms + 1000)
        clock.advance(1000)
        revival.due_changed()
        await turns()
        assert service.revived == [now_ms + 1000]
        service.due.append(now_ms + 90_000)
        revival.due_changed()  # later than what it waits for
        assert not revival._loop.is_woken
    finally:
        running.cancel()
        await asyncio.wait((running,))


@in_virtual_time
async def test_it_sleeps_as_long_as_it_must() -> None:
    clock = FakeClock()
    service = Service(clock)
    service.due = [clock.now_ms() + 2]
    revival = Revival(service=service, recorder=PopRecorder(put), clock=clock)
    running = asyncio.ensure_future(revival.run())
    try:
        await turns()
        assert service.revived == []
        clock.advance(2)
        await until(lambda: service.revived)
    finally:
        running.cancel()
        await asyncio.wait((running,))


async def test_an_error_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    service = Service(clock)
    service.due = [clock.now_ms()]
    revive, failures = service.revive, [ValueError("a bad message")]
    monkeypatch.setattr(due_loop, "RETRY_SECONDS", 0)

    def fails_once() -> list[Change]:
        if failures:
            raise failures.pop()
        return revive()

    monkeypatch.setattr(service, "revive", fails_once)
    running = asyncio.ensure_future(
        Revival(service=service, recorder=PopRecorder(put), clock=clock).run()
    )
    try:
        await turns()
        assert service.revived == [clock.now_ms()]
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait((running,))
