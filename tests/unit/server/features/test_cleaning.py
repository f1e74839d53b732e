"""Cleaning: nothing is deleted that a feature still needs and could not move."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketpost.errors import StoreError
from rocketpost.model.ids import Position
from rocketpost.server.feature import Feature, FeatureSet
from rocketpost.server.features.cleaning import CleaningFeature
from rocketpost.store.cleaning import CleanPlan
from rocketpost.store.config import StoreConfig
from rocketpost.testing.virtual_time import in_virtual_time

from ..contexts import broker_context

SEGMENT = 4096
EXPIRED = tuple(Position(start) for start in (0, SEGMENT, 2 * SEGMENT))


class Cleaning:
    """The files: notes what is deleted, and when."""

    disk_ratio = 0.25
    why_kept: str | None = None

    def __init__(self, did: list[str]) -> None:
        self._did = did
        self.gone: tuple[Position, ...] = EXPIRED
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.queue_steps = 3

    def plan_blocking(self, **asked: Any) -> CleanPlan:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return CleanPlan(to_delete=self.gone, why_delete="", why_kept=None, why_rejecting=None)

    def apply(self, plan: CleanPlan) -> None:
        self.why_kept = plan.why_kept
        self._did += [f"hide {start}" for start in plan.to_delete]

    def trim_queues(self) -> bool:
        self.queue_steps -= 1
        return self.queue_steps > 0

    def unlink_blocking(self) -> int:
        self._did.append("unlink")
        return len(self.gone)


class Store:
    def __init__(self, did: list[str]) -> None:
        self._did = did
        self.cleaning = Cleaning(did)

    def flush_blocking(self) -> None:
        self._did.append("flush")


class Needy(Feature):
    """A feature that cannot move its messages away from before some position."""

    def __init__(self, did: list[str]) -> None:
        self._did = did
        self.fails_from = 2**62

    def oldest_needed_position(self) -> Position | None:
        return Position(77)

    async def move_messages_before(self, position: int) -> None:
        if position >= self.fails_from:
            raise StoreError("messages are just due")
        self._did.append(f"move before {position}")


class Holds:
    def oldest_needed_position(self) -> Position | None:
        return Position(88)


class World:
    def __init__(self) -> None:
        self.did: list[str] = []
        self.store = Store(self.did)
        self.needy = Needy(self.did)
        features = FeatureSet()
        features.add(self.needy)
        config = StoreConfig(root=".", segment_bytes=SEGMENT, message_bytes_max=1024)
        self.context = broker_context(store=self.store, store_settings=config, clock=WallClock())
        self.feature = CleaningFeature(
            self.context,
            features=features,
            holds=Holds(),  # type: ignore[arg-type]
        )


class WallClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    wall_ms = now_ms


async def test_needed_messages_are_moved_durably_before_anything_is_deleted() -> None:
    world = World()
    assert await world.feature.clean_now() == 3
    assert world.did == [
        f"move before {3 * SEGMENT}",
        "flush",
        *(f"hide {start}" for start in EXPIRED),
        "unlink",
    ]
    [asked] = world.store.cleaning.asked
    assert (asked["is_requested"], asked["held"], asked["needed"]) == (True, 88, 77)
    assert world.store.cleaning.queue_steps == 0


async def test_segments_stay_whose_messages_could_not_be_moved() -> None:
    world = World()
    world.needy.fails_from = 3 * SEGMENT
    await world.feature.clean_now()
    assert [each for each in world.did if "hide" in each] == ["hide 0", f"hide {SEGMENT}"]
    assert world.did.index("flush") < world.did.index("hide 0")
    assert world.feature.runtime_values()["segmentsKeptReason"] == "messages are just due"
    world.did.clear()
    world.needy.fails_from = 0
    await world.feature.clean_now()
    assert world.did == ["unlink"]


async def test_without_anything_to_delete_nothing_is_moved() -> None:
    world = World()
    world.store.cleaning.gone = ()
    await world.feature.clean_now()
    assert world.did == ["unlink"]  # what earlier rounds left


async def test_a_failure_is_logged_and_deletes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.store.cleaning.error = OSError("the disk is gone")
    assert await world.feature.clean_now() == 0
    assert world.did == []
    assert "cleaning failed, will be tried again" in caplog.text
    world.store.cleaning.error = None
    assert await world.feature.clean_now() == 3


async def test_two_who_ask_are_served_one_after_the_other() -> None:
    world = World()
    await asyncio.gather(world.feature.clean_now(), world.feature.clean_now())
    half = len(world.did) // 2
    assert world.did[:half] == world.did[half:]


def test_it_cleans_at_intervals() -> None:
    world = World()
    seconds = world.context.store_config.clean_interval_ms / 1000
    rounds = 0

    @in_virtual_time
    async def run() -> None:
        async def clean(*, is_requested: bool) -> int:
            nonlocal rounds
            assert not is_requested
            rounds += 1
            return 0

        world.feature._clean = clean  # type: ignore[method-assign]
        task = asyncio.ensure_future(world.feature.run())
        await asyncio.sleep(3.5 * seconds)
        task.cancel()
        await asyncio.wait((task,))

    run()
    assert rounds == 3
