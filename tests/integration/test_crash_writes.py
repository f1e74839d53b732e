"""Writes and syncs of the commit log that fail in a broker: nobody is told that they went well.

The broker runs in this process, so that its files can be made to fail.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.server.broker import BrokerServer
from rocketpost.store.files import RealFiles
from rocketpost.testing.campaign import TINY_STORE
from rocketpost.testing.link import BrokerLink, SendPart

TOPIC = "writes"


class FailingWrites:
    """Lets the next writes to the commit log find the disk full."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, fd: int, data: bytes, offset: int) -> int:
        if self.left and "/commitlog/" in os.readlink(f"/proc/self/fd/{fd}"):
            self.left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> FailingWrites:
    failing = FailingWrites()
    monkeypatch.setattr(RealFiles, "pwrite", staticmethod(failing))
    return failing


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
async def link(
    request: pytest.FixtureRequest, tmp_path: Path, writes: FailingWrites
) -> AsyncIterator[BrokerLink]:
    values = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(tmp_path / "store"),
        "flushDiskType": request.param,
        **TINY_STORE,
    }
    server = BrokerServer(values)
    await server.start()
    link = await BrokerLink.connect(server.address)
    (await link.send(TOPIC, 0, [SendPart(b"first", {"UNIQ_KEY": "K0"})])).raise_for_code()
    yield link
    link.close()
    await server.stop()


async def bodies(link: BrokerLink) -> list[bytes]:
    end = await link.max_offset(TOPIC, 0)
    return [bytes(record.body) for record in await link.read(TOPIC, 0, 0, end)]


async def test_a_refused_message_leaves_no_trace(link: BrokerLink, writes: FailingWrites) -> None:
    writes.left = 1
    refused = await link.send(TOPIC, 0, [SendPart(b"refused", {"UNIQ_KEY": "K1"})])
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "No space left on device" in (refused.remark or "")
    taken = await link.send(TOPIC, 0, [SendPart(b"second", {"UNIQ_KEY": "K2"})])
    assert (taken.code, taken.fields["queueOffset"]) == (0, "1")
    assert await bodies(link) == [b"first", b"second"]


async def test_a_deletion_in_between_does_not_hide_that_a_write_failed(
    link: BrokerLink, writes: FailingWrites
) -> None:
    """Deleting a topic ends the log where it is, which writes what others have just sent."""
    await link.create_topic("doomed", 1)
    writes.left = 1
    # Both in one piece, so that the broker meets the deletion before it commits the send.
    deletion = asyncio.ensure_future(link.delete_topic("doomed"))
    await asyncio.sleep(0)
    sent = link.send(TOPIC, 0, [SendPart(b"maybe", {"UNIQ_KEY": "K1"})])
    answer = await sent
    await asyncio.wait([deletion])
    deletion.exception()
    stored = await bodies(link)
    assert stored == ([b"first", b"maybe"] if answer.code == 0 else [b"first"])
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
