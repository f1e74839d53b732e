"""A slave's connection to its master's log, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

from rocketpost.codec.ha_frames import FrameHead, HaFrameDecoder, encode_head, encode_report
from rocketpost.errors import ReplicationError
from rocketpost.replication.receiver import LogReceiver
from rocketpost.server.replication.master_stream import PART_MS, WAKE_BYTES_MAX, MasterStream


class FakeReceiver:
    """Takes frames apart and keeps nothing."""

    def __init__(self) -> None:
        self._frames = HaFrameDecoder()
        self.end = 0
        self.feeds = 0

    @property
    def missing(self) -> int:
        return self._frames.missing

    @property
    def frames_ended(self) -> int:
        return self._frames.ended

    def feed(self, data: memoryview, at: int = 0) -> None:
        self.feeds += 1
        for piece in self._frames.feed(data[at:]):
            if not isinstance(piece, FrameHead):
                self.end += len(piece)


class Master:
    """The master's end of a stream, and the slave's stream with its receiver."""

    def __init__(self, heartbeat_ms: int, now_ms: Callable[[], int] | None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.socket = socket.create_connection(listening.getsockname())
            ours, _ = listening.accept()
        ours.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.receiver = FakeReceiver()
        loop = asyncio.get_running_loop()
        self.stream = MasterStream(
            ours,
            receiver=cast(LogReceiver, self.receiver),
            request=0,
            heartbeat_ms=heartbeat_ms,
            silence_ms=20_000,
            now_ms=now_ms or (lambda: int(loop.time() * 1000)),
            on_read=lambda: self.stream.advance(self.receiver.end),
        )

    async def until_end(self, size: int) -> None:
        """Wait until the slave has taken so many bytes of the log."""
        async with asyncio.timeout(10):
            while self.receiver.end < size:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def running(
    heartbeat_ms: int = 40, now_ms: Callable[[], int] | None = None
) -> AsyncIterator[Master]:
    master = Master(heartbeat_ms, now_ms)
    run = asyncio.ensure_future(master.stream.run())
    try:
        yield master
    finally:
        master.socket.close()
        with pytest.raises(ReplicationError, match=r"closed|lost"):
            await run


async def test_the_rest_of_a_frame_is_read_as_a_whole() -> None:
    async with running() as master:
        master.socket.sendall(encode_head(0, 5000) + b"a" * 100)
        await master.until_end(100)
        feeds = master.receiver.feeds
        for _ in range(48):
            master.socket.sendall(b"b" * 100)
            await asyncio.sleep(0)
        master.socket.sendall(b"c" * 100)
        await master.until_end(5000)
        assert master.receiver.feeds <= feeds + 10  # ticks may have read parts of it


async def test_a_frame_that_comes_slowly_is_not_waited_for() -> None:
    async with running() as master:
        master.socket.sendall(encode_head(0, 4 * WAKE_BYTES_MAX) + b"a" * 100)
        await master.until_end(100)
        master.socket.sendall(b"b")
        await master.until_end(101)  # by the next tick


async def test_the_next_frame_is_read_however_short() -> None:
    async with running() as master:
        master.socket.sendall(encode_head(0, 2000) + b"a" * 1000)
        await master.until_end(1000)
        master.socket.sendall(b"a" * 1000)
        await master.until_end(2000)
        master.socket.sendall(encode_head(2000, 1) + b"b")
        await master.until_end(2001)


async def test_a_whole_frame_is_reported_at_once() -> None:
    async with running(heartbeat_ms=20_000, now_ms=lambda: 1) as master:
        loop = asyncio.get_running_loop()
        master.socket.setblocking(False)
        assert await loop.sock_recv(master.socket, 100) == encode_report(0)
        await loop.sock_sendall(master.socket, encode_head(0, 3000) + b"a" * 1000)
        await master.until_end(1000)
        with pytest.raises(BlockingIOError):
            master.socket.recv(100)
        await loop.sock_sendall(master.socket, b"a" * 2000)
        assert await loop.sock_recv(master.socket, 100) == encode_report(3000)
        # The second frame has begun when the whole of the first is kept.
        await loop.sock_sendall(
            master.socket, encode_head(3000, 500) + b"b" * 500 + encode_head(3500, 800) + b"c"
        )
        assert await loop.sock_recv(master.socket, 100) == encode_report(3501)


async def test_parts_of_a_frame_that_arrives_slowly_are_reported() -> None:
    times = [0]
    async with running(heartbeat_ms=20_000, now_ms=lambda: times[0]) as master:
        loop = asyncio.get_running_loop()
        master.socket.setblocking(False)
        assert await loop.sock_recv(master.socket, 100) == encode_report(0)
        times[0] += PART_MS
        await loop.sock_sendall(master.socket, encode_head(0, 3000) + b"a" * 1000)
        assert await loop.sock_recv(master.socket, 100) == encode_report(1000)


async def test_the_rest_is_reported_with_the_next_tick() -> None:
    async with running(heartbeat_ms=40, now_ms=lambda: 1) as master:
        loop = asyncio.get_running_loop()
        master.socket.setblocking(False)
        assert await loop.sock_recv(master.socket, 100) == encode_report(0)
        await loop.sock_sendall(master.socket, encode_head(0, 3000) + b"a" * 1000)
        async with asyncio.timeout(10):
            assert await loop.sock_recv(master.socket, 100) == encode_report(1000)
