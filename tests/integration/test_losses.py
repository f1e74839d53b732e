"""The six losses of the replication guide: which setting keeps an acknowledged message.

A crash of the operating system and a power cut take everything that is not on disk; here, a disk
that forgets what was not synced stands for both.
"""

from __future__ import annotations

import asyncio
import random
import runpy
import shutil
from pathlib import Path

import pytest

from rocketpost.client import Message, Producer, PullConsumer, PullStatus, SendStatus
from rocketpost.testing.replicas.group import Replica, ReplicaGroup

pytestmark = pytest.mark.slow

COUNT = 40
CHAOS = Path(__file__).parents[1] / "chaos"
PROGRAM = str(CHAOS / "odd_broker.py")
DISK = runpy.run_path(str(CHAOS / "volatile_disk.py"))


def forgetful(home: Path) -> list[str]:
    """Return the program of a broker whose disk forgets what was not synced."""
    return [PROGRAM, "--mirror", str(home / "store"), str(home / "mirror"), "--"]


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


def promote(slave: Replica) -> None:
    assert slave.process.stop() == 0
    slave.start(brokerRole="ASYNC_MASTER", brokerId="0")


@pytest.mark.long
async def test_a_clean_stop_and_a_crash_of_the_broker_lose_nothing(tmp_path: Path) -> None:
    """With the weakest settings, ASYNC_MASTER and ASYNC_FLUSH."""
    with ReplicaGroup(tmp_path, slaves=0) as group:
        sent = await send(group, "before a clean stop")
        assert group.master.process.stop() == 0
        group.master.start()
        assert await read(group) == sent
        sent |= await send(group, "before a crash")
        group.master.process.kill()
        group.master.start()
        assert await read(group) == sent


@pytest.mark.long
async def test_a_crash_of_the_system_loses_nothing_with_a_slave(tmp_path: Path) -> None:
    """With SYNC_MASTER and ASYNC_FLUSH: the slave has what the master's disk lacks."""
    if not DISK["is_supported"](tmp_path):
        pytest.skip("the file system has no extended attributes")
    settings = {"flushIntervalCommitLog": "60000"}  # else it may be on disk by then
    with ReplicaGroup(
        tmp_path, settings=settings, master={"brokerRole": "SYNC_MASTER"}, program=forgetful
    ) as group:
        await until_in_sync(group)
        sent = await send(group, "before the crash")
        lose_power(group.master)
        promote(group.slaves[0])
        assert await read(group) >= sent


@pytest.mark.long
async def test_a_power_cut_a_dead_machine_and_a_dead_disk_lose_nothing(tmp_path: Path) -> None:
    """With SYNC_MASTER and SYNC_FLUSH on both brokers, even if both lose power at once."""
    if not DISK["is_supported"](tmp_path):
        pytest.skip("the file system has no extended attributes")
    with ReplicaGroup(
        tmp_path,
        settings={"flushDiskType": "SYNC_FLUSH"},
        master={"brokerRole": "SYNC_MASTER"},
        program=forgetful,
    ) as group:
        (slave,) = group.slaves
        await until_in_sync(group)
        sent = await send(group, "before the power cut")
        for replica in (group.master, slave):
            lose_power(replica)
        for replica in (group.master, slave):
            replica.start()
        assert await read(group) >= sent
        await until_in_sync(group)  # the slave follows again
        sent |= await send(group, "before the disk dies")
        group.master.process.kill()
        shutil.rmtree(group.master.store)
        promote(slave)
        assert await read(group) >= sent
