"""Messages are delayed, lost, repeated and reordered as asked, the same for one seed."""

from __future__ import annotations

import random
from collections import Counter

from rocketpost.testing.sim.network import MessageNetwork, NetworkFaults
from rocketpost.testing.sim.scheduler import Scheduler

NODES = range(4)


class Rig:
    """A network whose deliveries are kept in a list."""

    def __init__(self, seed: int = 1) -> None:
        self.scheduler = Scheduler()
        self.got: list[tuple[int, int, int]] = []
        self.network: MessageNetwork[int, int] = MessageNetwork(
            self.scheduler, random.Random(seed), lambda *delivery: self.got.append(delivery)
        )

    def send_all(self, count: int = 1) -> Counter[tuple[int, int]]:
        """Send numbers between all nodes, and count what arrives by direction."""
        self.got.clear()
        for number in range(count):
            for source in NODES:
                for target in NODES:
                    self.network.send(source, target, number)
        self.scheduler.run_until(self.scheduler.now_ms + 10_000)
        return Counter((source, target) for source, target, _ in self.got)


def test_a_healthy_network_delivers_each_message_once() -> None:
    counts = Rig().send_all(5)
    assert len(counts) == 16
    assert set(counts.values()) == {5}


def test_blocked_directions_lose_messages_until_they_are_healed() -> None:
    rig = Rig()
    rig.network.blocked.add((0, 1))
    assert (0, 1) not in (counts := rig.send_all())
    assert (1, 0) in counts
    rig.network.isolate(2, NODES)
    assert {pair for pair in rig.send_all() if 2 in pair} == {(2, 2)}
    rig.network.heal()
    rig.network.split([0, 1], [2, 3])
    assert len(rig.send_all()) == 8
    rig.network.heal()
    assert len(rig.send_all()) == 16


def test_a_message_under_way_arrives_although_its_link_is_blocked() -> None:
    rig = Rig()
    rig.network.send(0, 1, 7)
    rig.network.isolate(0, NODES)
    rig.scheduler.run_until(100)
    assert rig.got == [(0, 1, 7)]


def test_messages_are_lost_repeated_and_reordered() -> None:
    rig = Rig()
    rig.network.faults = NetworkFaults(drop=0.5)
    assert 600 < sum(rig.send_all(100).values()) < 1000
    rig.network.faults = NetworkFaults(duplicate=0.5)
    assert 2200 < sum(rig.send_all(100).values()) < 2600
    rig.network.faults = NetworkFaults(slow=0.3)
    rig.send_all(100)
    numbers = [number for _, _, number in rig.got]
    assert numbers != sorted(numbers)


def test_a_seed_decides_everything() -> None:
    runs = []
    for seed in (7, 7, 8):
        rig = Rig(seed)
        rig.network.faults = NetworkFaults(drop=0.2, duplicate=0.2, slow=0.2)
        rig.send_all(20)
        runs.append(list(rig.got))
    assert runs[0] == runs[1] != runs[2]
