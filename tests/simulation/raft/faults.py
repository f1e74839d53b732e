"""Faults of a group: each does one thing to nodes, disks, clocks or the network.

A schedule takes a few kinds at random, so that some schedules are full of partitions and others of
power cuts. Every choice is the seed's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketpost.raft.config import TICK_MS
from rocketpost.testing.sim.network import NetworkFaults

if TYPE_CHECKING:
    from .group import Group

Fault = Callable[["Group"], None]


def lossy(group: Group) -> None:
    """Lose, repeat and delay a share of all messages."""
    chance = group.rng.random
    group.network.faults = NetworkFaults(
        drop=chance() * 0.3 if chance() < 0.6 else 0.0,
        duplicate=chance() * 0.3 if chance() < 0.4 else 0.0,
        slow=chance() * 0.3 if chance() < 0.6 else 0.0,
        delay_ms=group.rng.choice([2, 10, 60]),
        slow_ms=group.rng.choice([100, 600, 2000]),
    )


def isolate(group: Group) -> None:
    """Cut a node off, the leader more often than not."""
    node = group.target()
    group.network.isolate(node, group.servers)
    group.note("network", "isolates %s", node)
    group.later(group.outage_ms, reconnect, group)


def cut_one_way(group: Group) -> None:
    """Lose everything that a node sends to some others, or that it would receive from them."""
    node = group.target()
    others = [other for other in group.servers if other != node and group.rng.random() < 0.7]
    outward = group.rng.random() < 0.5
    pairs = {(node, other) if outward else (other, node) for other in others}
    group.network.blocked |= pairs
    group.note("network", "blocks %s", sorted(pairs))
    group.later(group.outage_ms, reconnect, group)


def split(group: Group) -> None:
    """Divide the nodes into two sets."""
    nodes = list(group.servers)
    group.rng.shuffle(nodes)
    at = group.rng.randint(1, len(nodes) - 1)
    group.network.split(nodes[:at], nodes[at:])
    group.note("network", "splits %s from %s", nodes[:at], nodes[at:])
    group.later(group.outage_ms, reconnect, group)


def strand(group: Group) -> None:
    """Leave a leader one follower for a moment, then none, so that few have its last bytes."""
    leader = group.leader()
    if leader is None:
        return
    others = [other for other in group.servers if other != leader.name]
    last = group.rng.choice(others)
    group.network.blocked = set()
    for other in others:
        delay_ms = int(group.rng.random() * 400) if other == last else 0
        group.later(delay_ms, cut, group, leader.name, other)


def cut(group: Group, one: str, other: str) -> None:
    group.network.blocked |= {(one, other), (other, one)}
    group.note("network", "cuts %s from %s", one, other)


def bridge(group: Group) -> None:
    """Leave two halves of the group with one node that sees both."""
    nodes = list(group.servers)
    group.rng.shuffle(nodes)
    middle = (len(nodes) + 1) // 2
    group.network.split(nodes[1:middle], nodes[middle:])
    group.note("network", "splits all but %s", nodes[0])
    group.later(group.outage_ms, reconnect, group)


def flap(group: Group) -> None:
    """Cut one link and restore it, several times."""
    one, other = group.rng.sample(list(group.servers), 2)
    flip(group, one, other, group.rng.randint(2, 8))


def flip(group: Group, one: str, other: str, left: int) -> None:
    pairs = {(one, other), (other, one)}
    if left % 2:
        group.network.blocked -= pairs
    else:
        group.network.blocked |= pairs
    if left > 0:
        group.later(200, flip, group, one, other, left - 1)
    else:
        group.network.blocked -= pairs


def reconnect(group: Group) -> None:
    group.network.blocked.clear()
    group.note("network", "is whole again")


def lose_link(group: Group) -> None:
    """Tell a node that its link to another one was lost, and made again."""
    one, other = group.rng.sample(list(group.servers), 2)
    group.servers[one].lose_link(other)


def kill(group: Group) -> None:
    """Kill a process; its written bytes stay."""
    stop(group, group.target(), power=False)


def cut_power(group: Group) -> None:
    """Cut the power of a node, which loses what is not durable."""
    stop(group, group.target(), power=not group.is_async)


def cut_all_power(group: Group) -> None:
    for node in list(group.servers):
        stop(group, node, power=not group.is_async)


def stop(group: Group, node: str, *, power: bool) -> None:
    server = group.servers[node]
    if server.is_up:
        server.stop(power=power)
        group.later(group.outage_ms, server.start_if_down)


def freeze(group: Group) -> None:
    """Stop a process for a while; messages wait for it."""
    node = group.target()
    span_ms = 1 + int(group.rng.random() * group.outage_ms)
    group.servers[node].frozen_until_ms = group.scheduler.now_ms + span_ms
    group.note(node, "is frozen for %s ms", span_ms)


def change_clock(group: Group) -> None:
    """Let the clock of a node be faster or slower from now on."""
    server = group.servers[group.target()]
    server.tick_ms = group.rng.choice([TICK_MS * 2 // 3, TICK_MS, TICK_MS, TICK_MS * 3 // 2])
    group.note(server.name, "ticks every %s ms", server.tick_ms)


def step_clock(group: Group) -> None:
    """Let a node make up for many ticks at once, as after a stall."""
    server = group.servers[group.target()]
    count = group.rng.choice([2, 5, 12, 30])
    group.note(server.name, "makes up for %s ticks", count)
    for _ in range(count):
        server.tick()


def slow_disk(group: Group) -> None:
    """Change the time that the disk of a node takes to write and to sync."""
    server = group.servers[group.target()]
    server.sync_ms = group.rng.choice([2, 20, 300, 1500])
    server.write_ms = group.rng.choice([0, 0, 5, 40])
    group.note(server.name, "syncs in %s ms, writes in %s", server.sync_ms, server.write_ms)


def fail_disk(group: Group) -> None:
    """Let the disk of a node fail; it is repaired when the process is started again."""
    server = group.servers[group.target()]
    if server.is_up:
        server.fail_disk()
        group.later(group.outage_ms, stop_failed, group, server.name, server.life)


def stop_failed(group: Group, node: str, life: int) -> None:
    if group.servers[node].life == life:
        stop(group, node, power=False)


def transfer(group: Group) -> None:
    """Ask a leader to hand over to another node."""
    for server in group.leaders():
        to = group.rng.choice(list(group.servers))
        group.note(server.name, "is asked to hand over to %s", to)
        server.transfer(to)


def change_members(group: Group) -> None:
    """Ask all that lead for a change of members, as a confused administrator would."""
    for server in group.leaders():
        server.propose_change()


def damage(group: Group) -> None:
    """Let a node lose durable bytes, if all others are sound; it notices that at its start."""
    if any(server.is_suspect for server in group.servers.values()):
        return
    server = group.servers[group.target()]
    if server.is_up:
        server.stop(power=True)
        server.damage()
        group.later(group.outage_ms, server.start_if_down)


def delete_old(group: Group) -> None:
    """Let a node delete the oldest part of its log."""
    server = group.servers[group.target()]
    if server.is_up:
        server.trim()


NETWORK: tuple[Fault, ...] = (lossy, isolate, cut_one_way, split, bridge, flap, lose_link)
PROCESSES: tuple[Fault, ...] = (kill, cut_power, cut_all_power, freeze, fail_disk)
CLOCKS: tuple[Fault, ...] = (change_clock, step_clock, slow_disk)
OFFICE: tuple[Fault, ...] = (transfer, change_members)
ALL: tuple[Fault, ...] = (*NETWORK, *PROCESSES, *CLOCKS, *OFFICE, damage, delete_old)
