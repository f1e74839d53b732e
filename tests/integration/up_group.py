"""A group of three under ``rocketpost up --nodes 3``: real processes, of which some are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

from rocketpost.client import Message, Producer, ProducerConfig, PullConsumer
from rocketpost.client.admin import AdminClient
from rocketpost.testing.process import ServerProcess, free_port

TOPIC = "T"
ROCKETPOST = ("-c", "from rocketpost.cli import rocketpost; rocketpost()")
UP = (*ROCKETPOST, "up")
READY = r"(?P<leader>\S+) leads the group\. Kill"
_PID = re.compile(r"broker-a-n(\d) pid (\d+)|broker restarted: name=broker-a-n(\d) pid=(\d+)")
_PORTS_OF_A_MEMBER = 10


class UpGroup:
    """The command and its members, found by their ports."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._port = _free_ports()
        self.address = f"127.0.0.1:{free_port()}"
        name_server_port = self.address.rpartition(":")[2]
        arguments = ["--data", str(folder), "--nodes", "3", "--segment-size", "16M", *options]
        arguments += ["--namesrv-port", name_server_port, "--broker-port", str(self._port)]
        self.server = ServerProcess(arguments, ready=READY, program=UP)

    async def leader(self) -> int:
        """Return the number of the member that is registered as the leader, once there is one."""
        async with asyncio.timeout(30), AdminClient(name_servers=self.address) as admin:
            while True:
                info = await admin.cluster.info()
                addresses = info.broker_addr_table["broker-a"].broker_addrs
                if 0 in addresses:
                    port = int(addresses[0].rpartition(":")[2])
                    return (port - self._port) // _PORTS_OF_A_MEMBER
                await asyncio.sleep(0.02)

    def pid(self, number: int) -> int:
        """Return the newest process of a member."""
        found = 0
        for line in self.server.output:
            for first, pid, again, later in _PID.findall(line):
                if int(first or again) == number:
                    found = int(pid or later)
        return found

    async def kill(self, number: int) -> float:
        """Kill a member, and return the time of that."""
        os.kill(self.pid(number), signal.SIGKILL)
        return time.monotonic()

    async def wait_restarted(self, number: int) -> None:
        """Wait until a killed member is back."""
        text = f"broker restarted: name=broker-a-n{number}"
        await asyncio.to_thread(self.server.wait_for, text, seconds=60)

    async def restart(self, number: int) -> None:
        """Restart a member as the guide says: drain it, stop it, wait until it has the log."""
        drain = [*ROCKETPOST, "group", "drain", f"n{number}", "-n", self.address]
        child = await asyncio.create_subprocess_exec(sys.executable, *drain, stdout=PIPE)
        output, _ = await child.communicate()
        assert child.returncode == 0, output
        os.kill(self.pid(number), signal.SIGTERM)
        await self.wait_restarted(number)
        await self.wait_in_sync()

    def client_address(self, number: int) -> str:
        """Return the address of a member for clients."""
        return f"127.0.0.1:{self._port + _PORTS_OF_A_MEMBER * number}"

    async def _status(self, admin: AdminClient, number: int) -> dict[str, str]:
        return await admin.brokers.runtime(self.client_address(number))

    async def wait_in_sync(self) -> None:
        """Wait until every member has what was committed when this was called."""
        committed = ""
        async with asyncio.timeout(60), AdminClient(name_servers=self.address) as admin:
            while True:
                states = [await self._status(admin, number) for number in range(3)]
                ends = [int(state["groupCommitted"]) for state in states]
                committed = committed or str(max(ends))
                if min(ends) >= int(committed) and len({s["groupLeader"] for s in states}) == 1:
                    return
                await asyncio.sleep(0.1)


def _free_ports() -> int:
    """Return a port that is free, as are those after it that the members use."""
    while True:
        port = free_port()
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(3):
                for step in (-2, 0, 1):
                    at = port + _PORTS_OF_A_MEMBER * number + step
                    stack.enter_context(socket.create_server(("127.0.0.1", at)))
            return port


@contextlib.asynccontextmanager
async def up_group(folder: Path, *options: str) -> AsyncIterator[UpGroup]:
    """Run a group until the end of a test."""
    group = UpGroup(folder, *options)
    with contextlib.ExitStack() as stack:
        stack.callback(group.server.kill)
        await asyncio.to_thread(group.server.start)
        yield group


class Sender:
    """Sends messages one after the other, and notes which ones were acknowledged, and when."""

    def __init__(self, address: str) -> None:
        self._config = ProducerConfig(name_servers=address, send_timeout=30.0, attempt_timeout=2.0)
        self.acknowledged: list[tuple[float, bytes]] = []

    async def run(self) -> None:
        """Send until cancelled; every send must be acknowledged in the end."""
        async with Producer("producers", config=self._config, idempotent=True) as producer:
            number = 0
            while True:
                body = b"%d" % number
                await producer.send(Message(TOPIC, body))
                self.acknowledged.append((time.monotonic(), body))
                number += 1
                await asyncio.sleep(0.005)

    async def wait_acknowledged(self, since: float) -> float:
        """Wait for the first acknowledgement after a time, and return the time between."""
        async with asyncio.timeout(60):
            while True:
                for at, _ in reversed(self.acknowledged):
                    if at <= since:
                        break
                    found = at
                else:
                    found = since
                if self.acknowledged and self.acknowledged[-1][0] > since:
                    return found - since
                await asyncio.sleep(0.01)


async def stored(address: str) -> list[bytes]:
    """Return all messages of the topic."""
    bodies: list[bytes] = []
    async with PullConsumer("readers", name_servers=address) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset = await consumer.min_offset(queue)
            while (found := await consumer.pull(queue, offset)).messages:
                bodies += [message.body for message in found.messages]
                offset = found.next_offset
    return bodies


async def live_through_kills(group: UpGroup, kills: int) -> list[float]:
    """Kill leaders under load, check that nothing is lost or doubled; return failover times."""
    sender = Sender(group.address)
    work = asyncio.create_task(sender.run())
    times: list[float] = []
    await sender.wait_acknowledged(0.0)
    for _ in range(kills):
        leader = await group.leader()
        at = await group.kill(leader)
        times.append(await sender.wait_acknowledged(at + 0.02) + 0.02)
        await group.wait_restarted(leader)
        await asyncio.sleep(1.0)
    assert not work.done()
    work.cancel()
    await asyncio.wait((work,))
    found = await stored(group.address)
    wanted = [body for _, body in sender.acknowledged]
    assert len(found) == len(set(found)), "a message is stored twice"
    assert set(wanted) <= set(found), "an acknowledged message is lost"
    return times
