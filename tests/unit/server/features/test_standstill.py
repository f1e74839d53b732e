from __future__ import annotations

import asyncio

import pytest

from rocketpost.server.features import standstill
from rocketpost.server.features.standstill import StandstillFeature


class FakeWatch:
    """Notes what is looked at."""

    def __init__(self) -> None:
        self.looked: list[tuple[str, str]] = []

    def begin_round(self) -> list[tuple[str, str]]:
        return [("T", f"G{number}") for number in range(500)]

    def look(self, topic: str, group: str) -> None:
        self.looked.append((topic, group))


async def test_all_groups_are_looked_at_a_few_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standstill, "ROUND_SECONDS", 0.0)
    watch = FakeWatch()
    task = asyncio.create_task(StandstillFeature(watch).run())  # type: ignore[arg-type]
    seen = set()
    while len(watch.looked) < 1000:
        seen.add(len(watch.looked))
        await asyncio.sleep(0)
    task.cancel()
    assert watch.looked[:500] == watch.looked[500:1000] == watch.begin_round()
    assert {200, 400, 500} <= seen
