"""A follower that is stopped at any file operation keeps a prefix of its leader's log."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from rocketpost.kernel.record_scan import record_starts
from rocketpost.model.ids import Position
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.sim.disk import SimulatedDisk

from .world import Clock, PowerCut, World, formatted, small

Chunk = tuple[Position, bytes]


def leader_log(rng: random.Random) -> tuple[bytes, dict[Any, bytes]]:
    """Return a leader's log of several segments, and its queues."""
    world = World()
    store = world.open()
    while store.end_position < 2.5 * store.config.segment_bytes:
        world.send(rng, 3)
    world.flush()
    log = b"".join(
        bytes(segment.view()[: store.end_position - segment.start])
        for segment in store.segments.all()
    )
    return log, shown(store)


def shown(store: MessageStore) -> dict[Any, bytes]:
    found = {(queue.topic, queue.queue_id): queue.read(0, 10**6) for queue in store.queues}
    return {place: entries for place, entries in found.items() if entries}


def chunks(log: bytes, begin: int = 0) -> list[Chunk]:
    """Return a leader's log in chunks of a few records each."""
    size = small().segment_bytes
    found: list[Chunk] = []
    while begin < len(log):
        segment_end = min(begin - begin % size + size, len(log))
        starts, end = record_starts(log[:segment_end], begin, count_max=5, bytes_max=10**9)
        if len(starts) < 5:  # the last ones, with the filler
            end = segment_end
        found.append((Position(begin), log[begin:end]))
        begin = end
    return found


class Follower:
    """A follower's store, as the last stop left it."""

    def __init__(self, log: bytes) -> None:
        self.log = log
        self.disk = formatted()
        self.durable = 0
        self.store: MessageStore | None = None

    def open(self) -> MessageStore:
        self.store = MessageStore.open_blocking(
            small(), clock=Clock(), files=self.disk, on_durable=self._note
        )
        return self.store

    def _note(self, position: Position) -> None:
        self.durable = max(self.durable, position)

    def run(self) -> None:
        """Follow to the end of the leader's log."""
        store = self.open()
        for count, (position, data) in enumerate(chunks(self.log, store.end_position)):
            store.append_raw(position, data)
            if count % 3 == 0:
                store._flusher.flush_blocking()
                store.confirm(Position(self.durable))
            if count % 7 == 3:
                store.save_blocking()
        store.close_blocking()

    def stop(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.store = None

    def check(self) -> None:
        """Check that the log is a prefix of the leader's that ends between two records."""
        store = self.open()
        end = store.end_position
        assert self.durable <= end
        assert not store.damage.all()
        kept = b"".join(
            bytes(segment.view()[: max(0, end - segment.start)]) for segment in store.segments.all()
        )
        assert kept == self.log[:end]
        for position, data in chunks(self.log, end):
            store.append_raw(position, data)
        store._flusher.flush_blocking()
        store.confirm(store.end_position)
        store.close_blocking()


def stop_at(log: bytes, queues: dict[Any, bytes], call: int, rng: random.Random | None) -> bool:
    """Stop a follower at a file operation and let it go on; False if it had come to its end."""
    follower = Follower(log)

    def fault(number: int, _name: str, _path: str) -> None:
        if number >= call:
            raise PowerCut

    follower.disk.fault = fault
    try:
        follower.run()
    except PowerCut:
        is_cut = True
    else:
        is_cut = False
    follower.disk.fault = None
    disk = follower.disk
    follower.stop(disk.after_kill() if rng is None else disk.after_power_cut(rng))
    follower.check()
    assert shown(follower.open()) == queues
    return is_cut


def stops(log: bytes, queues: dict[Any, bytes], step: int, rng: random.Random | None) -> int:
    first = step if rng is None else rng.randrange(1, step + 1)
    for call in itertools.count(first, step):
        if not stop_at(log, queues, call, rng):
            return call
    raise AssertionError


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_follower_stopped_now_and_then(seed: int, rng: random.Random, how: str) -> None:
    log, queues = leader_log(rng)
    assert stops(log, queues, 29, rng if how == "power" else None) > 200


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_follower_stopped_at_every_operation(seed: int, rng: random.Random, how: str) -> None:
    log, queues = leader_log(rng)
    stops(log, queues, 1, rng if how == "power" else None)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_log_that_begins_late_and_was_never_flushed(
    seed: int, rng: random.Random, how: str
) -> None:
    """The store opens again: no older segment is missed, and the log goes on where it ended."""
    log, _ = leader_log(rng)
    follower = Follower(log)
    store = follower.open()
    first = store.config.segment_bytes
    parts = chunks(log, first)
    for position, data in parts[: rng.randrange(1, 4)]:
        store.append_raw(position, data)
    disk = follower.disk
    follower.stop(disk.after_kill() if how == "kill" else disk.after_power_cut(rng))
    store = follower.open()
    assert store.first_position in (first, 0)  # the name of its only segment may be lost
    assert store.end_position in (0, *(position for position, _ in chunks_at_records(log, first)))
    if store.first_position:
        store.append_raw(store.end_position, rest_of_segment(log, store.end_position))


def chunks_at_records(log: bytes, begin: int) -> list[Chunk]:
    """Return every record of a leader's log from a position on."""
    found = []
    for position, data in chunks(log, begin):
        starts, _ = record_starts(data, 0, count_max=10**6, bytes_max=10**9)
        found += [(Position(position + at), b"") for at in starts]
    return found


def rest_of_segment(log: bytes, position: int) -> bytes:
    size = small().segment_bytes
    return log[position : min(position - position % size + size, len(log))]
