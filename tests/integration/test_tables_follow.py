"""A slave's tables follow its master's; commits made at the slave flow back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rocketpost.codec.bodies.followed_tables import decode_tables, encode_known
from rocketpost.codec.codes import RequestCode as Code
from rocketpost.codec.codes import ResponseCode
from rocketpost.model.ids import Position
from rocketpost.server.context import BrokerContext
from rocketpost.server.follower_term import FollowerTerm
from rocketpost.server.replication import tables_follower
from rocketpost.store.message_store import MessageStore

from .settings.harness import Peer, broker, until

SEGMENT_BYTES = 4 * 1024 * 1024


class Pair:
    """A master and its slave; the test copies the log when it wants to."""

    def __init__(self, master: Peer, slave: Peer) -> None:
        self.master = master
        self.slave = slave

    @property
    def ours(self) -> BrokerContext:
        return self.slave.server._context

    @property
    def theirs(self) -> BrokerContext:
        return self.master.server._context

    @property
    def term(self) -> FollowerTerm:
        term = self.slave.server._term
        assert isinstance(term, FollowerTerm)
        return term

    async def copy_log(self) -> None:
        """Append what the slave's log lacks, and wait until it is visible."""
        source, target = self.theirs.store, self.ours.store
        while target.end_position < source.written_position:
            begin = int(target.end_position)
            end = min(int(source.written_position), begin - begin % SEGMENT_BYTES + SEGMENT_BYTES)
            data = view(source, begin, end)
            self.term.log.append(begin, data)
        while target.confirmed_position < target.end_position:
            await asyncio.sleep(0)

    async def connect(self) -> None:
        """Have the slave follow the tables of its master, but not its log."""
        address = self.master.server.address
        self.term.tables._master = lambda: address
        self.term.tables.wake()

    async def follows(self, what: str) -> None:
        """Wait until a table of the slave has the same contents as the master's."""

        async def same() -> bool:
            return text_of(self.ours, what) == text_of(self.theirs, what)

        await until(same)


def view(store: MessageStore, begin: int, end: int) -> bytes:
    data = store.view(begin, end - begin)
    assert data is not None
    return bytes(data)


def text_of(context: BrokerContext, name: str) -> Any:
    table: Any = getattr(context.tables, name)
    if name == "delays":
        return table.to_json()
    return table.body() if hasattr(table, "body") else table.to_json()


@contextlib.asynccontextmanager
async def pair(root: Path, **settings: object) -> AsyncIterator[Pair]:
    async with (
        broker(root / "master", **settings) as master,
        broker(root / "slave", **settings) as slave,
    ):
        await slave.server.become_follower(1)
        yield Pair(master, slave)


async def commit(peer: Peer, offset: int, group: str = "G", topic: str = "T") -> Any:
    return await peer.call(
        Code.UPDATE_CONSUMER_OFFSET,
        consumerGroup=group, topic=topic, queueId=0, commitOffset=offset,
    )  # fmt: skip


async def offset_at(peer: Peer, group: str = "G", topic: str = "T") -> int:
    answer = await peer.call(
        Code.QUERY_CONSUMER_OFFSET,
        consumerGroup=group, topic=topic, queueId=0, setZeroIfNotFound="false",
    )  # fmt: skip
    return int(answer.fields["offset"]) if answer.code == 0 else -1


async def test_changes_at_the_master_follow_at_once(tmp_path: Path) -> None:
    async with pair(tmp_path, namedFilterEnable="true") as group:
        await group.connect()
        await group.master.topic("T", readQueueNums=3, writeQueueNums=3)
        await group.master.group("G", retryMaxTimes=3)
        await group.master.ok(
            Code.SET_MESSAGE_REQUEST_MODE,
            msgspec.json.encode(
                {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 2}
            ),
        )
        await group.master.ok(Code.PUT_NAMED_FILTER, b'{"name":"f","expression":"a > 1"}')
        for what in ("topics", "groups", "modes", "named"):
            await group.follows(what)
        assert group.ours.tables.topics.version == group.theirs.tables.topics.version
        # They are on disk as well: a slave may be promoted by hand after its next start.
        saved = tmp_path / "slave" / "store" / "config"

        async def is_saved() -> bool:
            try:
                texts = {path.name: path.read_bytes() for path in saved.glob("*.json")}
            except FileNotFoundError:  # one was being replaced
                return False
            return (
                b'"T"' in texts.get("topics.json", b"")
                and b'"G"' in texts.get("subscriptionGroup.json", b"")
                and b"POP" in texts.get("messageRequestMode.json", b"")
                and b"a > 1" in texts.get("namedFilters.json", b"")
            )

        await until(is_saved)
        await group.master.ok(Code.DELETE_TOPIC_IN_BROKER, topic="T")
        await group.master.ok(Code.DELETE_SUBSCRIPTIONGROUP, groupName="G")
        await group.follows("topics")
        await group.follows("groups")
        assert group.ours.tables.topics.find("T") is None


