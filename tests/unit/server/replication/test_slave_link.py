"""A slave's connection: much is sent at once, little together with what follows."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rocketpost.codec.ha_frames import encode_head, encode_report
from rocketpost.replication.sender import LogSender
from rocketpost.server.replication.slave_link import LINGER_BYTES, SlaveLink
from rocketpost.testing.waiting import settle, until


class Log:
    """A log of zeros."""

    first = 0

    def __init__(self) -> None:
        self.end = 0

    def send(self, sock: socket.socket, position: int, size: int) -> int:
        return sock.send(bytes(size))

    def is_cached(self, position: int, size: int) -> bool:
        return True

    def warm_from_thread(self, position: int, size: int) -> None:
        raise AssertionError("everything is in memory")


class World:
    def __init__(self, *, linger_seconds: float) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.log = Log()
        self.reports: list[int] = []
        self.link = SlaveLink(
            self.near,
            ("127.0.0.1", 1),
            log=self.log,
            sender=LogSender(
                first=0, end=0, segment_bytes=2**30, batch_bytes=2**18, window_bytes=2**23,
                heartbeat_ms=60_000,
            ),
            now_ms=lambda: 0,
            frame_bytes_max=2**18,
            rate_max=None,
            linger_seconds=linger_seconds,
            on_report=lambda link: self.reports.append(link.sender.acked),
            on_end=lambda link, reason: None,
        )  # fmt: skip

    async def request(self) -> None:
        self.far.send(encode_report(0))
        await until(lambda: self.link.sender.has_started)

    def grow(self, size: int) -> None:
        self.log.end += size
        self.link.note_growth()

    def heard(self) -> bytes:
        try:
            return self.far.recv(2**20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.link.close("the test is over")
        self.far.close()


@pytest.mark.parametrize("linger_seconds", [0.0, 0.01])
async def test_few_bytes_wait_for_more_if_they_may(linger_seconds: float) -> None:
    world = World(linger_seconds=linger_seconds)
    await world.request()
    world.grow(100)
    world.grow(50)
    await settle()
    first = world.heard()
    assert (first == b"") == bool(linger_seconds)
    await until(lambda: world.link.sender.next == 150)
    assert first + world.heard() == encode_head(0, 150) + bytes(150)
    world.grow(LINGER_BYTES)
    await settle()
    assert world.heard(), "many do not wait"
    world.grow(1)
    world.close()
    world.grow(1)


async def test_a_report_is_passed_on_and_sends_what_the_window_held_back() -> None:
    world = World(linger_seconds=0.0)
    await world.request()
    world.grow(2**23 + 1000)
    received = 0
    async with asyncio.timeout(10):
        while received < 2**23:
            received += len(world.heard())
            await asyncio.sleep(0)
    assert world.link.sender.next == 2**23
    world.far.send(encode_report(2**23))
    await until(lambda: world.link.sender.next == 2**23 + 1000)
    assert world.reports[-1] == 2**23
    world.close()
