"""Idempotent producers at a broker whose ``producerState.json`` is lost or damaged."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.store.tables import TableFile

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


async def test_a_broker_starts_without_room_for_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = TableFile.save_blocking

    def save_with_room(file: TableFile[Any], data: bytes) -> None:
        if file._path.endswith("producerState.json"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(file, data)

    monkeypatch.setattr(TableFile, "save_blocking", save_with_room)
    async with broker(tmp_path / "before") as server, connected(server) as peer:
        assert [await send(peer, number) for number in (0, 1, 1)] == [False, False, True]
        root = copy_files(tmp_path / "before", tmp_path / "killed")
        monkeypatch.undo()
    async with broker(root) as server, connected(server) as peer:
        assert [await send(peer, number) for number in (1, 2)] == [True, False]
