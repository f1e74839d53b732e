"""Slaves with a bad network, and slow or full disks on either side."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from chaos.odd import PROGRAM as ODD_BROKER
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import ClientError
from rocketpost.testing.campaign import TINY_STORE
from rocketpost.testing.fault_proxy import FaultProxy, InjectedFault
from rocketpost.testing.ledger import Ledger
from rocketpost.testing.link import BrokerLink
from rocketpost.testing.load import LARGE_SHARE, LoadQueue, Stream
from rocketpost.testing.process import PROGRAM
from rocketpost.testing.replicas.group import MASTER_ID, Replica, ReplicaGroup

QUEUES = [LoadQueue("faults", queue_id) for queue_id in range(3)]
SETTINGS: Mapping[str, str] = {
    **TINY_STORE,
    "flushDiskType": "SYNC_FLUSH",
    "haSendHeartbeatInterval": "300",
    "haHousekeepingInterval": "2000",
    "slaveTimeout": "1000",
    "cleanFileForciblyEnable": "false",
    "cleanResourceInterval": "3600000",
}
SYNC = {"brokerRole": "SYNC_MASTER"}
DISK_BYTES = 16 * 1024 * 1024
MORE_BYTES = 64 * 1024 * 1024
SECONDS_MAX = 120
CUTS = 15


class Sender:
    """Sends messages one by one, keeps the ledger, and counts the answers."""

    def __init__(self, seed: int, *, large_share: float = LARGE_SHARE) -> None:
        self.ledger = Ledger()
        self._large_share = large_share
        self.answers: Counter[int] = Counter()
        self._rng = random.Random(seed)
        self._streams = 0

    async def send_to(self, replica: Replica, count: int) -> list[int]:
        """Send messages over a new connection; returns the codes of the answers."""
        link = await BrokerLink.connect(replica.address)
        self._streams += 1
        stream = Stream(
            link,
            self.ledger,
            self._streams,
            rng=random.Random(self._rng.random()),
            large_share=self._large_share,
        )
        codes = []
        try:
            for _ in range(count):
                sent = await stream.send(self._rng.choice(QUEUES))
                assert sent is not None
                codes.append((await sent).code)
        finally:
            link.close()
        self.answers.update(codes)
        return codes

    async def until(self, replica: Replica, *codes: int, count: int = 5) -> None:
        """Send until an answer has one of the codes."""
        async with asyncio.timeout(SECONDS_MAX):
            while not set(codes) & set(await self.send_to(replica, count)):
                await asyncio.sleep(0.02)

    async def check(self, replica: Replica) -> None:
        """Read everything from a broker and compare."""
        link = await BrokerLink.connect(replica.address)
        try:
            for queue in QUEUES:
                end = await link.max_offset(*queue)
                records = await link.read(*queue, 0, end)
                self.ledger.check_queue(*queue, records, first=0)
        finally:
            link.close()
        self.ledger.check_lost()
        self.ledger.verify()


async def check_after_promotion(group: ReplicaGroup, sender: Sender) -> None:
    """Lose the master's disk, make the slave the master, and compare."""
    group.master.process.kill()
    group.master.lose_disk()
    group.slaves[0].process.kill()
    sender.ledger.forget_unacknowledged()
    group.promote(group.slaves[0])
    group.master.start(haMasterAddress="")
    await sender.check(group.master)


async def until_equal(*replicas: Replica) -> None:
    """Wait until brokers have the same log."""
    async with asyncio.timeout(SECONDS_MAX):
        while len({replica.log_bytes() for replica in replicas}) > 1:
            await asyncio.sleep(0.1)


def ha_target(master: Replica) -> tuple[str, int]:
    return "127.0.0.1", int(master.values["listenPort"]) + 1


async def test_a_slow_slave_delays_nobody(tmp_path: Path, seed: int) -> None:
    """One slave gets 1 kB a second. The other one acknowledges every message in time."""
    group = ReplicaGroup(tmp_path, slaves=2, settings=SETTINGS, master=SYNC)
    quick, slow = group.slaves
    sender = Sender(seed)
    async with FaultProxy(ha_target(group.master)) as proxy:
        proxy.fault = InjectedFault(bytes_per_second=1000)
        slow.values |= {"haMasterAddress": f"127.0.0.1:{proxy.port}"}
        with group:
            await sender.until(group.master, ResponseCode.SUCCESS)
            codes = await sender.send_to(group.master, 300)
            assert codes == [ResponseCode.SUCCESS] * 300
            assert len(slow.log_bytes()) < len(quick.log_bytes()) // 2
            proxy.fault = InjectedFault()
            await until_equal(group.master, quick, slow)
            await check_after_promotion(group, sender)


def slow_disk_of(number: int, seconds: float) -> Callable[[Path], Sequence[str]]:
    """Let each sync of one replica take some time; returns the programs of a group."""

    def program(home: Path) -> Sequence[str]:
        if home.name != f"replica-{number}":
            return PROGRAM
        mirror = ["--mirror", str(home / "store"), str(home / "mirror")]
        return [ODD_BROKER, *mirror, "--slow-sync", str(seconds), "--"]

    return program


