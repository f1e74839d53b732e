"""A group of three processes whose leader is killed: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.bodies.stats import decode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import ClientError
from rocketpost.testing import free_port

from .group_brokers import NODES, TOPIC, settings_of
from .settings.harness import Peer, peer_at

SCRIPT = Path(__file__).with_name("group_process.py")
LOST = (ClientError, OSError)


class Processes:
    """Three members, each in its process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ports = {node: free_port() for node in NODES}
        self._listen = {node: free_port() for node in NODES}
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self.stored: dict[int, bytes] = {}
        """Acknowledged messages by offset."""

    async def start(self, node: str) -> None:
        values = settings_of(
            self._root, node, self._ports, listenPort=self._listen[node], slaveTimeout=500
        )
        with (self._root / f"{node}.log").open("ab") as log:
            process = self._running[node] = await asyncio.create_subprocess_exec(
                sys.executable, str(SCRIPT), json.dumps(values),
                stdout=asyncio.subprocess.PIPE, stderr=log,
            )  # fmt: skip
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        assert line.strip().isdigit(), (self._root / f"{node}.log").read_text()[-4000:]

    async def kill(self, node: str) -> None:
        process = self._running.pop(node)
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def close(self) -> None:
        for node in list(self._running):
            await self.kill(node)

    @contextlib.asynccontextmanager
    async def client(self, node: str) -> AsyncIterator[Peer]:
        async with peer_at("127.0.0.1", self._listen[node]) as peer:
            yield peer

    async def status(self, node: str) -> dict[str, str]:
        async with self.client(node) as peer:
            return decode_key_values((await peer.ok(Code.GET_BROKER_RUNTIME_INFO)).body)

    async def send(self, number: int) -> str:
        """Send a message to whoever takes it; returns the member that has acknowledged it."""
        body = b"%d" % number
        async with asyncio.timeout(30):
            while True:
                for node in list(self._running):
                    with contextlib.suppress(*LOST):
                        async with asyncio.timeout(3), self.client(node) as peer:
                            answer = await peer.send(TOPIC, body)
                        if answer.code == ResponseCode.SUCCESS:
                            offset = int(answer.fields["queueOffset"])
                            assert offset not in self.stored, "two messages at one offset"
                            self.stored[offset] = body
                            return node
                await asyncio.sleep(0.01)

    async def bodies(self, node: str) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        async with self.client(node) as peer:
            while records := await peer.records(TOPIC, offset=len(found)):
                found |= {record.queue_offset: record.body for record in records}
        return found

    async def check(self) -> None:
        """Check that every member gets every acknowledged message, and the same ones."""
        async with asyncio.timeout(30):
            while True:
                states = [await self.status(node) for node in self._running]
                positions = {state["groupCommitted"] for state in states}
                if len(positions | {state["groupLogEnd"] for state in states}) == 1:
                    break
                await asyncio.sleep(0.05)
        views = [await self.bodies(node) for node in self._running]
        assert all(view == views[0] for view in views)
        assert {at: views[0].get(at) for at in self.stored} == self.stored


async def kill_leaders(root: Path, rounds: int) -> None:
    group = Processes(root)
    try:
        await asyncio.gather(*(group.start(node) for node in NODES))
        number = 0
        for _ in range(rounds):
            for _ in range(20):
                number += 1
                leader = await group.send(number)
            await group.kill(leader)
            number += 1
            assert await group.send(number) != leader
            await group.start(leader)
        await group.check()
        assert len(group.stored) == number
    finally:
        await group.close()


async def test_a_killed_leader_is_replaced_and_comes_back(tmp_path: Path) -> None:
    await kill_leaders(tmp_path, 1)


@pytest.mark.long
async def test_twenty_killed_leaders(tmp_path: Path) -> None:
    await kill_leaders(tmp_path, 20)
