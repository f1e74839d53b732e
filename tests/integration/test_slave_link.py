"""A master's connection to one slave, over a real pair of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest

from rocketpost.codec.ha_frames import encode_report
from rocketpost.replication import pacing
from rocketpost.replication.sender import LogSender
from rocketpost.server.replication import slave_link
from rocketpost.server.replication.slave_link import SlaveLink

BATCH = 1000


class FakeLog:
    """A log in memory, whose bytes may have to be read into memory first."""

    def __init__(self, data: bytes, *, cold: bool = False) -> None:
        self.data = data
        self.first = 0
        self.end = len(data)
        self._is_cold = cold
        self.warmed: list[tuple[int, int]] = []
        self.is_broken = False
        self.is_closed = False

    def announce(self, end: int) -> None:
        self.end = max(self.end, end)

    def send(self, sock: socket.socket, position: int, size: int) -> int:
        found = memoryview(self.data)[position : position + size]
        return sock.send(found) if found else 0

    def is_cached(self, position: int, size: int) -> bool:
        return not self._is_cold

    def warm_from_thread(self, position: int, size: int) -> None:
        if self.is_broken:
            raise OSError(5, "Input/output error")
        self.warmed.append((position, size))

    def close(self) -> None:
        self.is_closed = True


class Slave:
    """The slave's end, and what the master's end has told."""

    def __init__(
        self,
        log: FakeLog,
        *,
        rate_max: int | None = None,
        linger_seconds: float = 0.0,
        window_bytes: int = 1 << 23,
    ) -> None:
        self.ends: list[str] = []
        self.reports: list[int] = []
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.socket = socket.create_connection(listening.getsockname())
            ours, _ = listening.accept()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours.setblocking(False)
        self.socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self.link = SlaveLink(
            ours,
            ("10.0.0.2", 4711),
            log=log,
            sender=LogSender(
                first=log.first,
                end=log.end,
                segment_bytes=1 << 30,
                batch_bytes=BATCH,
                window_bytes=window_bytes,
                heartbeat_ms=50,
            ),
            now_ms=lambda: int(self._loop.time() * 1000),
            frame_bytes_max=BATCH,
            rate_max=rate_max,
            linger_seconds=linger_seconds,
            on_report=lambda link: self.reports.append(link.sender.acked),
            on_end=lambda link, reason: self.ends.append(reason),
        )

    async def tell(self, position: int) -> None:
        await self._loop.sock_sendall(self.socket, encode_report(position))

    async def take(self, size: int) -> bytes:
        """Return so many bytes of the stream."""
        taken = b""
        async with asyncio.timeout(10):
            while len(taken) < size:
                taken += await self._loop.sock_recv(self.socket, size - len(taken))
        return taken

    async def take_log(self, size: int) -> bytes:
        """Return so many bytes of the log, without the heads of frames."""
        log = b""
        while len(log) < size:
            head = await self.take(12)
            assert int.from_bytes(head[:8], "big") == len(log)
            log += await self.take(int.from_bytes(head[8:], "big"))
        return log

    async def until_ended(self) -> str:
        async with asyncio.timeout(10):
            while not self.ends:
                await asyncio.sleep(0.001)
        (reason,) = self.ends
        return reason


@contextlib.contextmanager
def slave_of(
    log: FakeLog,
    *,
    rate_max: int | None = None,
    linger_seconds: float = 0.0,
    window_bytes: int = 1 << 23,
) -> Iterator[Slave]:
    slave = Slave(log, rate_max=rate_max, linger_seconds=linger_seconds, window_bytes=window_bytes)
    try:
        yield slave
    finally:
        slave.link.close("the test is over")
        slave.socket.close()


async def test_a_slave_that_reads_slowly_gets_every_byte() -> None:
    log = FakeLog(bytes(range(256)) * 8000)  # more than the sockets hold
    with slave_of(log) as slave:
        await slave.tell(0)
        await asyncio.sleep(0.01)  # the socket is full by now
        assert await slave.take_log(log.end) == log.data


async def test_new_bytes_follow_when_it_is_woken() -> None:
    log = FakeLog(b"a" * 500)
    with slave_of(log) as slave:
        await slave.tell(0)
        assert await slave.take_log(500) == log.data
        await slave.tell(500)
        log.data += b"b" * 10
        log.end += 10
        slave.link.note_growth(log.end)
        head = await slave.take(12)
        assert (int.from_bytes(head[:8], "big"), head[8:]) == (500, (10).to_bytes(4, "big"))
        assert await slave.take(10) == b"b" * 10


async def test_nothing_is_sent_before_the_slave_has_told_where_to_begin() -> None:
    with slave_of(FakeLog(b"a" * 500)) as slave:
        slave.link.wake()
        slave.link.tick()
        await asyncio.sleep(0.01)
        with pytest.raises(BlockingIOError):
            slave.socket.recv(1)


async def test_a_request_at_the_end_counts_without_another_report() -> None:
    with slave_of(FakeLog(b"a" * 500)) as slave:
        await slave.tell(500)
        async with asyncio.timeout(10):
            while 500 not in slave.reports:
                await asyncio.sleep(0.001)


async def test_cold_bytes_are_read_by_a_thread_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_link, "READ_AHEAD_BYTES", 2 * BATCH)
    log = FakeLog(b"c" * 5 * BATCH, cold=True)
    with slave_of(log) as slave:
        await slave.tell(0)
        assert await slave.take_log(log.end) == log.data
    positions = [position for position, _ in log.warmed]
    assert positions[0] == 0
    assert max(position + size for position, size in log.warmed) == log.end


async def test_a_log_that_cannot_be_read_ends_the_connection() -> None:
    log = FakeLog(b"c" * BATCH, cold=True)
    log.is_broken = True
    with slave_of(log) as slave:
        await slave.tell(0)
        assert "the log cannot be read at 0" in await slave.until_ended()


async def test_a_part_that_was_deleted_ends_the_connection() -> None:
    log = FakeLog(b"c" * BATCH)
    log.data = b""
    with slave_of(log) as slave:
        await slave.tell(0)
        assert "the log has no 1000 bytes at 0" in await slave.until_ended()


async def test_the_rate_is_bounded() -> None:
    log = FakeLog(b"r" * 20 * BATCH)
    with slave_of(log, rate_max=5 * BATCH) as slave:
        await slave.tell(0)
        await slave.take_log(5 * BATCH)
        await asyncio.sleep(0.01)
        with pytest.raises(BlockingIOError):
            slave.socket.recv(1)
        slave.link.set_limits(frame_bytes_max=BATCH, rate_max=None)
        slave.link.wake()
        assert len(await slave.take(15 * (BATCH + 12))) == 15 * (BATCH + 12)


async def test_a_slave_far_behind_is_sent_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("BEHIND_BYTES", 5 * BATCH), ("TURN_BYTES", BATCH), ("BUSY_RATE", BATCH)):
        monkeypatch.setattr(pacing, name, value)
    log = FakeLog(b"f" * 20 * BATCH)
    with slave_of(log) as slave:
        await slave.tell(0)
        await slave.take_log(BATCH)
        await asyncio.sleep(0.01)  # much less than the pause
        assert slave.link.sender.next <= 3 * BATCH
    with slave_of(log) as slave:
        await slave.tell(15 * BATCH)  # nearly up to date
        assert len(await slave.take(5 * (BATCH + 12))) == 5 * (BATCH + 12)


async def test_new_limits_hold_for_the_next_frame() -> None:
    log = FakeLog(b"a" * BATCH)
    with slave_of(log) as slave:
        await slave.tell(0)
        assert await slave.take_log(BATCH) == log.data
        slave.link.set_limits(frame_bytes_max=100, rate_max=None)
        log.data += b"b" * 300
        slave.link.note_growth(log.end + 300)
        head = await slave.take(12)
        assert (int.from_bytes(head[:8], "big"), int.from_bytes(head[8:], "big")) == (BATCH, 100)


async def test_new_bytes_are_sent_before_control_returns_to_the_loop() -> None:
    log = FakeLog(b"a" * 500)
    with slave_of(log) as slave:
        await slave.tell(500)
        async with asyncio.timeout(10):
            while not slave.link.sender.has_started:
                await asyncio.sleep(0.001)
        log.data += b"b" * 10
        slave.link.note_growth(510)
        assert slave.socket.recv(100)[12:] == b"b" * 10


async def test_an_end_that_is_noticed_while_messages_are_stored_is_told_later() -> None:
    log = FakeLog(b"a" * 500)
    with slave_of(log) as slave:
        await slave.tell(500)
        async with asyncio.timeout(10):
            while not slave.link.sender.has_started:
                await asyncio.sleep(0.001)
        slave.link.note_growth(510)  # the log lacks them
        assert not slave.ends
        assert "the log has no 10 bytes at 500" in await slave.until_ended()
        assert log.is_closed


async def test_reports_of_bytes_that_were_not_sent_end_the_connection() -> None:
    with slave_of(FakeLog(b"a" * 500)) as slave:
        await slave.tell(0)
        await slave.take_log(500)
        await slave.tell(501)
        assert "was only sent the log up to 500" in await slave.until_ended()


async def test_the_end_of_the_slave_is_noticed() -> None:
    with slave_of(FakeLog(b"")) as slave:
        slave.socket.close()
        assert await slave.until_ended() == "the slave closed it"


async def test_single_reports_are_read_with_the_next_turn_if_nobody_waits() -> None:
    log = FakeLog(b"a" * 500)
    with slave_of(log, linger_seconds=0.001) as slave:
        await slave.tell(0)
        assert await slave.take_log(500) == log.data
        before = len(slave.reports)
        for position in range(1, 6):
            await slave.tell(position)
        await asyncio.sleep(0.01)
        assert len(slave.reports) == before
        slave.link.read_reports()  # for a tool
        assert slave.reports[before:] == [5]
        await slave.tell(500)
        slave.link.tick()
        async with asyncio.timeout(10):
            while slave.reports[-1] < 500:
                await asyncio.sleep(0.001)


async def test_many_reports_are_read_without_a_turn() -> None:
    log = FakeLog(b"a" * 500)
    with slave_of(log, linger_seconds=0.001) as slave:
        await slave.tell(0)
        await slave.take_log(500)
        for position in range(1, 100):
            await slave.tell(position)
        async with asyncio.timeout(10):
            while slave.reports[-1] < 64:
                await asyncio.sleep(0.001)


async def test_a_full_window_goes_on_with_the_next_report() -> None:
    log = FakeLog(b"a" * 5 * BATCH)
    with slave_of(log, linger_seconds=0.001, window_bytes=2 * BATCH) as slave:
        await slave.tell(0)
        log_read = 0
        while log_read < log.end:
            head = await slave.take(12)
            log_read += len(await slave.take(int.from_bytes(head[8:], "big")))
            await slave.tell(log_read)


async def test_the_end_of_a_slave_that_nobody_waits_for_is_noticed() -> None:
    log = FakeLog(b"a" * 500)
    with slave_of(log, linger_seconds=0.001) as slave:
        await slave.tell(0)
        await slave.take_log(500)
        slave.socket.close()
        assert await slave.until_ended() == "the slave closed it"
