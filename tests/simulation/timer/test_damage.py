"""Whichever of the timer's files is lost or damaged: what waits comes once, and not early."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest

from rocketpost.model.names import TIMER_TOPIC
from rocketpost.testing.sim.disk import SimulatedDisk

from .test_timer import work
from .world import World, timer_config

ROOT: Final = "/store"
WHEEL: Final = f"{ROOT}/timerwheel"
CHECK: Final = f"{ROOT}/config/timercheck"
LOG: Final = f"{ROOT}/timerlog"
Old = dict[str, bytes]


def log_files(disk: SimulatedDisk) -> list[str]:
    return [f"{LOG}/{name}" for name in disk.listdir(LOG) if not name.endswith(".damaged")]


FILES: Final[dict[str, Callable[[SimulatedDisk], list[str]]]] = {
    "wheel": lambda disk: [WHEEL],
    "checkpoint": lambda disk: [CHECK],
    "first file of the log": lambda disk: log_files(disk)[:1],
    "last file of the log": lambda disk: log_files(disk)[-1:],
    "log": log_files,
    "journals": lambda disk: [f"{WHEEL}.journal0", f"{WHEEL}.journal1"],
    "journal 0": lambda disk: [f"{WHEEL}.journal0"],
    "wheel and log": lambda disk: [WHEEL, *log_files(disk)],
    "checkpoint and log": lambda disk: [CHECK, *log_files(disk)],
    "all": lambda disk: [
        CHECK, WHEEL, f"{WHEEL}.journal0", f"{WHEEL}.journal1", *log_files(disk)
    ],
}  # fmt: skip


def delete(disk: SimulatedDisk, path: str, rng: random.Random, old: Old) -> None:
    disk.unlink(path)


def zero(disk: SimulatedDisk, path: str, rng: random.Random, old: Old) -> None:
    replace(disk, path, bytes(len(disk.read_bytes(path))))


def cut(disk: SimulatedDisk, path: str, rng: random.Random, old: Old) -> None:
    data = disk.read_bytes(path)
    replace(disk, path, data[: rng.randrange(max(1, len(data)))])


def scramble(disk: SimulatedDisk, path: str, rng: random.Random, old: Old) -> None:
    replace(disk, path, rng.randbytes(len(disk.read_bytes(path))))


def flip(disk: SimulatedDisk, path: str, rng: random.Random, old: Old) -> None:
    data = bytearray(disk.read_bytes(path))
    used = [at for at, byte in enumerate(data) if byte]
    if used:
        data[rng.choice(used)] ^= 1 << rng.randrange(8)
        replace(disk, path, bytes(data))


def restore(disk: SimulatedDisk, path: str, rng: random.Random, old: Old) -> None:
    if path in old:
        replace(disk, path, old[path])


def replace(disk: SimulatedDisk, path: str, data: bytes) -> None:
    fd = disk.open(path, write=True)
    disk.ftruncate(fd, len(data))
    disk.close(fd)
    disk.write_bytes(path, data)


DAMAGES: Final = [delete, zero, cut, scramble, flip, restore]


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_rebuilt(
    name: str,
    damage: Callable[[SimulatedDisk, str, random.Random, Old], None],
    is_clean: bool,
) -> None:
    rng = random.Random(f"{name} {damage.__name__} {is_clean}")
    world = World()
    world.open()
    work(world, rng, 15)
    world.save()
    paths = [CHECK, WHEEL, f"{WHEEL}.journal0", f"{WHEEL}.journal1", *log_files(world.disk)]
    old = {path: world.disk.read_bytes(path) for path in paths}
    work(world, rng, 15)
    for _ in range(3):
        world.send(rng, 100_000)
        world.send(rng, 3)
    world.serve()
    if is_clean:
        world.close()
    else:
        world.kill()
    for path in FILES[name](world.disk):
        damage(world.disk, path, rng, old)

    world.open()
    count_before = _timer_topic_count(world)
    world.serve()
    world.judge(is_over=False)
    assert _timer_topic_count(world) <= 2 * count_before  # what rolls is stored again, once
    world.close()
    world.open()  # what was made anew is good from then on
    assert world.timers.rebuilt_because is None
    world.finish()
    world.judge(is_over=True)


@pytest.mark.parametrize("path", [LOG, WHEEL])
def test_without_an_index_a_checkpoint_says_what_was_delivered(
    path: str, rng: random.Random
) -> None:
    world = World(config=timer_config(index_enabled=False))
    world.open()
    for delay_ms in (5, 50, 20_000, 40_000):
        world.send(rng, delay_ms)
    world.clock.ms += 1000
    world.serve()
    world.close()
    world.disk.remove_tree(path)
    world.open()
    assert world.timers.rebuilt_because is not None
    world.finish()
    world.judge(is_over=True)


def _timer_topic_count(world: World) -> int:
    queue = world.running.queue(TIMER_TOPIC, 0)
    return 0 if queue is None else int(queue.end)
