"""The checks find bugs: each of these, planted, makes a simulation fail; without it none does."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any

import pytest

from rocketpost.errors import StoreFull
from rocketpost.store.checkpointer import Checkpointer
from rocketpost.store.dispatch.dispatcher import Dispatcher
from rocketpost.store.index.key_index import KeyIndex
from rocketpost.store.log.commit_log import CommitLog
from rocketpost.store.log.flusher import Flusher
from rocketpost.store.log.segment import Segment
from rocketpost.store.message_store import MessageStore
from rocketpost.store.recovery import recovery
from rocketpost.store.tables import TableFile
from rocketpost.testing.sim.disk import SimulatedDisk

from . import test_faults, test_power_cut
from .world import World, formatted, small

SEEDS = range(40)


def power_cuts(seed: int) -> None:
    config = small(queue_file_bytes=20_000)  # queue files of many pages
    test_power_cut.cuts_between_calls(World(config=config), random.Random(seed), deletes=False)


def full_disk(seed: int) -> None:
    fault = test_faults.nth(seed * 5 + 3, errno.ENOSPC, lasting=False)
    test_faults.check_fault(fault, f"seed {seed}")


def stale_bytes(seed: int) -> None:
    """Records of one size, so that what is left of old ones lies where new ones would."""
    rng = random.Random(seed)
    world = World(sizes=(60,))
    for _ in range(6):
        world.open()
        world.check()
        world.send(rng, rng.randrange(1, 4))
        world.flush()
        if rng.random() < 0.5:
            world.disk.fault = test_faults.nth(1, errno.ENOSPC, lasting=False)
            with pytest.raises(StoreFull):
                world.send(rng, 12)
            world.disk.fault = None
            world.send(rng, 1)
            world.kill()
        else:
            world.send(rng, 12)
            world.lose_power(rng, keep=0.7)
    world.open()
    world.check()


def tables(seed: int) -> None:
    """Save a table again and again over power cuts; a saved one is never lost."""
    rng = random.Random(seed)
    disk = formatted()
    for number in range(1, 6):
        table(disk).save_blocking(b"%d" % number)
        if rng.random() < 0.5:
            disk = disk.after_power_cut(rng)
            assert table(disk).load_blocking() == number


def table(disk: SimulatedDisk) -> TableFile[int]:
    return TableFile("/store/config/table.json", files=disk, decode=int, empty=int)


def is_caught(run: Callable[[int], None]) -> bool:
    for seed in SEEDS:
        try:
            run(seed)
        except AssertionError:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("run", [power_cuts, full_disk, stale_bytes, tables])
def test_nothing_is_found_where_nothing_is_planted(run: Callable[[int], None]) -> None:
    for seed in SEEDS:
        run(seed)


def test_acknowledging_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "sync_blocking", lambda _segment: None)
    assert is_caught(power_cuts)


def test_acknowledging_after_a_failed_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(segment: Segment) -> None:
        if segment.start == 0 and segment.path:
            return  # as if the error had been swallowed
        segment._files.fdatasync(segment.fd)

    monkeypatch.setattr(Segment, "sync_blocking", sync)
    assert is_caught(power_cuts)


def test_showing_messages_before_they_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = MessageStore.commit

    def eager(store: MessageStore) -> Any:
        end = commit(store)
        store.confirm(end)
        return end

    monkeypatch.setattr(MessageStore, "commit", eager)
    assert is_caught(power_cuts)


def test_recovering_without_the_crc(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = recovery.scan_records

    def careless(*args: Any, **kwargs: Any) -> Any:
        return scan(*args, **(kwargs | {"verify_crc": False}))

    monkeypatch.setattr(recovery, "scan_records", careless)
    assert is_caught(power_cuts)


def test_recovering_without_checking_the_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop at the first bad record, but go on behind it as if a hole were nothing."""
    scan = recovery.scan_records

    def hopping(data: Any, at: int, position: int, **kwargs: Any) -> Any:
        entries, end, verdict = scan(data, at, position, **kwargs)
        shift = position - at
        for start in range(end + 1, len(data) - 91):
            more, stop, _ = scan(data, start, start + shift, **kwargs)
            if more:
                return [*entries, *more], stop, verdict
        return entries, end, verdict

    monkeypatch.setattr(recovery, "scan_records", hopping)
    assert is_caught(power_cuts)


def test_leaving_old_bytes_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zero_from", "erase_from"):
        monkeypatch.setattr(Segment, name, lambda _segment, _offset: None)
    assert is_caught(stale_bytes)


def test_forgetting_to_reset_the_queue_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(dispatcher: Dispatcher, position: int) -> None:
        dispatcher.pending[:] = [e for e in dispatcher.pending if e.position < position]

    monkeypatch.setattr(Dispatcher, "forget_from", forget)
    assert is_caught(full_disk)


def test_leaving_a_half_written_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitLog, "_erase_unwritten", lambda _log: True)
    assert is_caught(stale_bytes)


def test_a_checkpoint_ahead_of_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpointer, "_sync_queues", lambda _checkpointer: None)
    assert is_caught(power_cuts)


def test_a_checkpoint_ahead_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(flusher: Flusher) -> None:
        flusher.durable = flusher._commit_log.written  # type: ignore[assignment]

    monkeypatch.setattr(Flusher, "_flush", claim)
    assert is_caught(power_cuts)


def test_moving_a_segment_without_syncing_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    fsync_dir = SimulatedDisk.fsync_dir

    def forgetful(disk: SimulatedDisk, path: str) -> None:
        if not path.endswith("/commitlog"):
            fsync_dir(disk, path)

    monkeypatch.setattr(SimulatedDisk, "fsync_dir", forgetful)
    assert is_caught(power_cuts)


def test_trusting_index_entries_that_were_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyIndex, "_cut_to", lambda _index, found, *_, **__: found)
    assert is_caught(power_cuts)


def test_index_progress_ahead_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rocketpost.store.index.index_file.IndexFile.sync_blocking", lambda f: f.next_entry
    )
    assert is_caught(power_cuts)


def test_a_table_that_is_named_before_it_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    fdatasync = SimulatedDisk.fdatasync

    def forgetful(disk: SimulatedDisk, fd: int) -> None:
        if not disk._open[fd][0].endswith(".tmp"):
            fdatasync(disk, fd)

    monkeypatch.setattr(SimulatedDisk, "fdatasync", forgetful)
    assert is_caught(tables)