async def test_a_slow_disk_of_one_slave_delays_nobody(tmp_path: Path, seed: int) -> None:
    """One slave needs longer to flush than a send may wait; the other one is enough."""
    seconds = 2 * int(SETTINGS["slaveTimeout"]) / 1000
    group = ReplicaGroup(
        tmp_path, slaves=2, settings=SETTINGS, master=SYNC, program=slow_disk_of(2, seconds)
    )
    sender = Sender(seed)
    with group:
        await sender.until(group.master, ResponseCode.SUCCESS)
        codes = await sender.send_to(group.master, 200)
        assert codes == [ResponseCode.SUCCESS] * 200
        await until_equal(group.master, *group.slaves)
        await check_after_promotion(group, sender)


async def test_a_slow_disk_of_the_master(tmp_path: Path, seed: int) -> None:
    """The slave gets only what is on the master's disk, and answers wait for both."""
    group = ReplicaGroup(
        tmp_path, settings=SETTINGS, master=SYNC, program=slow_disk_of(MASTER_ID, 0.1)
    )
    sender = Sender(seed)
    with group:
        await sender.until(group.master, ResponseCode.SUCCESS)
        codes = await sender.send_to(group.master, 50)
        assert codes == [ResponseCode.SUCCESS] * 50
        await until_equal(group.master, *group.slaves)
        await check_after_promotion(group, sender)


async def test_cuts_of_the_link(tmp_path: Path, seed: int) -> None:
    """The stream is cut anywhere, over and over; the slave goes on where it was."""
    rng = random.Random(seed)
    group = ReplicaGroup(tmp_path, settings=SETTINGS, master=SYNC)
    sender = Sender(seed)
    async with FaultProxy(ha_target(group.master)) as proxy:
        group.slaves[0].values |= {"haMasterAddress": f"127.0.0.1:{proxy.port}"}
        with group:
            for count in range(CUTS):
                proxy.fault = InjectedFault(
                    cut_answers_after_bytes=rng.randrange(1, 20_000),
                    cut_after_bytes=rng.randrange(1, 200),
                )
                await sender.send_to(group.master, 30)
                if rng.random() < 0.3:
                    await proxy.cut()
                async with asyncio.timeout(SECONDS_MAX):
                    while proxy.connection_count <= count + 1:  # it waits longer after each failure
                        await sender.send_to(group.master, 5)
                        await asyncio.sleep(0.02)
            proxy.fault = InjectedFault()
            await sender.until(group.master, ResponseCode.SUCCESS)
            assert proxy.connection_count > CUTS
            await until_equal(group.master, group.slaves[0])
            await check_after_promotion(group, sender)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    directory = tmp_path / "disk"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def enlarge(disk: Path) -> None:
    command = ["mount", "-o", f"remount,size={MORE_BYTES}", str(disk)]
    subprocess.run(command, check=True)


async def test_a_full_disk_of_the_slave(tmp_path: Path, disk: Path, seed: int) -> None:
    """Messages are stored, but not acknowledged as safe, until the slave has room again."""
    group = ReplicaGroup(tmp_path, settings=SETTINGS, master=SYNC)
    (slave,) = group.slaves
    slave.values |= {"storePathRootDir": str(disk / "store")}
    sender = Sender(seed, large_share=0.3)
    with group:
        await sender.until(group.master, ResponseCode.SUCCESS)
        unsafe = (ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE)
        await sender.until(group.master, *unsafe, count=20)
        assert slave.process.is_running
        await sender.send_to(group.master, 20)
        enlarge(disk)
        await sender.until(group.master, ResponseCode.SUCCESS)
        await sender.check(group.master)
        await check_after_promotion(group, sender)


async def test_a_full_disk_of_the_master(tmp_path: Path, disk: Path, seed: int) -> None:
    """Messages are refused, and the slave has what was acknowledged before."""
    group = ReplicaGroup(tmp_path, settings=SETTINGS, master=SYNC)
    group.master.values |= {"storePathRootDir": str(disk / "store")}
    sender = Sender(seed, large_share=0.3)
    with group:
        await sender.until(group.master, ResponseCode.SUCCESS)
        await sender.until(group.master, ResponseCode.SERVICE_NOT_AVAILABLE, count=20)
        assert group.master.process.is_running
        await sender.check(group.master)
        enlarge(disk)
        await sender.until(group.master, ResponseCode.SUCCESS)
        await check_after_promotion(group, sender)


async def test_a_slave_that_stands_still(tmp_path: Path, seed: int) -> None:
    """Messages are stored, but not acknowledged as safe, until the slave goes on."""
    group = ReplicaGroup(tmp_path, settings=SETTINGS, master=SYNC)
    sender = Sender(seed)
    with group:
        await sender.until(group.master, ResponseCode.SUCCESS)
        group.slaves[0].process.pause()
        try:
            codes = await sender.send_to(group.master, 2)
        except ClientError as error:
            pytest.fail(f"the master did not answer: {error}")
        assert set(codes) <= {ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE}
        group.slaves[0].process.resume()
        await sender.until(group.master, ResponseCode.SUCCESS)
        await check_after_promotion(group, sender)
