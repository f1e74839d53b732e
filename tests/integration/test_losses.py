"""The losses of the replication guide, one by one: which setting keeps an acknowledged message.

A crash of the operating system and a power cut take everything that is not on disk; here, a disk
that forgets what was not synced stands for both.
"""

from __future__ import annotations

import asyncio
import random
import runpy
from collections.abc import Mapping
from pathlib import Path

import pytest

from rocketpost.client import Message, Producer, PullConsumer, PullStatus, SendStatus
from rocketpost.testing.replicas.group import Replica, ReplicaGroup

pytestmark = pytest.mark.long

COUNT = 40
CHAOS = Path(__file__).parents[1] / "chaos"
PROGRAM = str(CHAOS / "odd_broker.py")
DISK = runpy.run_path(str(CHAOS / "volatile_disk.py"))
LAZY = {"flushIntervalCommitLog": "60000"}
"""Settings with which nothing is on disk soon by chance."""
SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}
SYNC_MASTER = {"brokerRole": "SYNC_MASTER"}


def forgetful(home: Path) -> list[str]:
    """Return the program of a broker whose disk forgets what was not synced."""
    return [PROGRAM, "--mirror", str(home / "store"), str(home / "mirror"), "--"]


@pytest.fixture
def volatile(tmp_path: Path) -> Path:
    """Return a directory on a file system for disks that forget."""
    if not DISK["is_supported"](tmp_path):
        pytest.skip("the file system has no extended attributes")
    return tmp_path


def group_of(
    directory: Path, *, settings: Mapping[str, str], has_slave: bool = True
) -> ReplicaGroup:
    """Return brokers whose disks forget: a SYNC_MASTER with a slave, or a single master."""
    return ReplicaGroup(
        directory,
        slaves=1 if has_slave else 0,
        settings=settings,
        master=SYNC_MASTER if has_slave else {},
        program=forgetful,
    )


def lose_power(replica: Replica) -> None:
    replica.process.kill()
    DISK["cut_power"](replica.store, replica.home / "mirror", random.Random(7))


async def send(group: ReplicaGroup, word: str) -> set[bytes]:
    """Send messages; returns those with the status SEND_OK, which must be all."""
    bodies = {f"{word} {at}".encode() for at in range(COUNT)}
    async with Producer("senders", name_servers=group.addresses) as producer:
        sends = [producer.send(Message("T", body)) for body in bodies]
        for result in await asyncio.gather(*sends):
            assert result.status is SendStatus.SEND_OK
    return bodies


async def read(group: ReplicaGroup) -> set[bytes]:
    found: set[bytes] = set()
    async with PullConsumer("readers", name_servers=group.addresses) as consumer:
        for queue in await consumer.queues("T"):
            at = await consumer.min_offset(queue)
            while (result := await consumer.pull(queue, at)).status is PullStatus.FOUND:
                found.update(message.body for message in result.messages)
                at = result.next_offset
    return found


async def until_in_sync(group: ReplicaGroup) -> None:
    """Wait until a SYNC_MASTER can acknowledge."""
    async with asyncio.timeout(30), Producer("probes", name_servers=group.addresses) as producer:
        while (await producer.send(Message("Probe", b"x"))).status is not SendStatus.SEND_OK:
            await asyncio.sleep(0.05)


AS_MASTER = {"brokerRole": "ASYNC_MASTER", "brokerId": "0"}


def promote(slave: Replica) -> None:
    assert slave.process.stop() == 0
    slave.start(**AS_MASTER)


async def test_a_clean_stop_loses_nothing(tmp_path: Path) -> None:
    """With the weakest settings, ASYNC_MASTER and ASYNC_FLUSH."""
    with ReplicaGroup(tmp_path, slaves=0, settings=LAZY) as group:
        sent = await send(group, "before a clean stop")
        assert group.master.process.stop() == 0
        group.master.start()
        assert await read(group) == sent


async def test_a_crash_of_the_broker_loses_nothing(tmp_path: Path) -> None:
    """With the weakest settings, ASYNC_MASTER and ASYNC_FLUSH."""
    with ReplicaGroup(tmp_path, slaves=0, settings=LAZY) as group:
        sent = await send(group, "before a crash")
        group.master.process.kill()
        group.master.start()
        assert await read(group) == sent


async def test_a_crash_of_the_system_loses_messages_with_the_weakest_settings(
    volatile: Path,
) -> None:
    """With ASYNC_FLUSH and no slave, so that the other tests prove something."""
    with group_of(volatile, settings=LAZY, has_slave=False) as group:
        sent = await send(group, "before the crash")
        lose_power(group.master)
        group.master.start()
        assert await read(group) < sent


async def test_a_crash_of_the_system_loses_nothing_with_sync_flush(volatile: Path) -> None:
    with group_of(volatile, settings=SYNC_FLUSH, has_slave=False) as group:
        sent = await send(group, "before the crash")
        lose_power(group.master)
        group.master.start()
        assert await read(group) == sent


async def test_a_crash_of_the_system_or_a_power_cut_loses_nothing_with_a_slave(
    volatile: Path,
) -> None:
    """With SYNC_MASTER and ASYNC_FLUSH: the slave has what the master's disk lacks."""
    with group_of(volatile, settings=LAZY) as group:
        await until_in_sync(group)
        sent = await send(group, "before the crash")
        lose_power(group.master)
        promote(group.slaves[0])
        assert await read(group) >= sent


@pytest.mark.parametrize("is_promoted", [True, False], ids=["slave", "master"])
async def test_a_power_cut_of_all_machines_loses_nothing(volatile: Path, is_promoted: bool) -> None:
    """With SYNC_MASTER and SYNC_FLUSH on both brokers, whichever of them is the master then."""
    with group_of(volatile, settings=SYNC_FLUSH) as group:
        (slave,) = group.slaves
        await until_in_sync(group)
        sent = await send(group, "before the power cut")
        for replica in (group.master, slave):
            lose_power(replica)
        if is_promoted:
            slave.start(**AS_MASTER)
            assert await read(group) >= sent
            return
        for replica in (group.master, slave):
            replica.start()
        assert await read(group) >= sent
        await until_in_sync(group)  # the slave follows again


async def test_a_dead_machine_loses_nothing(tmp_path: Path) -> None:
    """With SYNC_MASTER; the machine returns with an empty store, as a slave."""
    with ReplicaGroup(tmp_path, settings=LAZY, master=SYNC_MASTER) as group:
        old, (slave,) = group.master, group.slaves
        await until_in_sync(group)
        sent = await send(group, "before the machine dies")
        old.process.kill()
        assert slave.process.stop() == 0
        group.promote(slave)
        slave.start()
        assert await read(group) >= sent
        old.lose_disk()
        old.start()
        await until_in_sync(group)
        sent |= await send(group, "after the promotion")
        assert await read(group) >= sent


async def test_a_dead_disk_loses_nothing(tmp_path: Path) -> None:
    """With SYNC_MASTER; the master starts empty if it starts, so the slave replaces it."""
    with ReplicaGroup(tmp_path, settings=LAZY, master=SYNC_MASTER) as group:
        await until_in_sync(group)
        sent = await send(group, "before the disk dies")
        group.master.process.kill()
        group.master.lose_disk()
        promote(group.slaves[0])
        assert await read(group) >= sent
