from __future__ import annotations

import asyncio
import threading

import pytest

from rocketpost.errors import StoreBroken, StoreError
from rocketpost.server.tables.persistence import AfterFlush, Owner, Persistence, Saved
from rocketpost.testing.waiting import until

HOUR_S = 3600.0


class FakeTable:
    def __init__(self) -> None:
        self.revision = 0

    def change(self) -> None:
        self.revision += 1

    def to_json(self) -> bytes:
        return b"%d" % self.revision


class FakeFile:
    def __init__(self) -> None:
        self.saved: list[bytes] = []
        self.error: Exception | None = None
        self.hold: threading.Event | None = None

    def save_blocking(self, data: bytes) -> None:
        if self.hold is not None:
            assert self.hold.wait(2)
        if self.error is not None:
            raise self.error
        self.saved.append(data)


async def test_only_what_changed_is_saved() -> None:
    table, file = FakeTable(), FakeFile()
    persistence = Persistence([Saved(table, file, interval_s=HOUR_S)])
    await persistence.save()
    await persistence.save()
    table.change()
    await persistence.close()
    assert file.saved == [b"0", b"1"]


async def test_urgent_tables_do_not_wait_for_the_round() -> None:
    table, offsets, file, slow = FakeTable(), FakeTable(), FakeFile(), FakeFile()
    persistence = Persistence(
        [
            Saved(table, file, interval_s=HOUR_S),
            Saved(offsets, slow, at_once=False, interval_s=HOUR_S),
        ]
    )
    task = asyncio.create_task(persistence.run())
    table.change()
    persistence.note_change("T")
    await until(lambda: len(file.saved) >= 1)
    table.change()
    await persistence.save_urgent()
    assert (file.saved, slow.saved) == ([b"1", b"2"], [])
    task.cancel()
    await asyncio.wait((task,))
    await persistence.close()
    assert slow.saved == [b"0"]


async def test_callers_share_a_save_while_the_table_goes_on_changing() -> None:
    table, file = FakeTable(), FakeFile()
    persistence = Persistence([Saved(table, file, interval_s=HOUR_S)])
    file.hold = threading.Event()
    callers = []
    for _ in range(5):
        table.change()
        caller = asyncio.create_task(persistence.save())
        caller.add_done_callback(lambda _: table.change())  # the next request of a client
        callers.append(caller)
        await asyncio.sleep(0)  # the first one has begun to save
    file.hold.set()
    await asyncio.gather(*callers)
    assert file.saved == [b"1", b"5"]
    await persistence.close()
    assert file.saved[-1] == b"10"


async def test_the_round_saves_everything() -> None:
    table, file = FakeTable(), FakeFile()
    persistence = Persistence([Saved(table, file, at_once=False, interval_s=0.001)])
    task = asyncio.create_task(persistence.run())
    await until(lambda: len(file.saved) >= 1)
    table.change()
    await until(lambda: len(file.saved) >= 2)
    task.cancel()
    await asyncio.wait((task,))
    await persistence.close()
    assert list(dict.fromkeys(file.saved)) == [b"0", b"1"]


async def test_a_failed_save_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    table, file = FakeTable(), FakeFile()
    persistence = Persistence([Saved(table, file, interval_s=0.001)])
    file.error = OSError("no space left")
    task = asyncio.create_task(persistence.run())
    await until(lambda: "tables not saved" in caplog.text)
    file.error = None
    await until(lambda: len(file.saved) >= 1)
    task.cancel()
    await asyncio.wait((task,))
    file.error = OSError("no space left")
    table.change()
    with pytest.raises(StoreError, match="no space left"):
        await persistence.save()
    with pytest.raises(StoreError):
        await persistence.close()


async def test_a_save_under_way_when_stopped_is_not_overtaken() -> None:
    table, file = FakeTable(), FakeFile()
    file.hold = threading.Event()
    persistence = Persistence([Saved(table, file, interval_s=HOUR_S)])
    task = asyncio.create_task(persistence.run())
    persistence.note_change()
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    table.change()
    closing = asyncio.create_task(persistence.close())
    await asyncio.sleep(0)
    file.hold.set()
    await closing
    assert file.saved == [b"0", b"1"]


async def test_the_round_comes_although_urgent_tables_change_all_the_time() -> None:
    topics, offsets, slow = FakeTable(), FakeTable(), FakeFile()
    loop = asyncio.get_running_loop()

    def change_again() -> None:
        topics.change()
        persistence.note_change("T")

    class BusyFile(FakeFile):
        def save_blocking(self, data: bytes) -> None:
            super().save_blocking(data)
            loop.call_soon_threadsafe(change_again)

    busy = BusyFile()
    persistence = Persistence(
        [
            Saved(topics, busy, interval_s=0.01),
            Saved(offsets, slow, at_once=False, interval_s=0.01),
        ]
    )
    change_again()
    task = asyncio.create_task(persistence.run())
    await until(lambda: len(busy.saved) >= 3)
    await until(lambda: len(slow.saved) >= 1)
    task.cancel()
    await asyncio.wait((task,))
    await persistence.close()


async def test_a_table_may_wait_until_what_it_speaks_of_is_on_disk() -> None:
    table, file = FakeTable(), FakeFile()
    flushes: list[int] = []
    broken: list[Exception] = [StoreBroken("the disk is gone")]

    def flush_blocking() -> None:
        flushes.append(len(file.saved))
        if broken:
            raise broken.pop()

    persistence = Persistence(
        [Saved(table, AfterFlush(file, flush_blocking), at_once=False, interval_s=HOUR_S)]
    )
    with pytest.raises(StoreBroken):
        await persistence.save()
    assert file.saved == []
    await persistence.save()
    assert (flushes, file.saved) == ([0, 0], [b"0"])
    await persistence.close()


async def test_an_owner_waits_for_its_own_tables_only() -> None:
    topics, modes, delays = FakeTable(), FakeTable(), FakeTable()
    of_topics, of_modes, of_delays = FakeFile(), FakeFile(), FakeFile()
    persistence = Persistence(
        [
            Saved(topics, of_topics, interval_s=HOUR_S),
            Saved(modes, of_modes, interval_s=HOUR_S, owner=Owner.REQUEST_MODES),
            Saved(delays, of_delays, at_once=False, interval_s=0.001, owner=Owner.DELAY),
        ]
    )
    await persistence.save(Owner.REQUEST_MODES)
    assert (of_topics.saved, of_modes.saved, of_delays.saved) == ([], [b"0"], [])
    task = asyncio.create_task(persistence.run())
    modes.change()
    persistence.note_change(owner=Owner.REQUEST_MODES)
    await until(lambda: len(of_modes.saved) >= 2)
    await until(lambda: len(of_delays.saved) >= 1)
    assert of_topics.saved == []
    task.cancel()
    await asyncio.wait((task,))
    await persistence.close()
    assert of_topics.saved == [b"0"]


async def test_a_table_that_cannot_be_saved_holds_up_its_owner_alone() -> None:
    files = [FakeFile() for _ in range(3)]
    files[0].error = OSError("no space left")
    persistence = Persistence(
        [
            Saved(FakeTable(), files[0]),
            Saved(FakeTable(), files[1]),
            Saved(FakeTable(), files[2], owner=Owner.DELAY),
        ]
    )
    with pytest.raises(StoreError, match="no space left"):
        await persistence.close()
    assert [file.saved for file in files] == [[], [], [b"0"]]
