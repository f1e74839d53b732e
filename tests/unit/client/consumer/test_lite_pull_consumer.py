from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from client.brokers import NAMESRV, QueueBroker, network_of, record, route_of
from client.network import FakeNetwork
from rocketpost.client import (
    ClientError,
    ConfigError,
    LitePullConsumer,
    LitePullConsumerConfig,
    MessageModel,
    MessageQueue,
    StartFrom,
)
from rocketpost.client.consumer import rebalance as rebalance_module
from rocketpost.codec.bodies.offset import decode_client_offsets, encode_queue_offsets
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import ONEWAY, encode_command
from rocketpost.codec.lenient_json import decode_any
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle, until

A = "a:1"
Q0, Q1 = MessageQueue("a", 0, "T"), MessageQueue("a", 1, "T")

Use = Callable[[FakeNetwork], FakeNetwork]


@pytest.fixture
def broker() -> QueueBroker:
    return QueueBroker()


@pytest.fixture
def network(use_network: Use, broker: QueueBroker, monkeypatch: pytest.MonkeyPatch) -> FakeNetwork:
    monkeypatch.setattr(rebalance_module, "ROUND_SECONDS_MIN", 0.0)
    return use_network(network_of({"T": route_of({"a": A})}, {A: broker.serve}))


def consumer(**options: object) -> LitePullConsumer:
    defaults: dict[str, object] = {"start_from": StartFrom.FIRST, "error_seconds": 0.001}
    config = LitePullConsumerConfig(name_servers=NAMESRV, **(defaults | options))  # type: ignore[arg-type]
    return LitePullConsumer("G", config=config)


async def poll_all(reader: LitePullConsumer, count: int) -> list[bytes]:
    got: list[bytes] = []
    async with asyncio.timeout(15):
        while len(got) < count:
            got += [message.body for message in await reader.poll(1.0)]
    return got


