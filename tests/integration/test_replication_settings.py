"""Settings of masters and slaves act."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.ha_frames import encode_report
from rocketpost.testing.process import free_port

from .replicas import (
    follower,
    leader,
    log_of,
    name_server,
    slave_of,
    until_copied,
    until_following,
)
from .settings.harness import Peer, broker

SMALL: dict[str, object] = {"mappedFileSizeCommitLog": 1024 * 1024, "maxMessageSize": 500_000}


@contextlib.asynccontextmanager
async def stranger(
    master: Peer, request: int = 0
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to a master's HA port as a slave that asks for the log from a position on."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", leader(master).slaves._listener.port
    )
    writer.write(encode_report(request))
    try:
        yield reader, writer
    finally:
        writer.close()


async def read_head(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Return position and size of the next frame."""
    head = await reader.readexactly(12)
    return int.from_bytes(head[:8], "big"), int.from_bytes(head[8:], "big")


async def test_brokerRole_and_brokerId(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path) as names,
        broker(tmp_path / "m", namesrvAddr=names) as master,
        broker(tmp_path / "s", namesrvAddr=names, brokerRole="SLAVE", brokerId=3) as slave,
    ):
        await until_following(slave)
        assert (await slave.send("T")).code == ResponseCode.SYSTEM_BUSY
        (replica,) = leader(master).slaves.status().replicas
        assert replica.broker_id == 3


async def test_haListenPort_and_brokerIP2(tmp_path: Path) -> None:
    port = free_port()
    async with broker(tmp_path, haListenPort=port, brokerIP2="127.0.0.9") as master:
        answer = await master.ok(Code.EXCHANGE_BROKER_HA_INFO)
        assert answer.fields["masterHaAddress"] == f"127.0.0.9:{port}"
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()


async def test_haSendHeartbeatInterval(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, haSendHeartbeatInterval=50) as master,
        stranger(master) as (reader, _),
        asyncio.timeout(10),
    ):
        for _ in range(3):
            assert await read_head(reader) == (0, 0)


async def test_haHousekeepingInterval(tmp_path: Path) -> None:
    times: dict[str, object] = {"haSendHeartbeatInterval": 50, "haHousekeepingInterval": 200}
    async with (
        broker(tmp_path, **times) as master,
        stranger(master) as (reader, _),
        asyncio.timeout(10),
    ):
        await reader.read()  # ends, as no more reports come


async def test_haTransferBatchSize(tmp_path: Path) -> None:
    async with broker(tmp_path, haTransferBatchSize=700) as master:
        await master.send("T", b"x" * 2000)
        async with stranger(master) as (reader, _):
            assert await read_head(reader) == (0, 700)


async def test_a_new_haTransferBatchSize_holds_for_connected_slaves(tmp_path: Path) -> None:
    async with broker(tmp_path) as master:
        await master.send("T", b"x")
        async with stranger(master) as (reader, _):
            _, size = await read_head(reader)
            await reader.readexactly(size)
            await master.set(haTransferBatchSize=1024)
            await master.send("T", b"x" * 2000)
            assert await read_head(reader) == (size, 1024)


async def test_haMaxGapNotInSync(tmp_path: Path) -> None:
    async with broker(tmp_path, haMaxGapNotInSync=1000) as master:
        await master.send("T", b"x" * 2000)
        async with stranger(master) as (reader, writer):
            _, size = await read_head(reader)
            (replica,) = leader(master).slaves.status().replicas
            assert not replica.is_in_sync
            writer.write(encode_report(size))
            async with asyncio.timeout(10):
                while not leader(master).slaves.status().in_sync_count:
                    await asyncio.sleep(0.01)


async def test_haFlowControlEnable_and_maxHaTransferByteInSecond(tmp_path: Path) -> None:
    rate = 200_000
    limits: dict[str, object] = {
        "haFlowControlEnable": "true",
        "maxHaTransferByteInSecond": rate,
    }
    async with broker(tmp_path, **limits) as master:
        for _ in range(10):
            await master.send("T", b"x" * 200_000)
        received = 0
        async with stranger(master) as (reader, _):
            async with asyncio.timeout(10):
                while received < rate:
                    received += len(await reader.read(65_536))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    while received < len(log_of(master.server)):
                        received += len(await reader.read(65_536))
        assert received < 4 * rate


async def test_syncFromLastFile(tmp_path: Path) -> None:
    async with broker(tmp_path, syncFromLastFile="true", **SMALL) as master:
        for _ in range(8):
            await master.send("T", b"x" * 400_000)
        end = len(log_of(master.server))
        async with stranger(master) as (reader, _):
            position, _ = await read_head(reader)
        assert position == end - end % (1024 * 1024) > 0


async def test_syncFromLastFile_of_a_slave(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path) as names,
        broker(tmp_path / "m", namesrvAddr=names, **SMALL) as master,
    ):
        for _ in range(8):
            await master.send("T", b"x" * 400_000)
        async with slave_of(names, tmp_path / "s", syncFromLastFile="true", **SMALL) as slave:
            await until_copied(master, slave)
            assert slave.server._context.store.first_position > 0


async def test_syncMasterFlushOffsetWhenStartup(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        async with broker(tmp_path / "m", namesrvAddr=names) as master:
            await master.send("T")
            end = len(log_of(master.server))
        async with (
            broker(tmp_path / "m", namesrvAddr=names),
            slave_of(names, tmp_path / "s", syncMasterFlushOffsetWhenStartup="true") as slave,
        ):
            await until_following(slave)
            assert follower(slave).context.store.checkpoint.master_flushed == end > 0


async def test_enableAutoInSyncReplicas_and_minInSyncReplicas(tmp_path: Path) -> None:
    group: dict[str, object] = {
        "brokerRole": "SYNC_MASTER",
        "enableSlaveActingMaster": "true",
        "skipPreOnline": "true",
        "totalReplicas": 2,
    }
    auto: dict[str, object] = {"enableAutoInSyncReplicas": "true"}
    async with broker(tmp_path / "auto", **group | auto) as master:
        assert (await master.send("T")).code == ResponseCode.SUCCESS
    async with broker(tmp_path / "two", **group | auto, minInSyncReplicas=2) as master:
        assert (await master.send("T")).code == ResponseCode.SYSTEM_ERROR


async def test_slaveTimeout(tmp_path: Path) -> None:
    async with (
        broker(tmp_path, brokerRole="SYNC_MASTER", slaveTimeout=50) as master,
        stranger(master),
    ):
        async with asyncio.timeout(10):
            while not leader(master).slaves.acks.in_sync(0, 1000):
                await asyncio.sleep(0.005)
        async with asyncio.timeout(2.8):  # the default is 3 s
            answer = await master.send("T")
        assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
