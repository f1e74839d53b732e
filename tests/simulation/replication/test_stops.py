"""Master or slave is stopped at any of its file operations while a slave catches up."""

from __future__ import annotations

import itertools
import random

import pytest

from ..store.world import PowerCut
from .group import Group
from .nodes import Master, Slave


def stop_once(victim: str, call: int, seed: int, *, with_power: bool) -> bool:
    """Stop a node at a file operation, and go on; False if it had come to its end."""
    rng = random.Random(seed)
    group = Group(rng, batch_bytes=700, window_bytes=4000)
    node: Master | Slave = group.master if victim == "master" else group.ours[0]
    disk = node.world.disk if isinstance(node, Master) else node.disk
    first = disk.calls

    def fault(number: int, _name: str, _path: str) -> None:
        if number >= first + call:
            raise PowerCut

    disk.fault = fault
    try:
        work(group, rng)
    except PowerCut:
        is_stopped = True
    else:
        is_stopped = False
    disk.fault = None
    group.stop(node, with_power=with_power)
    group.heal()
    group.lose_master()
    return is_stopped


def work(group: Group, rng: random.Random) -> None:
    slave = group.ours[0]
    for number in range(24):
        group.master.world.send(rng, 3)
        if number % 2:
            group.flush_master()
        if slave.link is None:
            group.connect(slave)
            assert slave.link is not None
            slave.link.speed = slave.link.down.capacity = 3000
        group.pump_master()
        slave.pump(group.now_ms, rng)
        if number % 3 == 0:
            slave.flush()
        if number % 7 == 3:
            group.save()
        group.check()


def sweep(victim: str, step: int, seed: int, *, with_power: bool) -> int:
    for call in itertools.count(step, step):
        if not stop_once(victim, call, seed, with_power=with_power):
            return call
    raise AssertionError


@pytest.mark.parametrize("victim", ["master", "slave"])
@pytest.mark.parametrize("with_power", [True, False])
def test_stops_at_some_operations(victim: str, with_power: bool) -> None:
    assert sweep(victim, 13, 1, with_power=with_power) > 100


@pytest.mark.long
@pytest.mark.parametrize("victim", ["master", "slave"])
@pytest.mark.parametrize("with_power", [True, False])
def test_stops_at_every_operation(victim: str, with_power: bool, seed: int) -> None:
    sweep(victim, 1, seed, with_power=with_power)
