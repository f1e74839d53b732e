"""What a slave keeps because its master still has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rocketpost.errors import RequestTimeout
from rocketpost.model.ids import Position
from rocketpost.server.replication.retention import MasterHold


class Master:
    """Answers where its log begins and ends."""

    def __init__(self) -> None:
        self.answer: tuple[int, int] | Exception | None = None
        self.asked = 0

    async def bounds(self) -> tuple[int, int] | None:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def hold(master: Master, *, durable: int, held: int | None = None) -> tuple[MasterHold, Any]:
    log = SimpleNamespace(durable_position=Position(durable))
    holds: Any = SimpleNamespace(oldest_needed_position=lambda: held)
    return MasterHold(log=log, holds=holds, ask_bounds=master.bounds), log


async def test_nothing_expires_before_the_master_has_answered() -> None:
    master = Master()
    kept, _ = hold(master, durable=500)
    assert kept.oldest_needed_position() == 0
    for answer in (None, RequestTimeout("no answer")):
        master.answer = answer
        await kept.refresh()
        assert kept.oldest_needed_position() == 0
    master.answer = (100, 500)
    await kept.refresh()
    assert kept.oldest_needed_position() == 100
    master.answer = None
    await kept.refresh()
    assert kept.oldest_needed_position() == 100


async def test_the_log_must_be_as_far_as_the_answer() -> None:
    master = Master()
    kept, log = hold(master, durable=500)
    master.answer = (100, 800)
    await kept.refresh()
    assert kept.oldest_needed_position() == 0
    master.answer = (200, 10**9)
    await kept.refresh()
    assert master.asked == 1, "a moving end would never be reached"
    log.durable_position = Position(800)
    assert kept.oldest_needed_position() == 100


async def test_groups_hold_messages_here_as_well() -> None:
    master = Master()
    kept, _ = hold(master, durable=500, held=40)
    master.answer = (100, 500)
    await kept.refresh()
    assert kept.oldest_needed_position() == 40
