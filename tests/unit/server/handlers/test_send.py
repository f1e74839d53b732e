"""Messages of the broker's own are stored with the sends of the same turn, and as safely."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketpost.errors import StoreBroken, StoreError, StoreFull
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.server.announcing import Announcing
from rocketpost.server.handlers.send import SendHandler
from rocketpost.store.draft import Appended, Draft

DRAFT = Draft("T", 0, 0, 0, 0, b"", b"", 0, 0, b"", b"")


async def no_news() -> None:
    """Every name server knows everything."""


class Store:
    """A store of records that take ten bytes each."""

    def __init__(self) -> None:
        self.end = 0
        self.confirmed_position = Position(0)
        self.room = 100
        self.commits = 0
        self.broken: StoreError | None = None
        self.flushes = 0

    def append(self, draft: Draft) -> Appended:
        if self.room == 0:
            raise StoreFull("no room")
        self.room -= 1
        self.end += 10
        return Appended(
            Position(self.end - 10), 10, QueueOffset(0), 0, draft.topic, 0, 0, ("U",), None
        )

    def commit(self) -> Position:
        self.commits += 1
        if self.broken is not None:
            raise self.broken
        self.confirmed_position = Position(self.end)
        return self.confirmed_position

    def confirm(self, position: Position) -> list[Appended]:
        return []

    def request_flush(self) -> None:
        self.flushes += 1


class Stats:
    def put_failed(self) -> None:
        raise AssertionError("no send failed")


def handler(store: Store, *, sync: bool) -> Any:
    return SendHandler(
        store=store,  # type: ignore[arg-type]
        service=None,  # type: ignore[arg-type]
        stats=Stats(),  # type: ignore[arg-type]
        store_host=bytes(8),
        region="R",
        announcing=Announcing(told=no_news),
        sync_flush=sync,
        flush_timeout_ms=1000,
    )


@pytest.fixture
def store() -> Store:
    return Store()


async def test_one_commit_stores_what_a_turn_put(store: Store) -> None:
    sends = handler(store, sync=False)
    first, second = sends.put([DRAFT, DRAFT]), sends.put([DRAFT])
    assert store.commits == 0
    assert [each.position for each in await first] == [0, 10]
    assert [each.position for each in await second] == [20]
    assert store.commits == 1


async def test_under_sync_flush_it_takes_the_disk(store: Store) -> None:
    sends = handler(store, sync=True)
    first, second = sends.put([DRAFT]), sends.put([DRAFT])
    await asyncio.sleep(0)
    assert store.flushes == 1
    sends.gate.advance(Position(10))
    assert (first.done(), second.done()) == (True, False)
    sends.gate.advance(Position(20))
    assert second.done()
    sends.close()


async def test_a_store_that_fills_up_takes_the_first_of_them(store: Store) -> None:
    sends = handler(store, sync=False)
    store.room = 1
    assert len(await sends.put([DRAFT, DRAFT])) == 1
    with pytest.raises(StoreFull):
        sends.put([DRAFT])


async def test_a_failed_commit_fails_all_of_the_turn(store: Store) -> None:
    sends = handler(store, sync=False)
    futures = [sends.put([DRAFT]), sends.put([DRAFT])]
    futures[1].cancel()
    store.broken = StoreFull("no room")
    with pytest.raises(StoreFull):
        await futures[0]


@pytest.mark.parametrize("ending", ["fail", "close"])
async def test_what_waits_for_a_disk_that_fails_is_not_stored(store: Store, ending: str) -> None:
    sends = handler(store, sync=True)
    future, given_up = sends.put([DRAFT]), sends.put([DRAFT])
    await asyncio.sleep(0)
    given_up.cancel()
    if ending == "fail":
        sends.fail("broken")
    sends.close()
    with pytest.raises(StoreBroken):
        await future


async def test_who_gave_up_is_not_told(store: Store) -> None:
    sends = handler(store, sync=True)
    future = sends.put([DRAFT])
    await asyncio.sleep(0)
    future.cancel()
    sends.gate.advance(Position(10))
    sends.close()
