"""A slave of ours behind a master like RocketMQ's, which judges nothing and says nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.bodies.stats import encode_key_values
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.ha_frames import encode_head
from rocketpost.server.replication import slave as slave_module
from rocketpost.server.routes.dispatch import answer
from rocketpost.server.routes.route import Reply
from rocketpost.transport.connection import Connection
from rocketpost.transport.listener import Listener

from .replicas import QUICK, follower, log_of, until_refused
from .settings.harness import Peer, broker

SEGMENT = 4 * 1024 * 1024


class ForeignMaster:
    """Serves an own log as RocketMQ's master does.

    Args:
        log: The log from ``first`` on.
        first: Its first position.
        segment_bytes: The size of its files.
        is_old: Whether it does not know request 906, as before 5.0.
    """

    def __init__(
        self, log: bytes, *, first: int = 0, segment_bytes: int = SEGMENT, is_old: bool = False
    ) -> None:
        self.log = log
        self.first = first
        self.segment_bytes = segment_bytes
        self.is_old = is_old
        self.requested: list[int] = []
        self.sends_log = True
        self._streams: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[ForeignMaster]:
        listener = Listener(on_request=self._serve)
        await listener.start("127.0.0.1", 0)
        self.address = f"127.0.0.1:{listener.port}"
        stream = await asyncio.start_server(self._stream, "127.0.0.1", 0)
        self.ha_address = f"127.0.0.1:{stream.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            stream.close()
            for task in self._streams:
                task.cancel()
            await asyncio.gather(*self._streams, return_exceptions=True)
            await listener.stop()

    def _serve(self, connection: Connection, command: Command) -> None:
        answer(connection, command, self._reply(command.code))

    def _reply(self, code: int) -> Reply:
        if code == Code.EXCHANGE_BROKER_HA_INFO and not self.is_old:
            fields = {
                "masterHaAddress": self.ha_address,
                "masterFlushOffset": "0",
                "masterAddress": self.address,
            }
            return Reply(fields=fields)
        if code == Code.GET_BROKER_RUNTIME_INFO:
            end = self.first + len(self.log)
            values = {"commitLogMinOffset": str(self.first), "commitLogMaxOffset": str(end)}
            return Reply(body=encode_key_values(values))
        if code == Code.GET_BROKER_CONFIG:
            return Reply(body=b"mappedFileSizeCommitLog=%d\n" % self.segment_bytes)
        return Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not supported")

    def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._streams.append(asyncio.create_task(self._send_log(reader, writer)))

    async def _send_log(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError):
            at = int.from_bytes(await reader.readexactly(8), "big")
            self.requested.append(at)
            end = self.first + len(self.log)
            if not at:
                at = max(self.first, end - end % self.segment_bytes)
            if self.sends_log and at < end:
                body = self.log[at - self.first :]
                writer.write(encode_head(at, len(body)) + body)
                at = end
            while not writer.is_closing():
                writer.write(encode_head(at, 0))
                await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def slave_of(master: ForeignMaster, root: Path) -> AsyncIterator[Peer]:
    """Run a slave that is told where its master is, as RocketMQ's master can tell it."""
    async with broker(root, brokerRole="SLAVE", brokerId=1, **QUICK) as slave:
        where = {"masterHaAddress": master.ha_address, "masterAddress": master.address}
        await slave.ok(Code.EXCHANGE_BROKER_HA_INFO, **where)
        yield slave


async def log_with(root: Path, count: int) -> bytes:
    """Return the log of a broker with some messages; its store stays."""
    async with broker(root) as own:
        for at in range(count):
            await own.send("T", b"body %d" % at)
        return log_of(own.server)


@pytest.mark.parametrize("is_old", [False, True])
async def test_it_follows(tmp_path: Path, is_old: bool) -> None:
    log = await log_with(tmp_path / "other", 10)
    async with (
        ForeignMaster(log, is_old=is_old).serve() as master,
        slave_of(master, tmp_path / "s") as slave,
    ):
        async with asyncio.timeout(15):
            while slave.server._context.store.confirmed_position < len(log):
                await asyncio.sleep(0.005)
        assert log_of(slave.server) == log
        assert master.requested[-1] == 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"segment_bytes": 2 * SEGMENT}, "mappedFileSizeCommitLog is 4194304 at the slave"),
        ({"log": b""}, "the slave has messages that the master lacks"),
        ({"first": 2 * SEGMENT}, "the master has deleted everything before"),
    ],
)
async def test_it_finds_out_that_it_can_never_follow(
    tmp_path: Path, changes: dict[str, int | bytes], problem: str
) -> None:
    log = await log_with(tmp_path / "s", 3)
    values = {"log": log, **changes}
    async with (
        ForeignMaster(**values).serve() as master,  # type: ignore[arg-type]
        slave_of(master, tmp_path / "s") as slave,
    ):
        assert problem in await until_refused(slave)
        assert not master.requested
        assert log_of(slave.server) == log


async def test_an_empty_slave_asks_for_the_first_position(tmp_path: Path) -> None:
    async with (
        ForeignMaster(b"", first=2 * SEGMENT).serve() as master,
        slave_of(master, tmp_path / "s"),
        asyncio.timeout(15),
    ):
        while not master.requested:
            await asyncio.sleep(0.005)
        assert master.requested[0] == 2 * SEGMENT


async def test_an_empty_slave_that_gets_only_the_last_file_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    master = ForeignMaster(bytes(SEGMENT + 100))
    master.sends_log = False
    with caplog.at_level(logging.WARNING):
        async with master.serve(), slave_of(master, tmp_path / "s"), asyncio.timeout(15):
            while not master.requested:
                await asyncio.sleep(0.005)
    assert master.requested[0] == 0
    assert "messages before position 4194304 will not be here" in caplog.text


async def test_endless_heartbeats_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "_STALLED_SECONDS", 0.05)
    log = await log_with(tmp_path / "s", 3)
    master = ForeignMaster(log + b"more")
    master.sends_log = False
    async with master.serve(), slave_of(master, tmp_path / "s") as slave, asyncio.timeout(15):
        while "it sends nothing from" not in follower(slave).stream.status().problem:
            await asyncio.sleep(0.005)
        assert follower(slave).stream.status().is_connected


async def test_a_damaged_record_is_refused_and_named(tmp_path: Path) -> None:
    log = bytearray(await log_with(tmp_path / "other", 3))
    log[log.rindex(b"body 2")] ^= 0xFF
    master = ForeignMaster(bytes(log))
    async with master.serve(), slave_of(master, tmp_path / "s") as slave:
        problem = await until_refused(slave)
        assert "record at" in problem
        store = slave.server._context.store
        assert 0 < store.confirmed_position < len(log)
        assert log.startswith(log_of(slave.server))


async def test_a_full_disk_is_named_and_the_slave_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "BACKOFF_SECONDS", 0.1)
    log = await log_with(tmp_path / "other", 3)
    async with broker(tmp_path / "s", brokerRole="SLAVE", brokerId=1, **QUICK) as slave:
        store = slave.server._context.store
        store.set_disk_full("the disk of this test is full")
        async with ForeignMaster(log).serve() as master:
            where = {"masterHaAddress": master.ha_address, "masterAddress": master.address}
            await slave.ok(Code.EXCHANGE_BROKER_HA_INFO, **where)
            assert "the disk of this test is full" in await until_refused(slave)
            store.set_disk_full(None)
            async with asyncio.timeout(15):
                while store.confirmed_position < len(log):
                    await asyncio.sleep(0.005)
            assert follower(slave).stream.status().problem == ""
