"""A call of the disk fails: the error is told, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable

import pytest

from rocketpost.errors import StoreError
from rocketpost.testing.sim.disk import Fault

from .world import World, formatted, small

CHANGING = frozenset(
    ["pwrite", "fdatasync", "fsync_dir", "rename", "fallocate", "ftruncate", "unlink", "mkdir"]
)


def scenario(world: World) -> list[str]:
    """Produce over several segments, flush, save, clean; go on after errors and return them."""
    rng = random.Random(3)
    errors: list[str] = []

    def attempt(action: Callable[[], object], *allowed: type[Exception]) -> None:
        try:
            action()
        except (StoreError, *allowed) as error:
            errors.append(str(error))

    # What waits for the disk may tell of it as it is; what the loop calls may not.
    attempt(world.open, OSError)
    if world.store is None:
        return errors
    for number in range(40):
        attempt(lambda: world.send(rng, 2))
        if number % 3 == 0:
            attempt(world.flush)
        if number % 10 == 9:
            attempt(world.save, OSError)
    attempt(world.clean, OSError)
    attempt(lambda: world.send(rng, 3))
    attempt(world.flush)
    if world.running.broken:
        errors.append(world.running.why_not_writable or "")
    attempt(world.close, OSError)
    return errors


def nth(number: int, code: int, *, lasting: bool) -> Fault:
    """Fail the Nth changing call, or every one from it on."""
    seen = 0

    def fault(_number: int, name: str, _path: str) -> int | None:
        nonlocal seen
        if name not in CHANGING:
            return None
        seen += 1
        return code if seen == number or (lasting and seen > number) else None

    return fault


def fault_free_calls() -> int:
    world = World(config=small())
    calls = world.disk.log = []
    assert scenario(world) == []
    return sum(name in CHANGING for name, _ in calls)


@pytest.mark.slow
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_any_call_may_fail(code: int, lasting: bool) -> None:
    total = fault_free_calls()
    assert total > 100
    for number in range(1, total + 1):
        check_fault(nth(number, code, lasting=lasting), f"call {number} of {total}")


def check_fault(fault: Fault, name: str) -> None:
    rng = random.Random(name)
    world = World(disk=formatted(fault=fault), config=small())
    errors = scenario(world)
    assert all(errors), f"an error without words, {name}"
    world.disk.fault = None
    if rng.random() < 0.5:
        world.kill()
    else:
        world.lose_power(rng)
    try:
        world.open()
        world.check()
        world.send(rng, 2)
        world.flush()
        world.close()
        world.open()
        world.check()
    except BaseException as error:
        error.add_note(f"after a fault at {name}")
        raise


@pytest.mark.parametrize("room", range(30_000, 70_000, 5_000))
def test_a_full_disk_refuses_and_keeps_what_it_took(room: int) -> None:
    rng = random.Random(room)
    world = World(disk=formatted(capacity=room), config=small())
    refusals = 0
    try:
        world.open()
    except (StoreError, OSError):
        return
    for _ in range(60):
        refusals += refused(lambda: world.send(rng, 3))
        refusals += refused(world.flush)
    assert refusals
    kept = len(world.sent)
    world.disk.capacity = 2**40
    world.lose_power(rng)
    world.open()
    world.check()
    assert len(world.sent) == kept
    world.send(rng, 3)
    world.flush()


def refused(action: Callable[[], None]) -> bool:
    try:
        action()
    except StoreError:
        return True
    return False
