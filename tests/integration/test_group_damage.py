"""Members that lack old log, or whose files are damaged, get a new log from their leader."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.server.features.cleaning import CleaningFeature
from rocketpost.store.tables import TableFile
from rocketpost.testing.waiting import until

from .group_brokers import NODES, TOPIC, Group, ends_of, group_of_three

BODY = bytes(range(256)) * 400


async def fill(group: Group, count: int) -> None:
    """Send large messages, so that the log has several segments."""
    async with group.client(await group.leader()) as peer:
        for _ in range(count):
            answer = await peer.send(TOPIC, BODY)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            group.stored[int(answer.fields["queueOffset"])] = BODY


def age_files(directory: str) -> None:
    """Make segments look as if they had expired."""
    then = time.time() - 100 * 3600
    for path in Path(directory).glob("0*"):
        os.utime(path, (then, then))


async def delete_old_log(group: Group, node: str) -> int:
    """Let a member delete all segments that may expire; returns where its log begins then."""
    server = group.servers[node]
    store = server._context.store
    await asyncio.to_thread(store.save_blocking)
    age_files(store.segments.directory)
    (cleaning,) = (each for each in server._term.features if isinstance(each, CleaningFeature))
    async with asyncio.timeout(15):
        while not await cleaning.clean_now():  # the newest segments must have a copy of the tables
            await asyncio.sleep(0.1)
    first = int(store.first_position)
    await until(lambda: group.member(node).node.log.first == first)
    queue = store.queue(TOPIC, 0)
    assert queue is not None
    for offset in range(int(queue.first)):
        group.stored.pop(offset, None)
    return first


async def until_equal(group: Group) -> None:
    """Wait until all members have the same end, and check what they show."""
    stores = [server._context.store for server in group.servers.values()]
    async with asyncio.timeout(20):
        while True:
            stores = [server._context.store for server in group.servers.values()]
            if len({at for each in stores for at in ends_of(each)}) == 1:
                break
            await asyncio.sleep(0.01)
    queues = [store.queue(TOPIC, 0) for store in stores]
    assert len({queue.end for queue in queues if queue is not None}) == 1
    first = max(int(store.first_position) for store in stores)
    end = int(stores[0].written_position)
    logs = {bytes(store.view(first, end - first) or b"") for store in stores}
    assert len(logs) == 1


async def until_sound(group: Group, node: str) -> None:
    async with asyncio.timeout(20):
        while group.member(node).node.is_suspect:
            await asyncio.sleep(0.01)


async def test_a_member_that_was_away_too_long_gets_a_new_log(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        away = next(node for node in NODES if node != leader)
        await fill(group, 5)
        await group.stop([away])
        await fill(group, 40)
        first = await delete_old_log(group, leader)
        await group.start([away])
        await until(lambda: group.servers[away]._context.store.first_position == first)
        await until_equal(group)
        assert group.servers[away]._context.store.first_position == first > 0
        await group.send(leader, 5)
        await group.stop([next(node for node in NODES if node not in (leader, away))])
        await group.send(leader, 5)
        await until_equal(group)
        await group.member(leader).hand_over(away)
        await group.send(await group.leader(but=leader), 5)


async def test_a_member_with_a_full_disk_gets_a_new_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old log, which fills the disk, is about to be deleted; no table needs to be saved."""
    save, full = TableFile.save_blocking, set[str]()
    refused: list[str] = []

    def save_with_room(file: TableFile[Any], data: bytes) -> None:
        if any(f"/{node}/" in file._path for node in full):
            refused.append(file._path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(file, data)

    monkeypatch.setattr(TableFile, "save_blocking", save_with_room)
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        away = next(node for node in NODES if node != leader)
        await fill(group, 5)
        await group.stop([away])
        await fill(group, 40)
        first = await delete_old_log(group, leader)
        full.add(away)
        await group.start([away])
        group.servers[away]._context.tables.offsets.commit(TOPIC, "g", 0, 1)
        await until(lambda: group.servers[away]._context.store.first_position == first)
        assert refused
        full.clear()
        await until_equal(group)


async def test_a_lost_disk_is_filled_from_where_the_log_begins(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        lost = next(node for node in NODES if node != leader)
        await fill(group, 45)
        await group.stop([lost])
        group.lose_disk(lost)
        first = await delete_old_log(group, leader)
        await group.start([lost])
        await until_sound(group, lost)
        assert group.servers[lost]._context.store.first_position == first
        await until_equal(group)


def segments(root: Path) -> list[Path]:
    return sorted(path for path in (root / "commitlog").iterdir() if path.is_file())


def lose_first_segment(root: Path) -> None:
    segments(root)[0].unlink()


def lose_middle_segment(root: Path) -> None:
    segments(root)[1].unlink()


def cut_segment(root: Path) -> None:
    os.truncate(segments(root)[0], 500_000)


def lose_hard_state(root: Path) -> None:
    for number in range(2):
        (root / f"hard-state-{number}").unlink()


def restore_old_log(root: Path) -> None:
    shutil.rmtree(root / "commitlog")
    shutil.copytree(root.parent / "backup" / "commitlog", root / "commitlog")


@pytest.mark.parametrize(
    "harm",
    [
        lose_first_segment,
        pytest.param(lose_middle_segment, marks=pytest.mark.long),
        pytest.param(cut_segment, marks=pytest.mark.long),
        pytest.param(lose_hard_state, marks=pytest.mark.long),
        restore_old_log,
    ],
)
async def test_a_damaged_member_is_noticed_and_repaired(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        damaged = next(node for node in NODES if node != leader)
        await fill(group, 12)
        await group.stop([damaged])
        shutil.copytree(tmp_path / damaged, tmp_path / "backup")
        await group.start([damaged])
        await fill(group, 15)
        await until_equal(group)
        await group.stop([damaged])
        harm(tmp_path / damaged)
        other = next(node for node in NODES if node not in (leader, damaged))
        await group.stop([leader, other])
        await group.start([damaged])
        member = group.member(damaged)
        assert member.node.is_suspect
        assert member.member_status().suspicions
        await group.start([leader, other])
        await until_sound(group, damaged)
        await group.send(await group.leader(), 5)
        await group.check()
        await group.stop([damaged])
        await group.start([damaged])
        assert not group.member(damaged).node.is_suspect
        await group.check()
