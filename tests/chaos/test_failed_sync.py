"""``fdatasync`` fails: the broker acknowledges nothing more and says why; reads go on.

The broker runs in this process, so that its files can be made to fail without tricks of the
loader.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.errors import StoreBroken
from rocketpost.server.broker import BrokerServer
from rocketpost.store.files import RealFiles
from rocketpost.testing.campaign import TINY_STORE
from rocketpost.testing.link import BrokerLink, SendPart

TOPIC = "sync"


class FailingSync:
    """Lets the syncs of the commit log fail while :attr:`fails` is true."""

    def __init__(self) -> None:
        self.fails = False

    def __call__(self, fd: int) -> None:
        if self.fails and "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(fd)


@pytest.fixture
def sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[FailingSync]:
    failing = FailingSync()
    monkeypatch.setattr(RealFiles, "fdatasync", staticmethod(failing))
    yield failing
    failing.fails = False


async def send(link: BrokerLink, body: bytes) -> Command:
    return await link.send(TOPIC, 0, [SendPart(body, {"UNIQ_KEY": body.hex()})], queue_nums=1)


async def bodies(link: BrokerLink) -> list[bytes]:
    end = await link.max_offset(TOPIC, 0)
    return [bytes(record.body) for record in await link.read(TOPIC, 0, 0, end)]


def values(directory: Path, flush: str) -> dict[str, str]:
    return {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(directory / "store"),
        "flushDiskType": flush,
        "flushIntervalCommitLog": "50",
        **TINY_STORE,
    }


async def stop_broken(server: BrokerServer) -> None:
    """Stop a broker whose log is not durable: offsets into it are not saved, and it says so."""
    with pytest.raises(StoreBroken, match="could not be made durable"):
        await server.stop()


async def test_sync_flush(tmp_path: Path, sync: FailingSync) -> None:
    server = BrokerServer(values(tmp_path, "SYNC_FLUSH"))
    await server.start()
    link = await BrokerLink.connect(server.address)
    for number in range(10):
        (await send(link, b"good-%d" % number)).raise_for_code()
    good = await bodies(link)
    sync.fails = True

    waiting = [link.send(TOPIC, 0, [SendPart(b"bad", {"UNIQ_KEY": f"X{n}"})]) for n in range(5)]
    for future in waiting:
        answer = await future
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "could not be made durable: Input/output error" in (answer.remark or "")
    # Also when the disk seems well again: the kernel may have dropped the pages.
    sync.fails = False
    answer = await send(link, b"later")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "could not be made durable" in (answer.remark or "")
    assert await bodies(link) == good
    link.close()
    await stop_broken(server)

    again = BrokerServer(values(tmp_path, "SYNC_FLUSH"))
    await again.start()
    link = await BrokerLink.connect(again.address)
    found = await bodies(link)
    assert found[: len(good)] == good
    assert set(found[len(good) :]) <= {b"bad"}
    (await send(link, b"fine")).raise_for_code()
    assert (await bodies(link))[-1] == b"fine"
    link.close()
    await again.stop()


async def test_async_flush(tmp_path: Path, sync: FailingSync) -> None:
    """The promise in force was the page cache, and it is kept; new messages are refused."""
    server = BrokerServer(values(tmp_path, "ASYNC_FLUSH"))
    await server.start()
    link = await BrokerLink.connect(server.address)
    (await send(link, b"0")).raise_for_code()  # makes the first segment, which is synced
    sync.fails = True
    acknowledged = [b"0"]
    answer = await send(link, b"1")
    while answer.code == ResponseCode.SUCCESS:
        acknowledged.append(str(len(acknowledged)).encode())
        answer = await send(link, str(len(acknowledged)).encode())
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "could not be made durable: Input/output error" in (answer.remark or "")
    assert await bodies(link) == acknowledged
    link.close()
    await stop_broken(server)
