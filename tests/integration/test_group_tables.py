"""The tables of a group: right on every member, and after every change of leader."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketpost.broker.dedup.producers import ProducerLimits, ProducerTable
from rocketpost.codec.bodies.followed_tables import TableText
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import StoreError, StoreFull
from rocketpost.server.group.tables.changes import PRODUCERS
from rocketpost.server.group.tables.reader import TableReader
from rocketpost.server.term import LeaderTerm
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.member import table_records
from rocketpost.store.member.table_records import newest_copy
from rocketpost.store.tables import TableFile
from rocketpost.testing.waiting import settle, until

from .group_brokers import NODES, TOPIC, Group, group_of_three
from .settings.harness import Peer, heartbeat

GROUP = "G"


async def commit_offset(peer: Peer, offset: int, topic: str = TOPIC) -> None:
    await peer.ok(
        Code.UPDATE_CONSUMER_OFFSET,
        consumerGroup=GROUP, topic=topic, queueId=0, commitOffset=offset,
    )  # fmt: skip


async def offset_of(peer: Peer, topic: str = TOPIC) -> int:
    answer = await peer.ok(
        Code.QUERY_CONSUMER_OFFSET, consumerGroup=GROUP, topic=topic, queueId=0,
    )  # fmt: skip
    return int(answer.fields["offset"])


async def lock(peer: Peer, client: str, queue_id: int = 0) -> bool:
    """Ask for the lock of a queue; tell whether the client holds it now."""
    queue = {"brokerName": "broker-g", "queueId": queue_id, "topic": TOPIC}
    body = {"consumerGroup": GROUP, "clientId": client, "mqSet": [queue]}
    answer = await peer.ok(Code.LOCK_BATCH_MQ, msgspec.json.encode(body))
    return bool(msgspec.json.decode(answer.body)["lockOKMQSet"])


async def change_much(peer: Peer) -> None:
    """Change every table that administrators and consumers can change."""
    for number in range(3):
        assert (await peer.topic(f"Topic{number}", readQueueNums=4)).code == 0
    await peer.ok(Code.DELETE_TOPIC_IN_BROKER, topic="Topic1")
    assert (await peer.group(GROUP, retryMaxTimes=7)).code == 0
    assert (await peer.group("Gone")).code == 0
    await peer.ok(Code.DELETE_SUBSCRIPTIONGROUP, groupName="Gone", cleanOffset=False)
    await peer.ok(Code.UPDATE_AND_GET_GROUP_FORBIDDEN, group=GROUP, topic="Topic0", readable=False)
    mode = {"topic": TOPIC, "consumerGroup": GROUP, "mode": "POP", "popShareQueueNum": 2}
    await peer.ok(Code.SET_MESSAGE_REQUEST_MODE, msgspec.json.encode(mode))
    await commit_offset(peer, 3)
    assert await lock(peer, "client-a")


async def next_leader(group: Group, *, stops: bool) -> str:
    """Have another member lead."""
    old = await group.leader()
    if stops:
        await group.stop([old])
        return await group.leader()
    heal = group.isolate(old)
    new = await group.leader(but=old)
    heal()
    return new


@pytest.mark.parametrize("stops", [True, False], ids=["stop", "isolation"])
async def test_tables_are_equal_everywhere_and_the_next_leader_has_them(
    tmp_path: Path, stops: bool
) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 5)
        async with group.client(first) as peer:
            await change_much(peer)
        before = await group.until_equal_tables()
        second = await next_leader(group, stops=stops)
        async with group.client(second) as peer:
            tables = group.tables(second)
            assert {"Topic0", "Topic2"} <= tables["topics"].topic_config_table.keys()
            assert "Topic1" not in tables["topics"].topic_config_table
            assert tables == before
            assert await offset_of(peer) == 3
            assert not await lock(peer, "client-b"), "client-a holds the queue"
            assert await lock(peer, "client-a")
            assert (await peer.topic("Later")).code == 0
        if stops:
            await group.start([first])
        after = await group.until_equal_tables()
        assert "Later" in after["topics"].topic_config_table


async def test_a_group_that_starts_again_has_its_tables_from_the_log_alone(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        await group.send(leader, 5)
        async with group.client(leader) as peer:
            await change_much(peer)
        before = await group.until_equal_tables()
        await group.stop(NODES)
        for node in NODES:
            for name in ("topics", "subscriptionGroup", "consumerOffset", "messageRequestMode"):
                for path in (tmp_path / node / "config").glob(f"{name}.json*"):
                    path.unlink()
        await group.start()
        await group.leader()
        after = await group.until_equal_tables()
        assert after["topics"].topic_config_table == before["topics"].topic_config_table
        assert after["offsets"].offset_table == before["offsets"].offset_table
        assert after["groups"].subscription_group_table == before["groups"].subscription_group_table


async def test_changes_that_were_never_committed_are_taken_back(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        old = await group.leader()
        await group.send(old, 5)
        async with group.client(old) as peer:
            assert (await peer.topic("Kept")).code == 0
            heal = group.isolate(old)
            lost = [
                asyncio.create_task(peer.topic("Lost")),
                asyncio.create_task(peer.call(Code.DELETE_TOPIC_IN_BROKER, topic=TOPIC)),
            ]
            new = await group.leader(but=old)
            for answer in await asyncio.gather(*lost):
                assert answer.code != ResponseCode.SUCCESS
            heal()
        await group.send(new, 1)
        tables = await group.until_equal_tables()
        topics: Any = tables["topics"]
        assert "Kept" in topics.topic_config_table
        assert "Lost" not in topics.topic_config_table
        assert TOPIC in topics.topic_config_table
        await group.check()


async def test_progress_is_at_most_a_second_behind(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 50)
        async with group.client(first) as peer:
            for offset in range(1, 31):
                await commit_offset(peer, offset)
        await group.until_equal_tables()
        heal = group.isolate(first)
        second = await group.leader(but=first)
        async with group.client(second) as peer:
            assert await offset_of(peer) == 30
        heal()


async def test_a_planned_change_of_leader_loses_no_progress(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 50)
        async with group.client(first) as peer:
            await commit_offset(peer, 30)
            await group.stop([first])
        second = await group.leader()
        async with group.client(second) as peer:
            assert await offset_of(peer) == 30


async def test_a_topic_that_a_send_creates_is_known_before_its_message(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        async with group.client(first) as peer:
            assert (await peer.send("Created", default_queues=3)).code == ResponseCode.SUCCESS
        await group.stop([first])
        second = await group.leader()
        topics: Any = group.tables(second)["topics"]
        assert topics.topic_config_table["Created"].write_queue_nums == 3


async def test_an_idle_group_writes_nothing(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        await group.send(leader, 5)
        async with group.client(leader) as peer:
            await change_much(peer)
        term = group.servers[leader]._term
        assert isinstance(term, LeaderTerm)
        log, store = term._table_log, group.servers[leader]._context.store
        assert log is not None
        for now in range(3):
            log._write_round(1e6 + now)
        end = store.end_position
        for now in range(100):
            log._write_round(2e6 + now)
        assert store.end_position == end


async def test_a_copy_for_which_there_was_no_room_replaces_no_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_records, "PART_BYTES_MAX", 256)
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        await group.send(leader, 5)
        async with group.client(leader) as peer:
            await change_much(peer)
        term = group.servers[leader]._term
        assert isinstance(term, LeaderTerm)
        log, store = term._table_log, group.servers[leader]._context.store
        assert log is not None
        log._write_copy()
        await log._wait_newest()
        before = log.oldest_needed_position()
        assert before is not None

        writer = log._writer
        append, room = writer.append, 2

        def append_a_little(draft: Draft) -> Appended:
            nonlocal room
            room -= 1
            if room < 0:
                raise StoreFull("no room")
            return append(draft)

        writer.append = append_a_little
        log._write_copy()
        partial = log._newest
        writer.append = append
        log._write([log._whole(log._sources["groups"])])
        assert partial is not None
        assert partial is not log._newest
        assert len(await partial) == 2
        newest = newest_copy(store)
        assert newest is not None
        assert log.oldest_needed_position() == before == newest.position
        log._write_round(1e6)
        await log._wait_newest()
        after = log.oldest_needed_position()
        newest = newest_copy(store)
        assert newest is not None
        assert after == newest.position > before
        await group.until_equal_tables()


async def test_a_snapshot_of_producers_is_written_by_one_thread_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that becomes the leader is cancelled, and takes the same record over again."""
    may_end, begun = threading.Event(), list[bytes]()
    table = TableText(PRODUCERS, "", ProducerTable(ProducerLimits()).to_json(0))
    save = TableReader._save_producers_blocking

    def save_slowly(reader: TableReader, text: bytes) -> None:
        if text == table.text:  # not one of the leader's own, which the reader gets beside the test
            begun.append(text)
            assert may_end.wait(30)
            save(reader, text)

    monkeypatch.setattr(TableReader, "_save_producers_blocking", save_slowly)
    async with group_of_three(tmp_path) as group:
        leader = await group.leader()
        follower = next(node for node in NODES if node != leader)
        broker = group.servers[follower]._group
        assert broker is not None
        reader = broker._tables
        first = asyncio.create_task(reader._apply_table(table))
        await until(lambda: len(begun) == 1)
        first.cancel()
        await settle()
        assert not first.done(), "the next term of office does not begin yet"
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        await reader._apply_table(table)
        assert len(begun) == 2


