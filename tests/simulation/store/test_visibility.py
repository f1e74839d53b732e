"""Power cuts of a store that is opened with a ceiling."""

from __future__ import annotations

import random
from typing import Any

from rocketpost.model.ids import Position
from rocketpost.store.message_store import MessageStore
from rocketpost.testing.sim.disk import SimulatedDisk

from .world import FOREVER, Clock, PowerCut, World, small


def opened(disk: SimulatedDisk, ceiling: int | None) -> MessageStore:
    return MessageStore.open_blocking(
        small(),
        clock=Clock(),
        files=disk,
        ceiling=None if ceiling is None else Position(ceiling),
        on_durable=lambda position: None,
    )


def shown(store: MessageStore) -> dict[Any, list[Any]]:
    found = {
        (queue.topic, queue.queue_id): [queue.entry(at) for at in range(queue.first, queue.end)]
        for queue in store.queues
    }
    return {place: entries for place, entries in found.items() if entries}


def below(full: dict[Any, list[Any]], ceiling: int) -> dict[Any, list[Any]]:
    found = {
        place: [entry for entry in entries if entry[0] + entry[1] <= ceiling]
        for place, entries in full.items()
    }
    return {place: entries for place, entries in found.items() if entries}


def test_a_ceiling_holds_whatever_the_disk_forgets(seed: int, rng: random.Random) -> None:
    world = World()
    world.open()
    for _ in range(10):
        world.send(rng, 4)
        if rng.random() < 0.3:
            world.save()
    world.flush()
    store, disk = world.running, world.disk
    full, end = shown(store), store.end_position
    keys = [(message.topic, message.key, message.position) for message in world.sent]
    for _ in range(6):
        ceiling = rng.randrange(end + 100)
        disk = disk.after_power_cut(rng)
        stop = disk.calls + rng.randrange(10, 400)

        def fault(number: int, _name: str, _path: str, stop: int = stop) -> None:
            if number >= stop:
                raise PowerCut

        disk.fault = fault
        try:
            store = opened(disk, ceiling)
            disk.fault = None
            assert store.end_position == end
            assert shown(store) == below(full, ceiling)
            for topic, key, position in keys:
                found = store.find(topic, key, count_max=9, begin_ms=0, end_ms=FOREVER)
                assert (position in found) == (position < store.confirmed_position)
            disk.fault = fault
            middle = rng.randrange(ceiling, max(ceiling, end) + 1)
            store.set_ceiling(Position(middle))
            store.confirm(store.end_position)
            assert shown(store) == below(full, middle)
            store.save_blocking()
            store.close_blocking()
        except PowerCut:
            pass
        disk.fault = None
    store = opened(disk.after_power_cut(rng), None)
    assert shown(store) == full
    assert not store.damage.all()
