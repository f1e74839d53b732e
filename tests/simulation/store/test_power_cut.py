"""Whatever the disk forgets, acknowledged messages come back unaltered, in order."""

from __future__ import annotations

import random

from rocketpost.store.config import FlushMode

from .world import PowerCut, World, small


def work(world: World, rng: random.Random, rounds: int, *, deletes: bool = True) -> None:
    """Do what a broker does all day, in an order that the seed chooses."""
    for _ in range(rounds):
        match rng.randrange(16 if deletes else 15):
            case 0 | 1 | 2 | 3 | 4 | 5 | 6:
                world.send(rng, rng.choice([1, 1, 2, 5, 20]))
            case 7 | 8 | 9 | 10:
                world.flush()
            case 11 | 12 | 13:
                world.save()
            case 14:
                world.clean()
            case 15:
                world.delete(f"topic{rng.randrange(2)}")


def cut_at(world: World, call: int) -> None:
    def fault(number: int, _name: str, _path: str) -> None:
        if number >= call:
            raise PowerCut

    world.disk.fault = fault


def cuts_between_calls(world: World, rng: random.Random, *, deletes: bool = True) -> None:
    for _ in range(8):
        world.open()
        world.check()
        work(world, rng, rng.randrange(12), deletes=deletes)
        if rng.random() < 0.2:
            world.kill()
        elif rng.random() < 0.2:
            world.close()
            world.disk = world.disk.after_power_cut(rng)
        else:
            world.lose_power(rng)
    world.open()
    world.check()


def cuts_inside_calls(world: World, rng: random.Random, *, deletes: bool = True) -> None:
    for _ in range(12):
        cut_at(world, world.disk.calls + rng.randrange(1, 250))
        try:
            world.open()
            world.check()
            work(world, rng, 30, deletes=deletes)
            world.close()
        except PowerCut:
            world.disk.fault = None
        world.lose_power(rng)
    world.open()
    world.check()


def test_power_cuts_between_calls(seed: int, rng: random.Random) -> None:
    cuts_between_calls(World(), rng)


def test_power_cuts_inside_calls(seed: int, rng: random.Random) -> None:
    cuts_inside_calls(World(), rng)


def test_power_cuts_without_acknowledgement_waiting_for_the_disk(
    seed: int, rng: random.Random
) -> None:
    """Under ASYNC_FLUSH messages may be lost, but what comes back is a whole prefix."""
    world = World(config=small(flush_mode=FlushMode.ASYNC_FLUSH))
    for _ in range(8):
        world.open()
        world.check()
        work(world, rng, rng.randrange(12), deletes=False)
        world.lose_power(rng)
        for message in world.sent:
            message.is_seen = False  # it was shown before it was durable, as the mode has it
    world.open()
    world.check()


def test_a_clean_stop_loses_nothing(seed: int, rng: random.Random) -> None:
    world = World()
    world.open()
    work(world, rng, 30)
    sent = len(world.sent)
    world.close()
    assert world.disk.descriptor_count == 0
    world.disk = world.disk.after_power_cut(rng, keep=0.0)
    world.open()
    world.check()
    assert len(world.sent) == sent
