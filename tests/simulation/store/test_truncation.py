"""A cut of the log that is stopped at any file operation leaves the old end or the new one."""

from __future__ import annotations

import contextlib
import itertools
import random
from typing import Any

import pytest

from rocketpost.errors import StoreBroken, StoreError
from rocketpost.kernel.record_scan import record_starts
from rocketpost.model.ids import Position
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.sim.disk import SimulatedDisk

from .world import FOREVER, Clock, PowerCut, World, small

State = dict[tuple[str, int], list[tuple[int, int, int]]]


class Story:
    """A store with a history, and what it must show with either end."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        world = self._build()
        store = world.running
        self.old_end = store.end_position
        self.keys = [(message.topic, message.key, message.position) for message in world.sent]
        self.is_seen = self.old_end == store.confirmed_position
        low = 0 if self.is_seen else store.confirmed_position
        places = [place for place in borders(store) if low <= place < self.old_end]
        self.position = random.Random(seed).choice(places)
        self.states = {
            end: {
                (queue.topic, queue.queue_id): kept
                for queue in self._all_visible(store)
                if (kept := [entry for entry in entries_of(queue) if entry[0] < end])
            }
            for end in (self.old_end, self.position)
        }

    @staticmethod
    def _all_visible(store: MessageStore) -> list[Any]:
        store.confirm(store.end_position)
        return list(store.queues)

    def _build(self) -> World:
        """Return a world as it stands before the cut; the same each time."""
        rng = random.Random(self.seed)
        world = World()
        world.open()
        for _ in range(rng.randrange(6, 14)):
            world.send(rng, rng.choice([1, 3, 8]))
            if rng.random() < 0.6:
                world.flush()
            if rng.random() < 0.4:
                world.save()
        world.running._flusher.flush_blocking()  # a power cut may take nothing by itself
        if rng.random() < 0.5:
            world.hear()
        return world

    def run(self, call: int | None, rng: random.Random | None, *, again: int | None = None) -> bool:
        """Cut the log, stopped at a call; False if it was done before that.

        Args:
            call: Number of the file operation that is not done any more; None if all are.
            rng: Chooses what a power cut leaves; None for a kill.
            again: The same for the start that follows.
        """
        world = self._build()
        disk = world.disk
        is_done = _runs(disk, call, lambda: self._cut(world.running))
        disk = _stop(disk, rng)
        if again is not None:
            _runs(disk, again, lambda: _open(disk).close_blocking())
            disk = _stop(disk, rng)
        self._check(disk, is_done)
        return not is_done

    def _cut(self, store: MessageStore) -> None:
        store.truncate_to_blocking(Position(self.position), below_confirmed=self.is_seen)

    def _check(self, disk: SimulatedDisk, is_done: bool) -> None:
        store = _open(disk)
        end = store.end_position
        allowed = [self.position] if is_done else [self.position, self.old_end]
        assert end in allowed, f"the log ends at {end}"
        assert not store.damage.all()
        self._check_state(store, end)
        world = World(disk=disk, count=9_000)
        world.store = store
        rng = random.Random(self.seed)
        world.send(rng, 30)
        store._flusher.flush_blocking()
        store.confirm(store.end_position)
        for queue in store.queues:
            assert queue.end == queue.next_offset
        before = {(queue.topic, queue.queue_id): entries_of(queue) for queue in store.queues}
        # A power cut now must not bring back what was cut off.
        store = _open(disk.after_power_cut(rng))
        after = {(queue.topic, queue.queue_id): entries_of(queue) for queue in store.queues}
        assert after == before
        assert not store.damage.all()
        for message in world.sent:
            found = store.find(message.topic, message.key, count_max=9, begin_ms=0, end_ms=FOREVER)
            assert message.position in found

    def _check_state(self, store: MessageStore, end: int) -> None:
        shown = {(queue.topic, queue.queue_id): entries_of(queue) for queue in store.queues}
        assert {place: entries for place, entries in shown.items() if entries} == self.states[end]
        for queue in store.queues:
            assert queue.next_offset == queue.end
        for topic, key, position in self.keys:
            found = store.find(topic, key, count_max=9, begin_ms=0, end_ms=FOREVER)
            assert (position in found) == (position < end)
            assert not [each for each in found if each >= end]


def entries_of(queue: Any) -> list[tuple[int, int, int]]:
    return [queue.entry(offset) for offset in range(queue.first, queue.end)]


def borders(store: MessageStore) -> list[int]:
    found = []
    for segment in store.segments.all():
        starts, end = record_starts(segment.view(), 0, count_max=10**6, bytes_max=10**9)
        found += [segment.start + at for at in [*starts, end]]
    return found


def _open(disk: SimulatedDisk) -> MessageStore:
    return MessageStore.open_blocking(
        small(), clock=Clock(), files=disk, on_durable=lambda position: None
    )


def _runs(disk: SimulatedDisk, call: int | None, work: Any) -> bool:
    """Do something until a call is reached; True if it came to its end."""
    stop = None if call is None else disk.calls + call

    def fault(number: int, _name: str, _path: str) -> None:
        if stop is not None and number >= stop:
            raise PowerCut

    disk.fault = fault
    try:
        work()
    except PowerCut:
        return False
    finally:
        disk.fault = None
    return True


def _stop(disk: SimulatedDisk, rng: random.Random | None) -> SimulatedDisk:
    return disk.after_kill() if rng is None else disk.after_power_cut(rng)


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_cut_stopped_now_and_then(seed: int, rng: random.Random, how: str) -> None:
    story = Story(seed)
    chance = rng if how == "power" else None
    assert not story.run(None, chance)
    for call in itertools.count(rng.randrange(1, 12), 12):
        if not story.run(call, chance):
            break


@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_start_that_finishes_a_cut_may_be_stopped_too(
    seed: int, rng: random.Random, how: str
) -> None:
    story = Story(seed)
    chance = rng if how == "power" else None
    for _ in range(3):
        story.run(rng.randrange(1, 40), chance, again=rng.randrange(1, 80))


@pytest.mark.long
@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_cut_stopped_at_every_operation(seed: int, rng: random.Random, how: str) -> None:
    story = Story(seed)
    chance = rng if how == "power" else None
    for call in itertools.count(1):
        if not story.run(call, chance):
            break
        story.run(call, chance, again=rng.randrange(1, 80))


def test_a_full_disk_or_a_bad_one_breaks_the_store_at_most(seed: int, rng: random.Random) -> None:
    """After an operation that failed, the next start has one of the two ends."""
    story = Story(seed)
    for code in (5, 28):
        world = story._build()
        disk = world.disk
        failing = disk.calls + rng.randrange(1, 40)
        disk.fault = lambda number, name, path, at=failing, code=code: (
            code if number == at else None
        )
        is_done = False
        with contextlib.suppress(StoreError):
            story._cut(world.running)
            is_done = True
        disk.fault = None
        story._check(disk.after_kill(), is_done=is_done)


def test_bytes_that_cannot_be_erased_are_an_error(seed: int) -> None:
    """Nobody is told that the log was cut while the old bytes are still in its file."""
    story = Story(seed)
    world = story._build()
    disk = world.disk
    disk.fault = lambda number, name, path: (
        5 if name == "ftruncate" and path.startswith("/store/commitlog/") else None
    )
    with pytest.raises(StoreBroken):
        story._cut(world.running)
    disk.fault = None
    story._check(disk.after_kill(), is_done=True)  # by the start
