"""A log cut at any byte comes back as the intact prefix, and queues and index with it."""

from __future__ import annotations

import random

import pytest

from rocketpost.errors import StoreError
from rocketpost.kernel.record_scan import BLANK, INVALID, MORE, scan_records
from rocketpost.testing.sim.disk import SimulatedDisk

from .world import World, small

MESSAGE_COUNT = 300


def written(count: int, *, checkpoint_every: int = 10**9) -> World:
    """Return a world whose log holds ``count`` messages, all acknowledged, and no store."""
    rng = random.Random(7)
    world = World(config=small(segment_bytes=16384))
    world.open()
    for number in range(count):
        world.send(rng)
        if number % 7 == 0:
            world.flush()
        if number % checkpoint_every == checkpoint_every - 1:
            world.save()
    world.flush()
    world.kill()
    return world


@pytest.fixture(scope="module")
def whole_log() -> World:
    return written(MESSAGE_COUNT)


def cut(world: World, at: int) -> World:
    """Return a copy of ``world`` in which no byte of the log from ``at`` on was ever written."""
    disk = world.disk.copy()
    size = world.config.segment_bytes
    for name in disk.listdir("/store/commitlog"):
        path = f"/store/commitlog/{name}"
        if name.isdecimal() and int(name) + size > at:
            keep = max(0, at - int(name))
            disk.write_bytes(path, bytes(size - keep), at=keep)
    disk.remove_tree("/store/extent")  # which says that they were written
    sent = [message for message in world.sent if message.end <= at]
    return World(disk=disk, config=world.config, clock=world.clock, sent=sent)


def log_bytes(disk: SimulatedDisk) -> list[bytes]:
    names = [name for name in disk.listdir("/store/commitlog") if name.isdecimal()]
    return [disk.read_bytes(f"/store/commitlog/{name}") for name in names]


@pytest.mark.slow
def test_every_byte_by_the_scanner(whole_log: World) -> None:
    """Cut every record at each of its bytes: exactly the records before it are read."""
    segments = log_bytes(whole_log.disk)
    size = whole_log.config.segment_bytes
    cuts = 0
    for message in whole_log.sent:
        data = segments[message.position // size]
        at = message.position % size
        record = data[at : message.end - message.position + at]
        for kept in range(len(record) + 1):
            torn = record[:kept] + bytes(len(record) - kept + 100)
            found, end, verdict = scan_records(torn, 0, message.position, count_max=2)
            whole = torn.startswith(record)
            assert (len(found), end) == ((1, len(record)) if whole else (0, 0)), (message, kept)
            assert verdict == INVALID
            cuts += 1
    assert cuts > 60_000


def test_the_whole_log_is_read(whole_log: World) -> None:
    size = whole_log.config.segment_bytes
    found = []
    for number, data in enumerate(log_bytes(whole_log.disk)):
        entries, _, verdict = scan_records(data, 0, number * size, count_max=10**6)
        assert verdict in (BLANK, INVALID, MORE)
        found += [entry[0] for entry in entries]
    assert found == [message.position for message in whole_log.sent]


@pytest.mark.slow
@pytest.mark.long
def test_cuts_around_every_record_by_the_store(whole_log: World) -> None:
    """Reopen the store on logs cut before, at and after each record's end, and inside it."""
    for message in whole_log.sent[:: max(1, len(whole_log.sent) // 100)]:
        for at in {message.end - 1, message.end, message.end + 1, message.position + 50}:
            check_cut(whole_log, at)


@pytest.mark.slow
@pytest.mark.long
def test_every_byte_of_a_short_log_by_the_store() -> None:
    world = written(6)
    for at in range(world.sent[-1].end + 1):
        check_cut(world, at)


def check_cut(world: World, at: int) -> None:
    left = cut(world, at)
    expected = len(left.sent)
    left.open()
    left.check()
    assert len(left.sent) == expected, f"cut at {at}"
    left.send(random.Random(at), 2)
    left.flush()
    left.check()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("gone", [["consumequeue"], ["index"], ["consumequeue", "index"]])
def test_queues_and_index_are_rebuilt_from_the_log(gone: list[str], is_clean: bool) -> None:
    world = written(120, checkpoint_every=30)
    if is_clean:
        world.open()
        world.close()
    for name in gone:
        world.disk.remove_tree(f"/store/{name}")
    count = len(world.sent)
    world.open()
    world.check()
    assert len(world.sent) == count
    world.send(random.Random(1), 3)
    world.flush()
    world.close()
    world.open()
    world.check()


def test_a_missing_segment_does_not_hide_later_ones() -> None:
    """The start is refused; who accepts the loss keeps everything else."""
    world = written(120, checkpoint_every=30)
    names = [name for name in world.disk.listdir("/store/commitlog") if name.isdecimal()]
    assert len(names) > 2
    gone = range(int(names[1]), int(names[2]))
    world.disk.remove_tree(f"/store/commitlog/{names[1]}")
    world.disk.remove_tree("/store/consumequeue")  # so that the log is read from its start
    world.victims = {message.position for message in world.sent if message.position in gone}
    end = world.sent[-1].end
    with pytest.raises(StoreError, match=f"lacks {names[1]}.*--accept-missing-log"):
        world.open()
    world.open(accept_missing=True)
    for _ in range(2):
        assert world.running.end_position == end
        world.check()
        assert [damage[:2] for damage in world.running.damage.all()] == [(gone.start, gone.stop)]
        world.close()
        world.open()  # from now on it is known
