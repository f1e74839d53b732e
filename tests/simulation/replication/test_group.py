"""Nothing acknowledged is lost with the master's disk, whatever befalls the group."""

from __future__ import annotations

import random

from rocketpost.store.config import FlushMode

from .group import Group, run_group
from .network import Link
from .nodes import JavaSlave, Slave


def test_one_slave(seed: int) -> None:
    run_group(seed)


def test_one_slave_that_gets_what_is_not_flushed_yet(seed: int) -> None:
    run_group(seed, sends_flushed=False)


def test_two_slaves_and_one_of_java(seed: int) -> None:
    run_group(seed, slaves=2, java=True)


def test_kills_with_async_flush(seed: int) -> None:
    run_group(seed, slaves=2, java=True, flush_mode=FlushMode.ASYNC_FLUSH, sends_flushed=False)


def run_ahead(seed: int) -> None:
    """Let slaves have what their master then loses, and see that they count for nothing."""
    rng = random.Random(seed)
    group = Group(rng, java=True, sends_flushed=False, batch_bytes=700, window_bytes=20_000)
    assert group.java is not None
    connect_fast(group, group.java)
    connect_fast(group, group.ours[0])
    for is_flushed in (True, False):
        group.send()
        if is_flushed:
            group.flush_master()
        for _ in range(5):
            group.pump_master()
            group.java.pump(0, rng)
            group.ours[0].pump(0, rng)
            group.ours[0].flush()
            group.check()
    group.master.stopped()
    group.master.world.lose_power(rng, keep=0.0)
    group.master.start()
    assert group.java.end > group.master.end
    group.java.disconnect()
    group.ours[0].disconnect()
    connect_fast(group, group.java)
    group.pump_master()  # before the log grows past it: from then on nobody could tell
    for _ in range(30):
        if group.master.end > group.java.end and group.ours[0].link is None:
            if not group.ours[0].is_up:
                group.ours[0].start()
            group.connect(group.ours[0])
        group.now_ms += 3000
        group.send()
        group.flush_master()
        group.pump_master()
        for slave in group.slaves:
            if slave.is_up:
                slave.pump(group.now_ms, rng)
        group.check()
    assert group.master.end > group.java.end


def connect_fast(group: Group, slave: Slave | JavaSlave) -> None:
    link = Link(slave.host, slave.broker_id, capacity=10**6, speed=10**6)
    slave.connect(group.master, link, group.now_ms)


def run_half_open(seed: int) -> None:
    """Let the master read the last reports of a connection after its successor has come."""
    rng = random.Random(seed)
    group = Group(rng, java=True, batch_bytes=50, window_bytes=20_000)
    slave = rng.choice(group.slaves)
    for _ in range(4):
        connect_fast(group, slave)
        for _ in range(3):
            group.send()
            group.flush_master()
            group.pump_master()
            assert slave.link is not None
            slave.link.speed = 150
            for _ in range(4):
                group.now_ms += 50
                slave.pump(group.now_ms, rng)
                if isinstance(slave, Slave):
                    slave.flush()
        slave.link = None  # the master takes the connection for open
        group.check()
    for _ in range(10):
        group.pump_master()
        group.check()
    for _ in range(20):
        group.wait()
        group.pump_master()
        group.check()
    assert not group.master.streams, "the connections are silent"


def test_slaves_that_are_ahead_of_their_master(seed: int) -> None:
    run_ahead(seed)


def test_connections_that_only_the_master_takes_for_open(seed: int) -> None:
    run_half_open(seed)