async def test_members_without_room_for_the_producers_follow_and_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, code = TableFile.save_blocking, errno.ENOSPC

    def save_with_room(file: TableFile[Any], data: bytes) -> None:
        if file._path.endswith("producerState.json"):
            raise OSError(code, os.strerror(code))
        save(file, data)

    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 5)
        monkeypatch.setattr(TableFile, "save_blocking", save_with_room)
        for _ in range(2):
            leader = await next_leader(group, stops=False)
            await group.send(leader, 5)
            async with group.client(leader) as peer:
                await change_much(peer)
            await group.until_equal_tables()
        code = errno.EIO
        reader = TableReader(group.servers[leader]._context)
        with pytest.raises(StoreError, match="producers could not be saved"):
            reader._save_producers_blocking(b"{}")
        monkeypatch.undo()


async def test_heartbeats_create_groups_on_every_member(tmp_path: Path) -> None:
    async with group_of_three(tmp_path) as group:
        first = await group.leader()
        await group.send(first, 1)
        async with group.client(first) as peer:
            await peer.ok(Code.HEART_BEAT, heartbeat("client-a", GROUP, TOPIC))
            tables = await group.until_equal_tables()
            groups, topics = tables["groups"], tables["topics"]
            assert GROUP in groups.subscription_group_table
            assert f"%RETRY%{GROUP}" in topics.topic_config_table
