"""The feature of a broker that serves transactions: answers, the task, its counters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from rocketpost.broker.group.membership import Client, Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.kinds import HalfMessages
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.properties import decode_properties, encode_properties
from rocketpost.codec.record import decode_record, message_id, pack_host
from rocketpost.errors import StoreFull
from rocketpost.model.topic import TopicConfig
from rocketpost.server.feature import FeatureSet
from rocketpost.server.features.transaction import TransactionFeature
from rocketpost.server.settings.broker import BrokerConfig
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Appended, Draft
from rocketpost.store.message_store import MessageStore
from rocketpost.testing import FakeClock
from rocketpost.testing.waiting import until

from ..contexts import broker_context, open_now, some_tables
from ..handlers.fakes import Caller, FakeConnection

HOST = pack_host("10.0.0.1", 10911)
END, RESUME = RequestCode.END_TRANSACTION, RequestCode.RESUME_CHECK_HALF_MESSAGE


class Producer(FakeConnection):
    is_writable = True


class Keys(NamedTuple):
    forgotten: list[tuple[str, str]]

    def forget(self, key: tuple[str, str]) -> None:
        self.forgotten.append(key)


class Dedup:
    """Knows duplicates, as far as transactions need it."""

    def __init__(self, forgotten: list[tuple[str, str]]) -> None:
        self.keys = Keys(forgotten)


class World:
    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        config = StoreConfig(
            root=str(root), segment_bytes=64 * 1024, queue_file_bytes=2000, message_bytes_max=8192,
            index_slot_count=64, index_entry_count=4096,
        )  # fmt: skip
        self.store = MessageStore.open_blocking(config, clock=self.clock)
        self.topics = TopicTable(clock=self.clock, cluster_name="C", broker_name="b")
        self.topics.update(TopicConfig(topic_name="T"))
        self.membership = Membership(clock=self.clock)
        self.kind = HalfMessages()
        self.full = False
        self.forgotten: list[tuple[str, str]] = []
        broker = BrokerConfig(transaction_timeout_ms=50, transaction_check_interval_ms=50)
        self.feature = TransactionFeature(
            broker_context(
                store=self.store,
                tables=some_tables(topics=self.topics, offsets=OffsetTable(clock=self.clock)),
                membership=self.membership,
                clock=self.clock,
                halves=self.kind,
                dedup=Dedup(self.forgotten),
                put=self.put,
                broker=broker,
                store_settings=config,
            )
        )
        open_now(self.feature)
        self.feature.configure(broker, config)
        self.call = Caller(self.feature)

    def put(self, drafts: Sequence[Draft]) -> asyncio.Future[list[Appended]]:
        if self.full:
            raise StoreFull("no room")
        stored = [self.store.append(draft) for draft in drafts]
        self.commit()
        future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        future.set_result(stored)
        return future

    def commit(self) -> None:
        arrivals = self.store.confirm(self.store.commit())
        features = FeatureSet()
        features.add(self.feature)
        for listener in features.arrival_listeners():
            listener(arrivals)

    def send(self, name: str) -> dict[str, str]:
        """Store a half; return the header of its commit."""
        properties = {"UNIQ_KEY": name, "TRAN_MSG": "true", "PGROUP": "g"}
        draft = Draft(
            "T", 0, 0, 0, self.clock.now_ms(), HOST, HOST, 0, 0, b"body",
            encode_properties(properties), 0, (name,),
        )  # fmt: skip
        half = self.kind.prepare(draft, decode_properties(draft.properties))
        assert half is not None
        stored = self.store.append(half)
        self.commit()
        return {
            "producerGroup": "g",
            "tranStateTableOffset": str(stored.queue_offset),
            "commitLogOffset": str(stored.position),
            "commitOrRollback": "8",
            "msgId": name,
        }

    def join(self) -> Producer:
        connection = Producer()
        client = Client(connection, "id", connection.peer_text, "PYTHON", 1)
        self.membership.join_producer("g", client)
        return connection

    def state(self, name: str) -> str:
        assert self.feature is not None
        return self.feature.runtime_values()[name]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path / "store")
    yield made
    made.store.close_blocking()


async def test_an_end_is_answered_when_it_is_stored(world: World) -> None:
    fields = world.send("a")
    assert world.state("transactionsPending") == "1"
    assert (await world.call(END, fields)).code == ResponseCode.SUCCESS
    again = await world.call(END, fields)
    assert (again.code, again.remark) == (0, "the transaction has already ended this way")
    assert world.state("transactionsCommitted") == "1"
    assert world.state("transactionsPending") == "0"
    rollback = await world.call(END, {**fields, "commitOrRollback": "12"})
    assert rollback.code == ResponseCode.ILLEGAL_OPERATION


async def test_a_full_store_refuses_and_keeps_the_half(world: World) -> None:
    fields = world.send("a")
    world.full = True
    assert (await world.call(END, fields)).code == ResponseCode.SERVICE_NOT_AVAILABLE
    world.full = False
    assert world.state("transactionsPending") == "1"
    assert (await world.call(END, fields)).code == ResponseCode.SUCCESS


async def test_the_key_of_what_is_rolled_back_may_be_sent_again(world: World) -> None:
    committed, rolled_back = world.send("a"), world.send("b")
    assert (await world.call(END, committed)).code == ResponseCode.SUCCESS
    rolled_back["commitOrRollback"] = "12"
    assert (await world.call(END, rolled_back)).code == ResponseCode.SUCCESS
    assert world.forgotten == [("T", "b")]


async def test_who_does_not_know_is_answered_and_asked_again(world: World) -> None:
    fields = world.send("a")
    reply = await world.call(END, {**fields, "commitOrRollback": "0"})
    assert reply.code == ResponseCode.SUCCESS
    assert world.state("transactionsPending") == "1"


async def test_the_task_asks_when_a_producer_comes(world: World) -> None:
    world.send("a")
    assert world.feature is not None
    task = asyncio.create_task(world.feature.run())
    world.clock.advance(50)
    world.feature.configure(
        BrokerConfig(transaction_timeout_ms=50), StoreConfig(root="/unused")
    )  # wakes it, as the clock does not
    await until(lambda: world.state("transactionsWithoutProducer") != "0")
    connection = world.join()
    await until(lambda: connection.oneways)
    [(code, fields)] = connection.oneways
    assert code == RequestCode.CHECK_TRANSACTION_STATE
    assert fields["msgId"] == fields["transactionId"] == "a"
    assert fields["bname"] == "b"
    record = decode_record(b"".join(connection.oneway_bodies[0]), verify_crc=False)
    assert (record.topic, record.properties["PGROUP"]) == ("T", "g")
    assert fields["commitLogOffset"] == str(record.position)
    assert fields["offsetMsgId"] == message_id(HOST, record.position)
    assert world.state("transactionChecks") == "1"
    task.cancel()
    await asyncio.wait((task,))


async def test_a_producer_that_chokes_is_not_asked(world: World) -> None:
    world.send("a")
    assert world.feature is not None
    choking = world.join()
    choking.is_writable = False
    assert world.feature._producer("g") is None
    fine = world.join()
    assert world.feature._producer("g") is fine


async def test_gathered_op_messages_are_written_at_the_stop(world: World) -> None:
    fields = world.send("a")
    assert world.feature is not None
    task = asyncio.create_task(world.feature.run())
    await world.call(END, fields)
    task.cancel()
    await asyncio.wait((task,))
    queue = world.store.queue("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)
    assert queue is not None
    assert queue.end == 1


async def test_a_resume_needs_a_discarded_message(world: World) -> None:
    answer = await world.call(RESUME, {"msgId": "nonsense"})
    assert answer.code == ResponseCode.INVALID_PARAMETER
    answer = await world.call(RESUME, {"msgId": message_id(HOST, 0)})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert "no discarded transaction" in answer.remark
