"""Pulls at a slave: served, sent back to the master, or held while there is no master."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rocketpost.client import MessageQueue, PullConsumer
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.record import decode_records
from rocketpost.model.topic import TopicConfig
from rocketpost.server.features.pull import PullFeature

from .replicas import QUICK, follower, name_server, pair, slave_of, until_copied, until_following
from .settings.harness import Peer, broker

READS: dict[str, object] = {"slaveReadEnable": "true", **QUICK}


def learn_topic(slave: Peer, topic: str = "T") -> None:
    """Give a slave a topic that it has not been told of yet."""
    table = slave.server._context.tables.topics
    table.update(TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4))


async def until_alone(slave: Peer) -> None:
    async with asyncio.timeout(15):
        while follower(slave).master_presence.is_alive:
            await asyncio.sleep(0.005)


async def test_a_slave_sends_readers_to_its_master_as_long_as_there_is_one(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path) as names,
        broker(tmp_path / "m", namesrvAddr=names, **READS) as master,
        slave_of(names, tmp_path / "s", **READS) as slave,
    ):
        await until_following(slave)
        await master.send("T", b"first", default_queues=4)
        await until_copied(master, slave)
        learn_topic(slave)
        found = await slave.pull("T", 0)
        assert [record.body for record in decode_records(found.body)] == [b"first"]
        assert found.fields["suggestWhichBrokerId"] == "0"
        empty = await slave.pull("T", 1, hold_ms=30_000)
        assert empty.code == ResponseCode.PULL_RETRY_IMMEDIATELY

        await master.server.stop()
        await until_alone(slave)
        waiting = await hold_pull(slave, offset=1)
        async with broker(tmp_path / "m", namesrvAddr=names, **READS):
            answer = await waiting  # long before its time is over
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert answer.fields["suggestWhichBrokerId"] == "0"
            assert answer.fields["nextBeginOffset"] == "1"


async def test_a_slave_answers_questions_about_messages_as_its_master_does(tmp_path: Path) -> None:
    async with pair(tmp_path) as (master, slave):
        for body in (b"first", b"second"):
            await master.send("T", body, default_queues=4, KEYS="k")
        await until_copied(master, slave)
        learn_topic(slave)
        [record, _] = decode_records((await master.pull("T", 0)).body)
        questions: list[tuple[Code, dict[str, object]]] = [
            (Code.GET_MIN_OFFSET, {"topic": "T", "queueId": 0}),
            (Code.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}),
            (Code.GET_EARLIEST_MSG_STORETIME, {"topic": "T", "queueId": 0}),
            (
                Code.SEARCH_OFFSET_BY_TIMESTAMP,
                {"topic": "T", "queueId": 0, "timestamp": record.store_ms},
            ),
            (Code.VIEW_MESSAGE_BY_ID, {"offset": record.position}),
            (
                Code.QUERY_MESSAGE,
                {"topic": "T", "key": "k", "maxNum": 9, "beginTimestamp": 0, "endTimestamp": 2**62},
            ),
        ]
        for code, fields in questions:
            ours, theirs = await master.ok(code, **fields), await slave.ok(code, **fields)
            assert (theirs.fields, theirs.body) == (ours.fields, ours.body), code.name


async def hold_pull(slave: Peer, *, offset: int) -> asyncio.Task[Command]:
    """Pull until the slave holds a pull; return it.

    A master that stops may answer its slave once more, which then sends readers to it.
    """
    async with asyncio.timeout(15):
        while True:
            waiting = asyncio.create_task(slave.pull("T", offset, hold_ms=30_000))
            while not waiting.done():
                if slave.server.held_count:
                    return waiting
                await asyncio.sleep(0.002)
            assert (await waiting).code == ResponseCode.PULL_RETRY_IMMEDIATELY


async def test_a_reader_of_old_messages_goes_to_the_slave_and_comes_back(tmp_path: Path) -> None:
    async with (
        name_server(tmp_path) as names,
        broker(tmp_path / "m", namesrvAddr=names, **READS) as master,
        slave_of(names, tmp_path / "s", **READS) as slave,
    ):
        await until_following(slave)
        for number in range(6):
            await master.send("T", b"%d" % number)
        await until_copied(master, slave)
        learn_topic(slave)
        remember_nothing(master)
        queue = MessageQueue("broker-a", 0, "T")
        async with PullConsumer("G", name_servers=names) as reader:
            await reader.queues("T")
            read: list[bytes] = []
            for offset in range(6):
                if offset == 4:
                    remember_all(master)
                result = await reader.pull(queue, offset, count_max=1)
                read += [message.body for message in result.messages]
        assert read == [b"%d" % number for number in range(6)]
        # The master serves a pull and names the slave, which serves one and names the master.
        assert [count_read(peer) for peer in (master, slave)] == [4, 2]


def remember_nothing(peer: Peer) -> None:
    """Have every message of a broker count as old."""
    reader = pulls_of(peer)._reader
    reader.limits = reader.limits._replace(memory_bytes=0)


def remember_all(peer: Peer) -> None:
    reader = pulls_of(peer)._reader
    reader.limits = reader.limits._replace(memory_bytes=2**40)


def pulls_of(peer: Peer) -> PullFeature:
    [feature] = [each for each in peer.server._term.features if isinstance(each, PullFeature)]
    return feature


def count_read(peer: Peer) -> int:
    return peer.server._context.stats.got_today.now
