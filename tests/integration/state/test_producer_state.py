"""Idempotent producers at a broker whose ``producerState.json`` is lost or damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode

from .harness import Peer, broker, connected, copy_files

SMALL = {
    "maxMessageSize": "4096",
    "mappedFileSizeCommitLog": "65536",
    "flushDiskType": "SYNC_FLUSH",
}


def delete(path: Path) -> None:
    path.unlink(missing_ok=True)


def zero(path: Path) -> None:
    if path.exists():
        path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    if path.exists():
        path.write_bytes(path.read_bytes()[:20])


def stamp(number: int) -> str:
    return f"0:{number}::writer"


async def send(peer: Peer, number: int, body: bytes = b"body") -> bool:
    """Send a numbered message; return whether it was known."""
    answer = await peer.send("T", body=body, sequence=stamp(number))
    return answer.fields.get("duplicate") == "true"


@pytest.mark.slow
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("damage", [delete, zero, cut])
async def test_numbers_are_read_from_the_log(
    tmp_path: Path, damage: Callable[[Path], None], is_clean: bool
) -> None:
    root = tmp_path / "before"
    async with broker(root) as server, connected(server) as peer:
        assert [await send(peer, number) for number in range(10)] == [False] * 10
        if not is_clean:
            root = copy_files(root, tmp_path / "killed")
    for name in ("producerState.json", "producerState.json.bak"):
        damage(root / "config" / name)
    async with broker(root) as server, connected(server) as peer:
        assert "rebuilt from the whole log" in (await peer.status())["producerStateRepair"]
        assert [await send(peer, number) for number in range(12)] == [True] * 10 + [False] * 2
    async with broker(root) as server, connected(server) as peer:
        assert (await peer.status())["producerStateRepair"] == ""
        assert await send(peer, 11)


@pytest.mark.slow
async def test_numbers_that_the_log_has_lost_are_refused_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker(tmp_path, **SMALL) as server, connected(server) as peer:
        for number in range(60):
            assert not await send(peer, number, b"x" * 2000)
    async with broker(tmp_path, **SMALL) as server, connected(server) as peer:
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, (1, 1))
        await peer.succeed(Code.DELETE_EXPIRED_COMMITLOG)
        assert await peer.pull("T", 0) == []
    for path in (tmp_path / "config").glob("producerState.json*"):
        path.unlink()
    async with broker(tmp_path, **SMALL) as server, connected(server) as peer:
        assert "the rest is lost" in (await peer.status())["producerStateRepair"]
        assert any(
            record.levelname == "ERROR" and "idempotent producers" in record.message
            for record in caplog.records
        )
        assert await send(peer, 59)
        answer = await peer.call(
            Code.SEND_MESSAGE, b"again", producerGroup="P", topic="T", defaultTopic="TBW102",
            defaultTopicQueueNums=1, queueId=0, sysFlag=0, bornTimestamp=1, flag=0, properties="",
            sequence=stamp(0),
        )  # fmt: skip
        assert answer.code != ResponseCode.SUCCESS
        assert "the lowest that the broker remembers" in (answer.remark or "")


def make_foreign(root: Path) -> None:
    """Remove every sign that the store was ever ours."""
    shutil.rmtree(root / "commitlog" / "allocating")
    shutil.rmtree(root / "config" / "known")
    for name in ("extent", "damage.json", "scrub.json"):
        (root / name).unlink(missing_ok=True)
    for pattern in ("config/producerState.json*", "config/droppedTopics.json*", "timerwheel.j*"):
        for path in root.glob(pattern):
            path.unlink()
    checkpoint = root / "checkpoint"
    checkpoint.write_bytes(checkpoint.read_bytes()[:64].ljust(4096, b"\0"))


@pytest.mark.slow
async def test_a_store_of_rocketmq_is_not_searched_for_numbers(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, connected(server) as peer:
        assert [await send(peer, number) for number in range(3)] == [False] * 3
    make_foreign(tmp_path)
    async with broker(tmp_path) as server, connected(server) as peer:
        assert (await peer.status())["producerStateRepair"] == ""
        assert not await send(peer, 2)  # nobody has looked
        assert await send(peer, 2)
    for path in (tmp_path / "config").glob("producerState.json*"):
        path.unlink()
    async with broker(tmp_path) as server, connected(server) as peer:  # it is ours by now
        assert "rebuilt from the whole log" in (await peer.status())["producerStateRepair"]
        assert await send(peer, 2)


@pytest.mark.slow
async def test_a_broker_without_idempotent_producers_reports_none(tmp_path: Path) -> None:
    async with broker(tmp_path) as server, connected(server) as peer:
        await peer.send("T")
    for path in (tmp_path / "config").glob("producerState.json*"):
        path.unlink()
    async with broker(tmp_path) as server, connected(server) as peer:
        assert (await peer.status())["producerStateRepair"] == ""