async def test_offsets_wait_for_the_log(tmp_path: Path) -> None:
    async with pair(tmp_path) as group:
        await group.master.topic("T")
        await group.master.group("G")
        for _ in range(5):
            await group.master.send("T")
        await group.copy_log()
        await commit(group.master, 5)
        await group.connect()
        await group.follows("offsets")
        assert await offset_at(group.slave) == 5
        for _ in range(5):
            await group.master.send("T")
        await commit(group.master, 9)
        await group.master.topic("U")
        await group.follows("topics")  # later changes have arrived
        assert await offset_at(group.slave) == 5
        await group.copy_log()
        await group.follows("offsets")
        assert await offset_at(group.slave) == 9


async def test_commits_at_the_slave_flow_back_and_never_move_a_group_back(tmp_path: Path) -> None:
    async with pair(tmp_path) as group:
        await group.master.topic("T")
        for name in ("G", "H", "I"):
            await group.master.group(name)
        for _ in range(9):
            await group.master.send("T")
        await group.copy_log()
        for name in ("G", "H", "I"):
            await commit(group.master, 2, name)
        await group.connect()
        await group.follows("offsets")
        await group.slave.server.become_follower(1)  # without its master
        assert (await commit(group.slave, 7, "G")).code == 0
        assert (await commit(group.slave, 4, "H")).code == 0
        await commit(group.master, 6, "H")
        marks = group.ours.tables.offsets.marks
        assert [(mark.group, mark.offset) for mark in marks] == [("G", 7), ("H", 4)]
        await group.connect()
        await group.follows("offsets")
        assert [await offset_at(group.master, name) for name in ("G", "H", "I")] == [7, 6, 2]
        assert [await offset_at(group.slave, name) for name in ("G", "H", "I")] == [7, 6, 2]
        assert not group.ours.tables.offsets.marks


async def test_marked_commits_survive_a_restart(tmp_path: Path) -> None:
    async with pair(tmp_path) as group:
        await group.master.topic("T")
        await group.master.send("T")
        await group.copy_log()
        await group.connect()
        await group.follows("topics")
        await group.slave.server.become_follower(1)
        await commit(group.slave, 1)
    saved = (tmp_path / "slave" / "store" / "config" / "consumerOffset.json").read_bytes()
    assert b'"toMasterTable":{\n\t"T@G":{0:1}' in saved


async def test_a_new_master_forgets_the_marks(tmp_path: Path) -> None:
    async with pair(tmp_path) as group:
        await group.master.topic("T")
        await group.master.send("T")
        await group.copy_log()
        await group.connect()
        await group.follows("topics")
        await commit(group.slave, 1)
        await group.slave.server.become_leader()
        assert not group.ours.tables.offsets.marks
        assert await offset_at(group.slave) == 1


async def test_a_master_of_rocketmq_is_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_follower, "POLL_SECONDS", 0.1)
    async with pair(tmp_path, timerWheelEnable="true") as group:
        dispatcher = group.master.server._dispatcher
        del dispatcher._entries[Code.FOLLOW_TABLES]
        await group.master.topic("T")
        await group.master.group("G")
        await group.master.send("T")
        await commit(group.master, 1)
        await group.copy_log()
        await group.connect()
        for what in ("topics", "groups", "offsets", "delays", "modes"):
            await group.follows(what)
        await group.master.ok(Code.DELETE_TOPIC_IN_BROKER, topic="T")
        await group.follows("topics")
        # Nothing tells at which position it was deleted, so its queues stay.
        assert group.ours.store.queue("T", 0) is not None
        assert group.ours.tables.master_timer.check_point.read_ms > 0


