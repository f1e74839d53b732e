"""A shortage of room or of descriptors passes, and the store goes on without a restart."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest

from rocketpost.errors import StoreError
from rocketpost.testing.sim.disk import Fault

from .world import World, small

PLACES = ["", "consumequeue", "commitlog", "index", "config", "extent", "checkpoint"]


def shortage(kind: str, rng: random.Random) -> Fault:
    """Fail some calls, or all, of those that need what is short, in a place of the store."""
    codes = (errno.ENOSPC, errno.EDQUOT) if kind == "room" else (errno.EMFILE, errno.ENFILE)
    calls = ("pwrite", "mkdir") if kind == "room" else ("open", "fsync_dir")
    code, place, chance = rng.choice(codes), rng.choice(PLACES), rng.choice([0.05, 0.3, 1.0])

    def fault(_number: int, name: str, path: str) -> int | None:
        is_new = kind == "room" and name == "open" and "allocating" in path
        needs = (name in calls or is_new) and place in path
        return code if needs and rng.random() < chance else None

    return fault


def work(world: World, rng: random.Random) -> None:
    """Do something that may fail, as the server and the threads of the store do."""
    with contextlib.suppress(StoreError, OSError):
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                world.send(rng, rng.choice([1, 5, 20]))
            case 4 | 5:
                world.flush()
            case 6 | 7:
                world.running._checkpointer._save_or_report()
            case 8:
                world.clean()
            case 9:
                world.delete(f"topic{rng.randrange(2)}")


@pytest.mark.parametrize("kind", ["room", "descriptors"])
def test_a_shortage_that_is_over_needs_no_restart(seed: int, rng: random.Random, kind: str) -> None:
    world = World(config=small(queue_file_bytes=rng.choice([60, 400])))
    world.open()
    store = world.running
    for _ in range(4):
        world.disk.fault = shortage(kind, rng)
        for _ in range(rng.randrange(5, 40)):
            work(world, rng)
        world.disk.fault = None
        store._checkpointer._step()
        store.check_writable()
        world.send(rng, 5)
        world.flush()
        world.save()
        world.clean()
        world.check()
    world.kill() if rng.random() < 0.5 else world.lose_power(rng)
    world.open()
    world.check()
