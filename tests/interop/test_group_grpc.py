"""Official gRPC clients behind a proxy live through a kill of a group's leader."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.up_group import TOPIC, UpGroup, stored, up_group
from interop.leash import Leash, PeerError
from interop.official.servers import PROXY_READY
from interop.official.tools import ToolMissingError, official
from interop.process import Server
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig
from rocketpost.testing.process import free_port

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

LANGUAGES = ["python", "java", "node", pytest.param("go", marks=pytest.mark.long)]
"""The first run of the client that is compiled takes minutes."""
BEFORE = 100
"""Messages that are acknowledged before the kill."""
COUNT = 1000
SECONDS = 60.0


@contextlib.contextmanager
def proxy_of(group: UpGroup, directory: Path) -> Iterator[str]:
    """Run a proxy in front of a group; yields the address of its gRPC port."""
    port = free_port()
    settings = directory / "rmq-proxy.json"
    settings.write_text(json.dumps({"grpcServerPort": port, "remotingListenPort": 0}))
    words = ["mqproxy", "-n", group.address, "-pc", str(settings)]
    command = [sys.executable, "-m", "rocketpost.server", *words]
    server = Server.start("mqproxy", command, ready=PROXY_READY, log=directory / "mqproxy.log")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()


class GrpcSender:
    """Sends numbers one after the other, and goes on with the next one after a failure."""

    def __init__(self, client: Leash, at: str) -> None:
        self._client = client
        self._at = at
        self.acknowledged: list[tuple[float, str]] = []
        self.failed: list[str] = []
        """The reasons of failed sends."""

    def run_blocking(self) -> None:
        """Send all of them."""
        bodies = [f"{number}" for number in range(COUNT)]
        done = 0
        while done < COUNT:
            try:
                sends = self._client.run_watched(
                    "send",
                    lambda _: self._note(bodies[len(self.acknowledged) + len(self.failed)]),
                    at=self._at,
                    topic=TOPIC,
                    bodies=",".join(bodies[done:]),
                )
                assert sends
            except PeerError as error:
                self.failed.append(str(error)[-300:])
            done = len(self.acknowledged) + len(self.failed)

    async def wait_acknowledged(self, count: int) -> None:
        """Wait until so many are acknowledged."""
        async with asyncio.timeout(SECONDS):
            while len(self.acknowledged) < count:
                await asyncio.sleep(0.005)

    def _note(self, body: str) -> None:
        self.acknowledged.append((time.monotonic(), body))


@pytest.mark.parametrize("language", LANGUAGES)
async def test_sends_go_on_after_a_kill_of_the_leader(tmp_path: Path, language: str) -> None:
    async with up_group(tmp_path / "group") as group:
        leader = await group.leader()
        async with AdminClient(name_servers=group.address) as admin:
            await admin.topics.create(
                group.client_address(leader),
                TopicConfig(
                    topic_name=TOPIC,
                    read_queue_nums=4,
                    write_queue_nums=4,
                    attributes={"+message.type": "NORMAL"},
                ),
            )
        home = tmp_path / language
        try:
            client = await asyncio.to_thread(official, language, home)
        except ToolMissingError as missing:
            pytest.skip(str(missing))
        with proxy_of(group, tmp_path) as at, client:
            sender = GrpcSender(client, at)
            work = asyncio.create_task(asyncio.to_thread(sender.run_blocking))
            await sender.wait_acknowledged(BEFORE)
            killed = await group.kill(leader)
            await work
        after = [when for when, _ in sender.acknowledged if when > killed]
        gap = max(later - when for when, later in zip([killed, *after], after, strict=False))
        print(f"{language}: {gap:.1f} s without an acknowledgement; failed: {sender.failed}")
        assert len(after) > BEFORE
        assert gap < SECONDS
        assert len(sender.failed) <= 1
        found = {body.decode() for body in await stored(group.address)}
        assert {body for _, body in sender.acknowledged} <= found
