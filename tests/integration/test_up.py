"""``rocketpost up``: how much disk it takes, and stores that it did not make."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from rocketpost.client import Message, Producer
from rocketpost.errors import StoreError
from rocketpost.kernel import FORM
from rocketpost.server.up import SingleNode

MB = 1024**2


def taken(root: Path) -> int:
    """Return the bytes of disk under a directory."""
    found = (os.lstat(path) for path in root.rglob("*"))
    return sum(each.st_blocks * 512 for each in found)


async def use(data: Path, **settings: str) -> int:
    """Run a server, send one message; return how much disk it took."""
    node = SingleNode(data, settings=settings)
    await node.start()
    try:
        async with Producer("producers", name_servers=node.address) as producer:
            await producer.send(Message("T", b"one", keys="k"))
    finally:
        await node.stop()
    return taken(data)


async def test_the_first_message_takes_little_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    assert await use(tmp_path) < 180 * MB
    assert f"broker starts: kernel={FORM.word} reason={FORM.reason}" in caplog.messages
    assert await use(tmp_path) < 180 * MB


async def test_a_store_with_other_sizes_opens(tmp_path: Path) -> None:
    sizes = {"mappedFileSizeCommitLog": "8388608", "maxHashSlotNum": "100", "maxIndexNum": "400"}
    await use(tmp_path, **sizes)
    await use(tmp_path)
    segments = [path for path in (tmp_path / "store/commitlog").iterdir() if path.is_file()]
    assert {path.stat().st_size for path in segments} == {8 * MB}
    with pytest.raises(StoreError, match="--segment-size is 16777216"):
        await use(tmp_path, mappedFileSizeCommitLog="16777216")


async def test_a_lost_log_is_reported_and_can_be_accepted(tmp_path: Path) -> None:
    await use(tmp_path)
    shutil.rmtree(tmp_path / "store/commitlog")
    with pytest.raises(StoreError, match="--accept-missing-log"):
        await use(tmp_path)
    node = SingleNode(tmp_path, accept_missing=True)
    await node.start()
    await node.stop()
    await use(tmp_path)
