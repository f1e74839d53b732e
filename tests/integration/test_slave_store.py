"""The store of a slave: what expires, what happens without room, what a promotion finds."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from rocketpost.codec.codes import ResponseCode
from rocketpost.server.features.cleaning import CleaningFeature
from rocketpost.server.replication import slave as slave_module

from .replicas import follower, log_of, pair, until_copied
from .settings.harness import Peer

MIB = 1024 * 1024
SMALL: dict[str, object] = {"mappedFileSizeCommitLog": MIB, "maxMessageSize": 500_000}


async def fill(peer: Peer, count: int) -> None:
    for _ in range(count):
        assert (await peer.send("T", bytes(300_000))).code == ResponseCode.SUCCESS


def age_files(peer: Peer) -> None:
    """Make the segments of a broker look as if they had expired."""
    then = time.time() - 100 * 3600
    for path in Path(peer.server._context.store.segments.directory).glob("0*"):
        os.utime(path, (then, then))


async def clean(peer: Peer) -> int:
    (cleaning,) = (each for each in peer.server._term.features if isinstance(each, CleaningFeature))
    return await cleaning.clean_now()


async def test_a_slave_deletes_what_its_master_has_deleted(tmp_path: Path) -> None:
    async with pair(tmp_path, master=SMALL, slave=SMALL) as (master, slave):
        await fill(master, 12)
        await until_copied(master, slave)
        ours, copies = master.server._context.store, slave.server._context.store
        await asyncio.to_thread(copies.save_blocking)
        await asyncio.to_thread(ours.save_blocking)
        age_files(slave)
        assert await clean(slave) == 0, "the master still has everything"
        age_files(master)
        assert await clean(master) > 0
        await clean(slave)  # it knew the master's log as it was before
        await clean(slave)
        assert copies.first_position == ours.first_position > 0
        queue, copy = ours.queue("T", 0), copies.queue("T", 0)
        assert queue is not None
        assert copy is not None
        assert (copy.first, copy.end) == (queue.first, queue.end)
        await fill(master, 1)
        await until_copied(master, slave)


async def test_a_slave_without_room_goes_on_when_there_is_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slave_module, "BACKOFF_SECONDS", 0.05)
    async with pair(tmp_path, master=SMALL, slave=SMALL | {"slaveReadEnable": "true"}) as (
        master,
        slave,
    ):
        await fill(master, 2)
        await until_copied(master, slave)
        async with asyncio.timeout(20):
            while not await slave.records("T"):  # until it knows the topic
                await asyncio.sleep(0.01)
        store = slave.server._context.store
        end = store.end_position
        store.set_disk_full("the disk is 95% full")
        await fill(master, 2)
        async with asyncio.timeout(20):
            while "95%" not in follower(slave).stream.status().problem:
                await asyncio.sleep(0.01)
        assert store.end_position == end
        assert await slave.records("T"), "it serves what it has"
        store.set_disk_full(None)
        await until_copied(master, slave)
        assert log_of(slave.server) == log_of(master.server)
