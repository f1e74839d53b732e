"""Tables of a slave that follows a real stream: through restarts, losses and a promotion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketpost.codec.codes import RequestCode as Code
from rocketpost.server.replication import slave as slave_module
from rocketpost.server.replication import tables_follower

from .replicas import (
    QUICK,
    follower,
    log_of,
    name_server,
    pair,
    slave_of,
    until_copied,
    until_following,
)
from .settings.harness import Peer, broker, until

SETTINGS: dict[str, object] = {"timerWheelEnable": "true", "timerPrecisionMs": 100}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slave_module, "BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(tables_follower, "RETRY_SECONDS", 0.1)


async def commit(peer: Peer, offset: int, group: str = "G") -> None:
    await peer.ok(
        Code.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group, topic="T", queueId=0, commitOffset=offset,
    )  # fmt: skip


async def offset_at(peer: Peer, group: str = "G") -> int:
    answer = await peer.call(
        Code.QUERY_CONSUMER_OFFSET,
        consumerGroup=group, topic="T", queueId=0, setZeroIfNotFound="false",
    )  # fmt: skip
    return int(answer.fields["offset"]) if answer.code == 0 else -1


async def tables_of(peer: Peer) -> list[Any]:
    codes = (
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
    )
    return [bytes((await peer.ok(code)).body) for code in codes]


async def until_same(master: Peer, slave: Peer) -> None:
    async def same() -> bool:
        return await tables_of(master) == await tables_of(slave)

    await until(same)


async def fill(master: Peer) -> None:
    await master.topic("T")
    await master.group("G", retryMaxTimes=4)
    for _ in range(9):
        await master.send("T")
    await commit(master, 2)
    await master.ok(
        Code.SET_MESSAGE_REQUEST_MODE,
        msgspec.json.encode(
            {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 1}
        ),
    )


async def test_every_table_is_the_same(tmp_path: Path) -> None:
    async with pair(tmp_path, master=SETTINGS, slave=SETTINGS) as (master, slave):
        await fill(master)
        await master.send("T", b"later", DELAY="1")
        await until_same(master, slave)
        await master.ok(Code.DELETE_TOPIC_IN_BROKER, topic="T")
        await until_same(master, slave)

        async def gone() -> bool:
            return slave.server._context.store.queue("T", 0) is None

        await until(gone)


async def test_commits_made_while_the_master_is_away_reach_it(tmp_path: Path) -> None:
    async with name_server(tmp_path) as names:
        own = {"namesrvAddr": names, **QUICK}
        async with broker(tmp_path / "m", **own) as master:
            await fill(master)
            async with slave_of(names, tmp_path / "s") as slave:
                await until_same(master, slave)
        async with slave_of(names, tmp_path / "s") as slave:  # without its master
            assert await offset_at(slave) == 2
            await commit(slave, 7)
        async with slave_of(names, tmp_path / "s") as slave:
            assert await offset_at(slave) == 7
            async with broker(tmp_path / "m", **own) as master:
                await until_following(slave)

                async def returned() -> bool:
                    marks = follower(slave).context.tables.offsets.marks
                    return not marks and await offset_at(master) == 7

                await until(returned)
                await until_same(master, slave)


async def test_a_slave_started_as_the_master_has_everything(tmp_path: Path) -> None:
    async with pair(tmp_path, master=SETTINGS, slave=SETTINGS) as (master, slave):
        await fill(master)
        await master.send("T", b"timed", UNIQ_KEY="k", TIMER_DELAY_MS="3000")
        await until_same(master, slave)
        theirs = await tables_of(master)
        store = slave.server._context.store
        end = master.server._context.store.end_position

        async def copied() -> bool:
            return store.confirmed_position >= end

        await until(copied)
    async with broker(tmp_path / "slave", brokerRole="ASYNC_MASTER", brokerId=0, **SETTINGS) as new:
        ours = await tables_of(new)
        assert ours[1] == theirs[1]
        assert ours[4] == theirs[4]
        assert await offset_at(new) == 2
        topics = [msgspec.json.decode(each)["topicConfigTable"] for each in (ours[0], theirs[0])]
        assert topics[0] == topics[1]

        async def delivered() -> bool:
            return len(await new.records("T")) == 10

        await until(delivered)


async def test_queues_that_begin_again_at_offset_0_are_followed(tmp_path: Path) -> None:
    """A master of RocketMQ does so when a topic is deleted and created again."""
    async with pair(tmp_path) as (master, slave):
        store, copy = (peer.server._context.store for peer in (master, slave))
        for _ in range(2):
            await master.topic("T", readQueueNums=2, writeQueueNums=2)
            for queue_id in (0, 0, 1):
                await master.send("T", queue_id=queue_id)
            await until_copied(master, slave)
            await master.ok(Code.DELETE_TOPIC_IN_BROKER, topic="T")
            store._parts.deleted_topics._by_topic["T"].next.clear()
        await master.topic("T", readQueueNums=2, writeQueueNums=2)
        for queue_id in (0, 1, 1):
            answer = await master.send("T", b"new", queue_id=queue_id)
        assert answer.fields["queueOffset"] == "1"
        await until_copied(master, slave)
        for queue_id, end in ((0, 1), (1, 2)):
            queue = copy.queue("T", queue_id)
            assert queue is not None
            assert (queue.first, queue.end) == (0, end)
        assert log_of(slave.server) == log_of(master.server)
