"""The lines of the log and the errors on the page about damage are those of a broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.client import Message, MessageQueue, Producer, PullConsumer
from rocketpost.errors import RocketpostError
from rocketpost.server.up import SingleNode
from rocketpost.settings import format_properties
from rocketpost.testing.cluster import SMALL_STORE
from rocketpost.testing.process import free_port

from .pages import ROOT, blocks_of
from .shell import Shell

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/guide/damage.md"
SIZES = {
    **SMALL_STORE,
    "mappedFileSizeCommitLog": str(128 * 1024),
    "maxMessageSize": str(64 * 1024),
    "checkCRCOnReadInterval": "0",
}
COUNT = 40


def printed(start: str) -> re.Pattern[str]:
    """Return a pattern of the block that begins so, with any numbers and paths."""
    [text] = [block.text for block in blocks_of(PAGE) if block.start.startswith(start)]
    pattern = re.escape(" ".join(text.split())).replace(r"\.\.\.", ".*").replace(r"\ ", r"\s+")
    pattern = re.sub(r"/[\w/\\]+(?=\\s|,)", r"\\S+", pattern)
    return re.compile(re.sub(r"\d+", r"\\d+", pattern))


@contextlib.asynccontextmanager
async def running(directory: Path, **settings: str) -> AsyncIterator[SingleNode]:
    node = SingleNode(directory, settings={**SIZES, **settings})
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def make_store(directory: Path) -> None:
    """Make a store of several files, and the ``broker.conf`` for it."""
    queue = MessageQueue(broker_name="broker-a", queue_id=3, topic="orders")
    async with (
        running(directory, brokerName="broker-a") as node,
        Producer("orders", name_servers=node.address) as producer,
    ):
        await producer.send(Message("orders", b"the first makes the topic"))
        for _ in range(COUNT):  # of bytes that nobody can compress
            await producer.send(Message("orders", os.urandom(16 * 1024)), queue=queue)
    values = {"storePathRootDir": str(directory / "store"), "brokerName": "broker-a", **SIZES}
    (directory / "broker.conf").write_text(format_properties(values))


def log_files(directory: Path) -> list[Path]:
    return sorted(path for path in (directory / "store/commitlog").iterdir() if path.is_file())


def lose_file(directory: Path) -> None:
    """Delete the second file of the commit log."""
    files = log_files(directory)
    assert len(files) > 3
    files[1].unlink()


def change(path: Path, position: int, *, count: int = 1) -> None:
    """Change bytes of a file."""
    with path.open("r+b") as file:
        file.seek(position)
        found = file.read(count)
        file.seek(position)
        file.write(bytes(byte ^ 0xFF for byte in found))


async def test_a_damaged_body_is_logged_as_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make_store(tmp_path)
    change(log_files(tmp_path)[1], 24 * 1024)  # inside the second of its bodies
    shutil.rmtree(tmp_path / "store/consumequeue")
    async with running(tmp_path, brokerName="broker-a"):
        pass
    assert printed("commit log is damaged ").search(caplog.text)


async def test_a_missing_message_is_logged_as_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make_store(tmp_path)
    file = log_files(tmp_path)[1]
    size = int.from_bytes(file.read_bytes()[:4])
    change(file, size, count=200)  # all that the second record says of itself
    shutil.rmtree(tmp_path / "store/consumequeue")
    async with running(tmp_path, brokerName="broker-a"):
        pass
    assert "topic=None queue=-1 offset=-1" in caplog.text
    assert printed("messages are missing in a queue ").search(caplog.text)


async def test_a_mended_entry_is_logged_as_printed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await make_store(tmp_path)
    [entries] = (tmp_path / "store/consumequeue/orders/3").iterdir()
    change(entries, 20 * 5 + 7)  # the position that the sixth entry has
    queue = MessageQueue(broker_name="broker-a", queue_id=3, topic="orders")
    async with (
        running(tmp_path, brokerName="broker-a") as node,
        PullConsumer("billing", name_servers=node.address) as consumer,
    ):
        await consumer.pull(queue, 5)
    assert printed("queue entry was damaged and is mended ").search(caplog.text)


def test_a_missing_file_is_refused_as_printed(tmp_path: Path) -> None:
    asyncio.run(make_store(tmp_path))
    lose_file(tmp_path)
    shell = Shell(tmp_path, {9876: free_port(), 10911: free_port()})
    done = shell.call("mqbroker -c broker.conf")
    assert done.returncode
    assert printed("the commit log in /data/store/commitlog lacks ").search(done.stderr)


async def test_a_commit_log_in_use_is_refused_as_printed(tmp_path: Path) -> None:
    shared = {"storePathCommitLog": str(tmp_path / "log")}
    async with running(tmp_path / "one", **shared):
        with pytest.raises(RocketpostError, match=printed("the commit log /fast/log is in use ")):
            async with running(tmp_path / "two", **shared):
                pass