async def test_subscribed_queues_are_shared_and_polled(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    for n in range(6):
        broker.put(b"%d" % n, queue_id=n % 2)
    reader = consumer(pull_count_max=2)
    reader.subscribe("T")
    async with reader:
        assert sorted(await poll_all(reader, 6)) == [b"%d" % n for n in range(6)]
        assert reader.assignment == [Q0, Q1]
        assert await reader.poll(0) == []
        assert not broker.offsets  # nothing is committed before it is due
    assert broker.offsets == {("T", 0): 3, ("T", 1): 3}
    body = network.sent(RequestCode.HEART_BEAT)[0].body
    assert b"CONSUME_ACTIVELY" in body
    assert b"%RETRY%" not in body
    assert {c.fields["sysFlag"] for c in network.sent(RequestCode.PULL_MESSAGE)} == {"6"}


@in_virtual_time
async def test_a_due_commit_covers_earlier_polls_only(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    for n in range(4):
        broker.put(b"%d" % n)
    reader = consumer(pull_count_max=1, commit_seconds=0.001)
    await reader.start()
    await reader.assign([Q0])
    await poll_all(reader, 2)
    await asyncio.sleep(1)
    await reader.poll()
    assert broker.offsets[("T", 0)] == 2
    await reader.stop()
    assert broker.offsets[("T", 0)] == 3


async def test_without_auto_commit_only_commits_commit(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    for n in range(4):
        broker.put(b"%d" % n)
    reader = consumer(pull_count_max=1, auto_commit=False)
    async with reader:
        await reader.assign([Q0])
        await poll_all(reader, 1)
        assert await reader.committed(Q0) is None
        await reader.commit()
        assert await reader.committed(Q0) == 1
        await poll_all(reader, 1)
        reader.commit_soon()
        await poll_all(reader, 1)
        await reader.commit({Q1: 7})
    assert broker.offsets == {("T", 0): 2, ("T", 1): 7}


async def test_assigned_queues_are_read_without_telling_the_group(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    broker.put(b"0")
    broker.put(b"1", queue_id=1)
    reader = consumer()
    async with reader:
        await reader.assign([Q0])
        assert await poll_all(reader, 1) == [b"0"]
        await reader.assign([Q1])
        assert await poll_all(reader, 1) == [b"1"]
        assert reader.assignment == [Q1]
        with pytest.raises(ClientError, match="exclude"):
            reader.subscribe("T")
        with pytest.raises(ConfigError, match="at least one"):
            await reader.assign([])
    assert not network.sent(RequestCode.HEART_BEAT)


async def test_seeking_goes_back_and_forth(network: FakeNetwork, broker: QueueBroker) -> None:
    for n in range(5):
        broker.put(b"%d" % n)
    reader = consumer(pull_count_max=5)
    async with reader:
        await reader.assign([Q0])
        assert len(await poll_all(reader, 5)) == 5
        await reader.seek(Q0, 3)
        assert await poll_all(reader, 2) == [b"3", b"4"]
        await reader.seek_to_begin(Q0)
        assert len(await poll_all(reader, 5)) == 5
        await reader.seek_to_time(Q0, 1)
        assert await poll_all(reader, 4) == [b"1", b"2", b"3", b"4"]
        await reader.seek(Q0, 0)
        await settle()
        await reader.seek_to_end(Q0)
        broker.put(b"5")
        assert await poll_all(reader, 1) == [b"5"]  # what was fetched before is forgotten
        with pytest.raises(ConfigError, match="outside"):
            await reader.seek(Q0, 7)
        with pytest.raises(ClientError, match="not assigned to this consumer"):
            await reader.seek(Q1, 0)


async def test_fetched_messages_are_polled_although_the_broker_has_deleted_them(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    for n in range(3):
        broker.put(b"%d" % n)
    reader = consumer()
    async with reader:
        await reader.assign([Q0])
        await until(lambda: ("T", 0) in broker.held)
        broker.records["T", 0] = []
        broker.min_offset = 10
        broker.put(b"10")
        await settle()
        assert await poll_all(reader, 4) == [b"0", b"1", b"2", b"10"]


async def test_an_offset_that_is_gone_is_corrected(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    broker.min_offset = 10
    broker.put(b"10")
    reader = consumer()
    async with reader:
        await reader.assign([Q0])
        assert await poll_all(reader, 1) == [b"10"]


async def test_paused_queues_are_not_fetched(network: FakeNetwork, broker: QueueBroker) -> None:
    reader = consumer()
    async with reader:
        await reader.assign([Q0, Q1])
        reader.pause([Q0])
        broker.put(b"0")
        broker.put(b"1", queue_id=1)
        assert await poll_all(reader, 1) == [b"1"]
        assert await reader.poll(0.01) == []
        reader.resume([Q0])
        assert await poll_all(reader, 1) == [b"0"]


async def test_topics_change_while_it_runs(network: FakeNetwork, broker: QueueBroker) -> None:
    broker.put(b"0")
    reader = consumer()
    async with reader:
        with pytest.raises(ConfigError):
            await reader.poll(-1)
        reader.subscribe("T")
        with pytest.raises(ClientError, match="exclude"):
            await reader.assign([Q0])
        assert await poll_all(reader, 1) == [b"0"]
        assert await reader.queues("T") == [Q0, Q1]
        reader.unsubscribe("T")
        async with asyncio.timeout(15):
            while reader.assignment:
                await asyncio.sleep(0)
    with pytest.raises(ClientError, match="not running"):
        await reader.poll()


async def test_a_broker_can_reset_offsets_and_ask_for_them(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    for n in range(4):
        broker.put(b"%d" % n)
    reader = consumer(auto_commit=False)
    reader.subscribe("T")
    async with reader:
        assert len(await poll_all(reader, 4)) == 4
        link = network.links[A][0]
        body = encode_queue_offsets({Q0: 2})
        head = encode_command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            opaque=1,
            flag=ONEWAY,
            fields={"topic": "T", "group": "G"},
            body_bytes=len(body),
        )
        link.send(head, body)
        assert await poll_all(reader, 2) == [b"2", b"3"]
        assert broker.offsets == {("T", 0): 2}
        asked = {"topic": "T", "group": "G"}
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        told = await link.request(code, fields=asked, timeout=1)
        other = await link.request(code, fields=asked | {"group": "Other"}, timeout=1)
        info = await link.request(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            fields={"consumerGroup": "G", "clientId": "me"},
            timeout=1,
        )
        handled = await link.request(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            fields={"consumerGroup": "G", "clientId": "me"},
            body=record(),
            timeout=1,
        )
    assert decode_client_offsets(told.body) == {Q0: 4, Q1: 0}
    assert other.code == ResponseCode.SYSTEM_ERROR
    assert decode_any(info.body)["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert handled.remark == "the consumer polls its messages, it has no handler"


async def test_a_broadcasting_member_gets_every_queue_and_keeps_its_own_offsets(
    network: FakeNetwork, broker: QueueBroker, tmp_path: Path
) -> None:
    broker.members = ["0.0.0.0@other"]
    for n in range(4):
        broker.put(b"%d" % n, queue_id=n % 2)
    options = {"model": MessageModel.BROADCASTING, "offset_directory": str(tmp_path)}
    reader = consumer(**options)
    reader.subscribe("T")
    async with reader:
        assert len(await poll_all(reader, 4)) == 4
        assert reader.assignment == [Q0, Q1]  # whoever else is there
        twin = consumer(**options)
        twin.subscribe("T")
        with pytest.raises(ClientError, match="another consumer"):
            await twin.start()
        await reader.commit()
        assert await reader.committed(Q0) == 2
    assert broker.offsets == {}
    assert b'"messageModel":"BROADCASTING"' in network.sent(RequestCode.HEART_BEAT)[0].body
    broker.put(b"new")
    again = consumer(**options)
    again.subscribe("T")
    async with again:
        assert await poll_all(again, 1) == [b"new"]
    assert await asyncio.to_thread(lambda: list(tmp_path.rglob("offsets.json")))


async def cut_off(network: FakeNetwork, broker: QueueBroker, *, stored: int) -> int:
    """Cut the reader off, as a freeze does, and let others go on; returns what was asked so far."""
    asked = len(network.requests)
    network.cut(A)
    await asyncio.sleep(0)  # a loop that wakes up hears of lost connections first
    await asyncio.sleep(0)
    broker.offsets[("T", 0)] = stored
    network.servers[A] = broker.serve
    return asked


def committed(network: FakeNetwork, since: int = 0) -> list[int]:
    return [
        int(command.fields["commitOffset"])
        for _, command in network.requests[since:]
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET and command.fields["queueId"] == "0"
    ]


async def test_a_frozen_member_continues_where_others_are_and_moves_no_offset_back(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    for n in range(9):
        broker.put(b"%d" % n)
    reader = consumer(pull_count_max=1, commit_seconds=0.001)
    reader.subscribe("T")
    async with reader:
        assert await poll_all(reader, 2) == [b"0", b"1"]
        since = await cut_off(network, broker, stored=7)
        reader.commit_soon()
        await reader.commit()
        assert not committed(network, since)
        async with asyncio.timeout(15):  # what was fetched before the freeze may come still
            while [message.body for message in await reader.poll(1.0)] != [b"8"]:
                await asyncio.sleep(0)
    assert broker.offsets[("T", 0)] == 9
    assert min(committed(network, since)) >= 7


async def test_who_reads_assigned_queues_commits_again_when_past_the_others(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    for n in range(6):
        broker.put(b"%d" % n)
    reader = consumer(pull_count_max=1, cached_count_max=1, commit_seconds=0.001)
    async with reader:
        await reader.assign([Q0])
        assert await poll_all(reader, 1) == [b"0"]
        since = await cut_off(network, broker, stored=4)
        assert await poll_all(reader, 5) == [b"%d" % n for n in range(1, 6)]
    assert broker.offsets[("T", 0)] == 6
    assert min(committed(network, since)) >= 4


async def test_a_seek_back_is_committed_though_the_broker_was_lost(
    network: FakeNetwork, broker: QueueBroker
) -> None:
    for n in range(4):
        broker.put(b"%d" % n)
    reader = consumer(pull_count_max=1, commit_seconds=60.0)
    reader.subscribe("T")
    async with reader:
        await poll_all(reader, 4)
        await reader.commit()
        await reader.seek(Q0, 1)
        await cut_off(network, broker, stored=4)
        assert await poll_all(reader, 1) == [b"1"]
        await reader.commit()
        assert broker.offsets[("T", 0)] == 2
