"""Unused names are removed some at a time, and those used meanwhile stay."""

from __future__ import annotations

import asyncio
from collections.abc import Container

from rocketpost.server.features.expiry import ROUND_SECONDS, ExpiryFeature
from rocketpost.testing.virtual_time import in_virtual_time


class Names:
    """Names that are old, of which some are used."""

    def __init__(self, old: list[str], used: set[str] | None = None) -> None:
        self.old = old
        self.used = used or set()
        self.removed: list[str] = []
        self.forgotten: list[str] = []
        self.searches = 0

    def candidates(self) -> list[str]:
        return list(self.old)

    def used_names(self) -> set[str]:
        self.searches += 1
        return set(self.used)

    def remove(self, name: str, used: Container[str]) -> None:
        if name not in used:
            self.removed.append(name)

    def forget_counters(self) -> None:
        self.forgotten = list(self.removed)


def feature(names: Names) -> ExpiryFeature:
    return ExpiryFeature(names)  # type: ignore[arg-type]


async def test_used_names_stay() -> None:
    names = Names(["a", "b", "c"], {"b"})
    await feature(names).round()
    assert names.removed == ["a", "c"]


async def test_used_names_are_not_searched_for_nothing() -> None:
    names = Names([])
    await feature(names).round()
    assert names.searches == 0


async def test_a_name_that_is_used_between_two_turns_stays() -> None:
    many = [f"n{number}" for number in range(1200)]
    names = Names(many)
    work = asyncio.create_task(feature(names).round())
    await asyncio.sleep(0)
    removed = len(names.removed)
    assert 0 < removed < len(many), "other requests have their turn"
    names.used = {many[-1]}
    await work
    assert names.removed == many[:-1]


@in_virtual_time
async def test_it_looks_every_ten_minutes() -> None:
    names = Names(["a"])
    work = asyncio.create_task(feature(names).run())
    await asyncio.sleep(2.5 * ROUND_SECONDS)
    work.cancel()
    assert names.removed == ["a", "a"]
