"""Whatever peers send, nothing grows without a bound and nothing fails in an unforeseen way."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import pytest

from rocketpost.broker.group import membership
from rocketpost.broker.group import offsets as offset
from rocketpost.broker.group import queue_locks as queue_lock
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import InvalidParameter
from rocketpost.codec.headers.message import SendMessageV2
from rocketpost.errors import ConfigError
from rocketpost.server.logs.lines import OneLineFormatter
from rocketpost.server.routes.access import GET, of_cluster
from rocketpost.server.routes.dispatch import Dispatcher
from rocketpost.server.routes.pools import BOUNDS, Bounds, PoolKind
from rocketpost.server.routes.route import NO_HEADER, Reply, plain, waiting
from rocketpost.server.settings.broker import broker_settings
from rocketpost.server.settings.live_config import LiveConfig
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.settings import apply_changes
from rocketpost.testing.clock import FakeClock

from .handlers.fakes import FakeConnection
from .handlers.test_send import Client, Drafts, handler
from .handlers.world import World
from .polls import NamedPolls
from .writing import Store

OPEN = of_cluster(GET)
ONE, TWO, THREE = (
    RequestCode.SEND_MESSAGE,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.CLEAN_UNUSED_TOPIC,
)


async def no_news() -> None:
    """Every name server knows everything."""


@pytest.fixture
def world() -> World:
    return World(FakeClock())


def heartbeat(client_id: str, *groups: str, topics: int = 1, tags: str = "*") -> bytes:
    subscriptions = [{"topic": f"T{number}", "subString": tags} for number in range(topics)]
    consumers = [{"groupName": group, "subscriptionDataSet": subscriptions} for group in groups]
    return json.dumps({"clientID": client_id, "consumerDataSet": consumers}).encode()


async def test_members_are_bounded_and_make_room_when_they_leave(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "MEMBERS_MAX", 3)
    first, second = FakeConnection(), FakeConnection()
    body = heartbeat("c", "G1", "G2", "G3")
    assert (await world.call(RequestCode.HEART_BEAT, body=body, connection=first)).code == 0
    full = await world.call(RequestCode.HEART_BEAT, body=heartbeat("d", "G1"), connection=second)
    assert full.code == ResponseCode.SYSTEM_BUSY
    assert (await world.call(RequestCode.HEART_BEAT, body=body, connection=first)).code == 0
    world.clients.connection_lost(first)  # type: ignore[arg-type]
    again = await world.call(RequestCode.HEART_BEAT, body=heartbeat("d", "G1"), connection=second)
    assert again.code == 0


async def test_subscriptions_of_all_members_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "WEIGHT_MAX", 20)
    one, other = FakeConnection(), FakeConnection()
    few, many = heartbeat("c", "G", topics=9), heartbeat("c", "G", topics=21)
    assert (await world.call(RequestCode.HEART_BEAT, body=few, connection=one)).code == 0
    # The same client under another id, and again: it is weighed once.
    renamed = heartbeat("x", "G", topics=9)
    for body in (renamed, few, renamed):
        assert (await world.call(RequestCode.HEART_BEAT, body=body, connection=one)).code == 0
    refused = await world.call(RequestCode.HEART_BEAT, body=many, connection=other)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    tags = heartbeat("c", "G", tags="||".join(map(str, range(30))))
    refused = await world.call(RequestCode.HEART_BEAT, body=tags, connection=other)
    assert refused.code == ResponseCode.SYSTEM_BUSY
    world.clients.connection_lost(one)  # type: ignore[arg-type]
    world.clients.connection_lost(other)  # type: ignore[arg-type]
    assert world.membership._weight == world.membership._member_count == 0


async def test_a_gigantic_heartbeat_is_refused_unread(world: World) -> None:
    body = b"[" * (4 * 1024 * 1024 + 1)
    assert (await world.call(RequestCode.HEART_BEAT, body=body)).code != 0


async def test_locks_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_lock, "LOCKS_MAX", 3)
    world.add_topic("T", queues=8)

    async def lock(client: str, ids: range, code: int = RequestCode.LOCK_BATCH_MQ) -> bytes:
        queues = [{"topic": "T", "brokerName": "b", "queueId": number} for number in ids]
        body = {"clientId": client, "consumerGroup": "G", "mqSet": queues}
        return (await world.call(code, body=json.dumps(body).encode())).body

    assert len(json.loads(await lock("c", range(8)))["lockOKMQSet"]) == 3
    assert len(json.loads(await lock("c", range(8)))["lockOKMQSet"]) == 3
    await lock("c", range(8), RequestCode.UNLOCK_BATCH_MQ)
    assert len(json.loads(await lock("d", range(5, 8)))["lockOKMQSet"]) == 3
    world.clock.advance(61_000)
    world.clients.expire()
    assert world.locks._count == 0
    assert await lock("x" * 2000, range(1)) == b""


async def test_offsets_are_kept_for_queues_that_exist(world: World) -> None:
    world.add_topic("T", queues=2)
    fields = {"topic": "T", "consumerGroup": "G", "commitOffset": "0"}
    for queue_id, code in ((0, 0), (1, 0), (2, 29), (65535, 29), (-1, 29)):
        answer = await world.call(
            RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "queueId": str(queue_id)}
        )
        assert (answer.code == 0) is (code == 0)


async def test_offsets_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset, "OFFSETS_MAX", 3)
    world.add_topic("T", queues=8)
    codes = []
    for group in ("G1", "G2"):
        for queue_id in range(2):
            fields = {"topic": "T", "consumerGroup": group, "queueId": str(queue_id)}
            fields["commitOffset"] = "0"
            codes.append((await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code)
    assert codes == [0, 0, 0, ResponseCode.SYSTEM_BUSY]
    world.offsets.forget_group("G1")
    assert (await world.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    world.offsets.forget_topic("T")
    assert world.offsets._count == 0


@pytest.mark.parametrize("policy", [{"type": []}, {"type": {}}, {"type": 7}, {"x": "y" * 5000}])
async def test_a_retry_policy_of_the_wrong_kind_is_refused(world: World, policy: object) -> None:
    body = json.dumps({"groupName": "G", "groupRetryPolicy": policy}).encode()
    answer = await world.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.INVALID_PARAMETER


async def test_a_topic_asked_for_a_million_times_is_looked_at_once(world: World) -> None:
    world.add_topic("T", queues=1000)
    fields = {"consumerGroup": "G", "topicList": "T;" * 100_000}
    start = time.process_time()
    assert (await world.call(RequestCode.GET_CONSUME_STATS, fields)).code == 0
    assert time.process_time() - start < 5


async def test_an_answer_that_does_not_fit_is_an_answer_all_the_same() -> None:
    connection = FakeConnection()

    async def slow(*_: object) -> Reply:
        return Reply(fields={"a": "\x01" * (4 * 1024 * 1024)})

    dispatcher = Dispatcher(
        [
            plain(ONE, NO_HEADER, OPEN, lambda *_: Reply(body=bytes(17 * 1024 * 1024))),
            plain(TWO, NO_HEADER, OPEN, lambda *_: Reply(70_000)),
            waiting(THREE, NO_HEADER, OPEN, slow),
        ]
    )
    for code in (ONE, TWO, THREE):
        dispatcher.handle(connection, Command(code, opaque=code, encoding=int(code == TWO)))  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        while len(connection.responses) < 3:
            await asyncio.sleep(0)
    assert {answer.code for answer in connection.responses} == {ResponseCode.SYSTEM_ERROR}
    assert sorted(answer.opaque for answer in connection.responses) == sorted([ONE, TWO, THREE])


async def test_a_refusal_quotes_little_of_what_it_refuses(world: World) -> None:
    answer = await world.call(RequestCode.GET_TOPIC_CONFIG, {"topic": "\x01" * 3_000_000})
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert len(answer.remark or "") < 5000


@pytest.mark.parametrize("flag", [0, 2])
async def test_requests_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch, flag: int) -> None:
    monkeypatch.setitem(BOUNDS, PoolKind.ADMIN, Bounds(100, 1700))
    connection = FakeConnection()
    gate = asyncio.Event()

    async def wait(*_: object) -> Reply:
        await gate.wait()
        return Reply()

    dispatcher = Dispatcher([waiting(ONE, NO_HEADER, OPEN, wait)])
    pool = dispatcher.pools[PoolKind.ADMIN]
    for opaque in range(5):
        command = Command(ONE, opaque=opaque, flag=flag, body=bytes(400))
        dispatcher.handle(connection, command)  # type: ignore[arg-type]
    assert len(pool.tasks) == 2
    gate.set()
    await asyncio.gather(*pool.tasks)
    await asyncio.sleep(0)
    assert pool.task_bytes == 0
    busy = [answer for answer in connection.responses if answer.code == ResponseCode.SYSTEM_BUSY]
    assert len(busy) == (0 if flag else 3)


async def test_those_who_wait_for_one_thing_block_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(BOUNDS, PoolKind.CLIENTS, Bounds(9, 1000))
    greedy, modest = FakeConnection(), FakeConnection()
    gate = asyncio.Event()

    async def wait(*_: object) -> Reply:
        await gate.wait()
        return Reply()

    async def save(*_: object) -> Reply:
        return Reply()

    dispatcher = Dispatcher(
        [
            waiting(ONE, NO_HEADER, OPEN, wait, PoolKind.CLIENTS),
            waiting(TWO, NO_HEADER, OPEN, save),
        ]
    )
    for opaque in range(20):
        dispatcher.handle(greedy, Command(ONE, opaque=opaque))  # type: ignore[arg-type]
    assert len(greedy.responses) == 15  # it got five, so four stay free
    assert {answer.code for answer in greedy.responses} == {ResponseCode.SYSTEM_BUSY}
    dispatcher.handle(modest, Command(ONE, opaque=1))  # type: ignore[arg-type]
    dispatcher.handle(modest, Command(TWO, opaque=2))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [answer.opaque for answer in modest.responses] == [2]
    gate.set()
    await asyncio.gather(*dispatcher.pools[PoolKind.CLIENTS].tasks)
    assert [answer.code for answer in modest.responses] == [0, 0]


@pytest.mark.slow
async def test_a_peer_with_many_held_pulls_is_gone_quickly() -> None:
    def resume(name: str) -> None:
        raise AssertionError(name)

    polls = NamedPolls(resume)
    for number in range(50_000):
        polls.park("c", ("T", 0), tags=frozenset({1}), name=str(number), seconds=600)
    assert polls.table.tag_count == 50_000
    start = time.process_time()
    polls.table.drop("c")
    assert time.process_time() - start < 2
    assert len(polls.table) == polls.table.tag_count == 0


def formatted(message: str, *arguments: object, error: Exception | None = None) -> str:
    info = None if error is None else (type(error), error, None)
    record = logging.LogRecord("x", logging.INFO, "", 0, message, arguments, info)
    return OneLineFormatter("%(levelname)s %(message)s").format(record)


def test_a_name_of_a_peer_cannot_break_a_log_line() -> None:
    line = formatted("group=%s", "a\n2026-01-01 INFO all is well\r\x1b[2J\u2028é")
    assert line == "INFO group=a\\n2026-01-01 INFO all is well\\r\\x1b[2J\\u2028é"


def test_long_messages_are_cut() -> None:
    assert len(formatted("x=%s", "y" * 10_000_000)) < 5000


def test_lines_of_an_error_cannot_pass_for_records() -> None:
    text = formatted("failed", error=ValueError("a\nINFO all is well"))
    assert [line[:1] for line in text.splitlines()[1:]] == [" "] * (len(text.splitlines()) - 1)


@pytest.mark.parametrize("key", ["flushIntervalCommitLog", "flushIntervalConsumeQueue",
    "maxTransferBytesOnMessageInMemory", "maxFilterMessageSize", "pullThreadPoolQueueCapacity",
    "defaultTopicQueueNums", "pullBatchMaxMessageCount", "shortPollingTimeMills",
    "deleteFileBatchMax", "fileReservedTime", "maxMessageSize"])  # fmt: skip
@pytest.mark.parametrize("value", ["9223372036854775807", "9" * 30, "2147483648", "0", "-1"])
def test_no_number_that_an_administrator_may_set_is_without_a_bound(key: str, value: str) -> None:
    # An interval of 2^63 ms ended the thread that makes messages durable.
    broker, store = broker_settings({"storePathRootDir": "/nowhere"})
    live = LiveConfig(broker, store, clock=FakeClock())
    with pytest.raises(InvalidParameter):
        live.change({key: value})


@pytest.mark.parametrize("value", ["9223372036854775807", "0"])
def test_nor_one_of_the_name_server(value: str) -> None:
    with pytest.raises(ConfigError):
        apply_changes(NamesrvConfig(), {"scanNotActiveBrokerInterval": value})


async def test_sends_that_wait_for_a_slow_disk_keep_nothing_of_their_bodies() -> None:
    store = Store()
    sends = handler(store, sync=True, service=Drafts())
    connection = Client(sends)
    for flag in (0, 2):
        fields = {"a": "p", "b": "T", "i": ""}
        command = Command(310, flag=flag, body=bytes(1000), text_fields=fields, encoding=1)
        sends.handler.send(connection, command, command.read(SendMessageV2))  # type: ignore[arg-type]
        sends.writer.commit()
        assert sends.writer.waiting_count == 1  # who wants no answer waits for none
        if not flag:
            assert (command.body, command.text_fields) == (b"", {})
    sends.advance(20)
    assert [answer.code for answer in connection.responses] == [ResponseCode.SUCCESS]
    sends.close()