async def test_queues_of_a_deleted_topic_go_and_those_of_its_successor_stay(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path) as group:
        for topic in ("Gone", "Again"):
            await group.master.topic(topic)
            for _ in range(3):
                await group.master.send(topic)
            await group.master.ok(Code.DELETE_TOPIC_IN_BROKER, topic=topic)
        await group.master.topic("Again")
        await group.master.send("Again", b"new")
        await group.copy_log()
        queue = group.ours.store.queue("Again", 0)
        assert queue is not None
        assert (queue.first, queue.end) == (0, 4)
        await group.connect()

        async def gone() -> bool:
            return group.ours.store.queue("Gone", 0) is None and queue.first == 3

        await until(gone)
        assert (queue.first, queue.end) == (3, 4)
        # If it becomes the master, it assigns no offset again.
        await group.slave.server.become_leader()
        await group.slave.topic("Gone")
        assert (await group.slave.send("Gone")).fields["queueOffset"] == "3"
        assert (await group.slave.send("Again")).fields["queueOffset"] == "4"


async def test_a_slave_that_waits_is_answered_at_a_change_of_role(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        first = await peer.ok(Code.FOLLOW_TABLES, holdMillis=0)
        assert int(first.fields["position"]) == peer.server._context.store.end_position
        index = msgspec.json.decode(first.body[4 : 4 + int.from_bytes(first.body[:4], "big")])
        known = ";".join(f"{entry['name']}={entry['version']}" for entry in index)
        asking = asyncio.create_task(peer.call(Code.FOLLOW_TABLES, known=known, holdMillis=30_000))

        async def held() -> bool:
            return peer.server.held_count == 1

        await until(held)
        await peer.server.become_follower(1)
        assert (await asking).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (await peer.call(Code.FOLLOW_TABLES)).code == ResponseCode.SERVICE_NOT_AVAILABLE


async def test_an_unchanged_table_is_not_sent_again(tmp_path: Path) -> None:
    async with broker(tmp_path) as peer:
        await peer.topic("T")
        first = await peer.ok(Code.FOLLOW_TABLES)
        names = [table.name for table in decode_tables(first.body)]
        assert names[0] == "topics"
        known = encode_known({each.name: each.version for each in decode_tables(first.body)})
        assert not decode_tables((await peer.ok(Code.FOLLOW_TABLES, known=known)).body)
        await peer.group("New")
        changed = await peer.ok(Code.FOLLOW_TABLES, known=known, holdMillis=30_000)
        assert [each.name for each in decode_tables(changed.body)] == ["groups"]
        assert Position(int(changed.fields["position"])) >= 0


@pytest.mark.slow
async def test_a_promoted_slave_delivers_the_rest_and_nothing_twice(tmp_path: Path) -> None:
    settings = {"timerWheelEnable": "true", "timerPrecisionMs": 100, "messageIndexEnable": "false"}
    async with pair(tmp_path, messageDelayLevel="1s 2s", **settings) as group:
        await group.master.topic("T")
        for number in range(3):
            await group.master.send("T", b"timed", UNIQ_KEY=f"a{number}", TIMER_DELAY_MS="300")
            await group.master.send("T", b"delayed", UNIQ_KEY=f"b{number}", DELAY="1")
        due_ms = time.time() * 1000 + 300

        async def all_delivered() -> bool:
            return len(await group.master.records("T")) == 6

        await until(all_delivered)
        await group.connect()

        async def all_counted() -> bool:
            await group.copy_log()
            tables = group.ours.tables
            has_delays = b"1:3" in tables.delays.body()
            return tables.master_timer.left_before[1] > due_ms and has_delays

        await until(all_counted)
        await group.master.send("T", b"timed", UNIQ_KEY="c", TIMER_DELAY_MS="1000")
        await group.master.send("T", b"delayed", UNIQ_KEY="d", DELAY="2")
        await group.copy_log()
        await group.slave.server.become_leader()

        async def rest_delivered() -> bool:
            return len(await group.slave.records("T")) >= 8

        await until(rest_delivered)
        keys = [record.properties["UNIQ_KEY"] for record in await group.slave.records("T")]
        assert sorted(keys) == ["a0", "a1", "a2", "b0", "b1", "b2", "c", "d"]


@pytest.mark.slow
async def test_a_delayed_message_whose_copy_the_slave_lacks_is_delivered_again(
    tmp_path: Path,
) -> None:
    async with pair(tmp_path, messageDelayLevel="1s 2s") as group:
        await group.master.topic("T")
        await group.master.send("T", b"delayed", UNIQ_KEY="a", DELAY="1")
        await group.copy_log()
        await group.connect()

        async def delivered() -> bool:
            return b"1:1" in group.theirs.tables.delays.body()

        await until(delivered)
        await group.master.topic("Later")
        await group.follows("topics")
        assert b"1:1" not in group.ours.tables.delays.body()
        await group.slave.server.become_leader()

        async def delivered_here() -> bool:
            return len(await group.slave.records("T")) == 1

        await until(delivered_here)
