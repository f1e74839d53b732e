"""Whatever stops a broker: timed messages come once, not early, and not if they were recalled."""

from __future__ import annotations

import random

from rocketpost.store.config import FlushMode
from rocketpost.store.draft import Draft

from .world import BORN, HOST, PowerCut, World, timer_config


def work(world: World, rng: random.Random, rounds: int) -> None:
    """Do what a broker with a timer does all day, in an order that the seed chooses."""
    for _ in range(rounds):
        match rng.randrange(18):
            case 0 | 1 | 2 | 3 | 4:
                for _ in range(rng.choice([1, 1, 3, 10])):
                    world.send(rng, rng.choice([1, 3, 9, 10, 11, 50, 200, 900, 2500]))
            case 5 | 6 | 7 | 8:
                world.clock.ms += rng.choice([0, 1, 5, 10, 30, 100])
                world.serve(rng, rng.choice([1, 3, 100]))
            case 9 | 10 | 11:
                world.save()
            case 12 | 13:
                waiting = [each for each in world.sent.values() if each.handle]
                if waiting:
                    world.recall(rng.choice(waiting))
            case 14:
                world.clock.ms += rng.choice([100, 400, 1500, 7000])
            case 15:
                world.clock.ms -= rng.choice([1, 10, 100, 500])
            case 16 | 17:
                world.vacate(rng, rng.randrange(int(world.running.end_position) + 1))


def stop(world: World, rng: random.Random) -> None:
    if rng.random() < 0.3:
        world.close()
    elif rng.random() < 0.5:
        world.kill()
    else:
        world.lose_power(rng)


def test_stops_between_calls(seed: int, rng: random.Random) -> None:
    world = World()
    for _ in range(6):
        world.open()
        work(world, rng, rng.randrange(25))
        world.judge(is_over=False)
        stop(world, rng)
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_what_waits_is_moved_and_comes_once(rng: random.Random) -> None:
    world = World()
    world.open()
    timed = [world.send(rng, 50 + 7 * number) for number in range(40)]
    world.recall(timed[20])
    world.serve()
    world.clock.ms += 60
    world.serve()
    end = int(world.running.end_position)
    assert world.waits_before(end)
    while not world.vacate(rng, end):
        world.clock.ms += 10
        world.serve()
    assert not world.waits_before(end)
    assert world.moving.moved > 20
    world.save()
    world.kill()
    world.open()
    assert not world.waits_before(end)
    world.finish()
    world.judge(is_over=True)


def test_messages_that_a_long_wake_up_stores_together(rng: random.Random) -> None:
    world = World()
    world.open()
    timed = world.send(rng, 15)
    world.serve()
    world.clock.ms += 14
    plain = Draft("T2", 0, 0, 0, world.clock.ms, BORN, HOST, 0, 0, b"", b"", 0, ())
    world.running.append(plain)  # all that is stored with this one has its store time
    world.clock.ms += 5
    world.serve()
    assert not world.delivered()
    world.running.commit()
    world.serve()
    [record] = world.delivered()
    assert record.store_ms >= timed.due_ms


def test_power_cuts_inside_calls(seed: int, rng: random.Random) -> None:
    world = World()
    for _ in range(8):
        call = world.disk.calls + rng.randrange(1, 700)

        def fault(number: int, _name: str, _path: str, call: int = call) -> None:
            if number >= call:
                raise PowerCut

        world.disk.fault = fault
        try:
            world.open()
            work(world, rng, 60)
            world.close()
        except PowerCut:
            world.disk.fault = None
        world.lose_power(rng)
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_kills_of_a_broker_that_does_not_wait_for_the_disk(seed: int, rng: random.Random) -> None:
    world = World(config=timer_config(flush_mode=FlushMode.ASYNC_FLUSH))
    for _ in range(8):
        world.open()
        work(world, rng, rng.randrange(30))
        world.kill()
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_the_precision_may_change_between_starts(seed: int, rng: random.Random) -> None:
    world = World()
    for precision_ms in (10, 25, 1, 10):
        world.config = timer_config(timer_precision_ms=precision_ms)
        world.open()
        work(world, rng, 20)
        stop(world, rng)
    world.open()
    world.finish()
    world.judge(is_over=True)
