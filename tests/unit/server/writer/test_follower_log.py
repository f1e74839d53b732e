"""A follower's log: what is visible and reported, when, and what happens without room."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rocketpost.errors import StoreError, StoreFull
from rocketpost.model.ids import Position
from rocketpost.server.writer.follower_log import FollowerLog
from rocketpost.store.config import FlushMode
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.store.replica.deletions import QueueRestarted

from ..writing import Store


class CopyingStore(Store):
    """A store that takes a master's records."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[int, bytes]] = []

    def append_raw(self, position: Position, data: bytes | memoryview) -> Position:
        assert position == self.written_position
        self.given.append((position, bytes(data)))
        self.end = position + len(data)
        self.written_position = Position(self.end)
        return self.written_position

    def confirm(self, position: Position) -> list[Arrival]:  # type: ignore[override]
        first = self.confirmed_position
        super().confirm(position)
        return [Arrival("T", 0, first, position - first, b"", 0, 1)]

    def sync(self) -> None:
        """Do what the flusher's thread does."""
        self.durable_position = self.written_position
        thread = threading.Thread(target=self.on_durable, args=(self.durable_position,))
        thread.start()
        thread.join()


class Listeners:
    """Writes down what a follower's log tells."""

    def __init__(self, log: FollowerLog) -> None:
        self.trace: list[str] = []
        log.arrival_listeners = [self.arrived]
        log.on_advance = lambda position: self.trace.append(f"safe {position}")

    def arrived(self, arrivals: list[Arrival]) -> None:
        self.trace += [f"arrived {each.first_offset}+{each.record_bytes}" for each in arrivals]


@pytest.fixture
def store() -> CopyingStore:
    return CopyingStore()


def follower_log(store: CopyingStore, *, sync: bool) -> tuple[FollowerLog, Listeners]:
    mode = FlushMode.SYNC_FLUSH if sync else FlushMode.ASYNC_FLUSH
    log = FollowerLog(store=store, flush_mode=mode)
    listeners = Listeners(log)
    log.begin()
    return log, listeners


async def test_written_records_are_shown_once_for_each_iteration(store: CopyingStore) -> None:
    log, listeners = follower_log(store, sync=False)
    assert log.append(0, b"0123456789") == 10
    assert log.append(10, b"0123456789") == 20
    assert (listeners.trace, log.position) == ([], 0)
    await asyncio.sleep(0)
    assert listeners.trace == ["safe 20", "arrived 0+20"]
    assert (store.confirmed, log.position, store.flushes) == ([20], 20, 0)
    log.append(20, b"0123456789")
    await asyncio.sleep(0)
    assert listeners.trace[2:] == ["safe 30", "arrived 20+10"]
    log.close()


async def test_written_records_can_be_shown_at_once(store: CopyingStore) -> None:
    log, listeners = follower_log(store, sync=False)
    log.append(0, b"0123456789")
    log.show()
    assert listeners.trace == ["safe 10", "arrived 0+10"], "a sender may wait for the report"
    log.show()
    await asyncio.sleep(0)
    assert store.confirmed == [10], "once"
    log.close()


async def test_flushed_records_are_shown_after_the_flush(store: CopyingStore) -> None:
    log, listeners = follower_log(store, sync=True)
    log.append(0, b"0123456789")
    await asyncio.sleep(0)
    assert (store.flushes, store.confirmed, listeners.trace, log.position) == (1, [], [], 0)
    store.sync()
    log.append(10, b"0123456789")
    await asyncio.sleep(0)
    assert listeners.trace == ["safe 10", "arrived 0+10"], "only what the flush covers"
    assert (log.position, store.flushes) == (10, 2)
    store.sync()
    await asyncio.sleep(0)
    assert listeners.trace[2:] == ["safe 20", "arrived 10+10"]
    log.close()


@pytest.mark.parametrize("sync", [False, True])
async def test_a_term_begins_with_what_is_safe(store: CopyingStore, sync: bool) -> None:
    store.append_raw(Position(0), bytes(30))
    store.durable_position = Position(20)
    log, listeners = follower_log(store, sync=sync)
    safe = 20 if sync else 30
    assert (log.position, store.confirmed, store.flushes) == (safe, [safe], int(sync))
    assert not listeners.trace
    log.close()


async def test_nothing_is_appended_while_there_is_no_room(store: CopyingStore) -> None:
    log, listeners = follower_log(store, sync=False)
    log.check_room()
    store.refuses_new["nearly"] = "the disk is 95% full"
    with pytest.raises(StoreFull, match="95%"):
        log.append(0, bytes(10))
    with pytest.raises(StoreFull, match="95%"):
        log.check_room()
    assert not store.given
    store.refuses_new.clear()
    log.check_room()
    log.append(0, bytes(10))
    await asyncio.sleep(0)
    assert listeners.trace == ["safe 10", "arrived 0+10"]
    log.close()


@pytest.mark.parametrize("sync", [False, True])
async def test_a_closed_log_does_not_touch_the_store(store: CopyingStore, sync: bool) -> None:
    log, listeners = follower_log(store, sync=sync)
    log.append(0, bytes(10))
    report = store.on_durable
    log.close()
    report(Position(10))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (store.confirmed, store.flushes, listeners.trace) == ([], 0, [])
    assert store.on_durable is not report


class Deletions:
    """Deletes queues; noting that may fail."""

    def __init__(self) -> None:
        self.restarted: list[int] = []
        self.is_full = True

    def restart(self, restarted: QueueRestarted) -> Deletions:
        self.restarted.append(restarted.position)
        return self

    def finish_blocking(self) -> None:
        if self.is_full:
            raise OSError(28, "no space left")


async def test_a_queue_begins_again_once_that_is_noted_on_disk(store: CopyingStore) -> None:
    def refuse(position: Position, data: bytes | memoryview) -> Position:
        raise QueueRestarted("T", 0, position)

    store.deletions = deletions = Deletions()  # type: ignore[attr-defined]
    log, _ = follower_log(store, sync=False)
    await log.begin_queue_again()
    assert deletions.restarted == []
    store.append_raw = refuse  # type: ignore[method-assign]
    with pytest.raises(QueueRestarted):
        log.append(7, b"record")
    with pytest.raises(StoreError, match="no space"):
        await log.begin_queue_again()
    deletions.is_full = False
    await log.begin_queue_again()
    await log.begin_queue_again()
    assert deletions.restarted == [7, 7]
