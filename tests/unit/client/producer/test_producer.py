from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from client.brokers import NAMESRV, broker, network_of, route_of, stored
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ClientError,
    Compression,
    ConfigError,
    ConnectionLost,
    Message,
    MessageQueue,
    MessageRefused,
    Producer,
    ProducerConfig,
    RequestTimeout,
    RouteNotFound,
    SendStatus,
)
from rocketpost.client.producer.queue_choice import select_by_hash
from rocketpost.codec.batch import decode_batch
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import MessageIllegal, SystemBusy
from rocketpost.codec.properties import decode_properties
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.route import TopicRoute
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle

A, B = "a:1", "b:1"
SEND = RequestCode.SEND_MESSAGE_V2
BOTH = {"T": route_of({"a": A, "b": B})}
ONE = {"T": route_of({"a": A})}

FIRST = MessageQueue("a", 0, "T")

Use = Callable[[FakeNetwork], FakeNetwork]


def headless_of(route: TopicRoute) -> TopicRoute:
    """Return a route whose brokers have slaves only."""
    slaves = [replace(broker, broker_addrs={1: "s:1"}) for broker in route.broker_datas]
    return replace(route, broker_datas=slaves)


def producer(**options: object) -> Producer:
    config = ProducerConfig(name_servers=NAMESRV, **options)  # type: ignore[arg-type]
    return Producer("G", config=config)


def refusing(code: int) -> Callable[[Command], Answer]:
    return lambda command: Answer(code, remark="no")


async def test_a_send_carries_everything_and_returns_where_it_went(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer() as sender:
        result = await sender.send(Message("T", b"body", tags="X", flag=9))
    [command] = network.sent(SEND)
    fields = command.fields
    assert (fields["a"], fields["b"], fields["c"], fields["d"]) == ("G", "T", "TBW102", "4")
    assert (fields["f"], fields["h"], fields["m"], fields["n"]) == ("0", "9", "false", "a")
    assert command.body == b"body"
    properties = decode_properties(fields["i"].encode())
    assert properties["TAGS"] == "X"
    assert result.message_id == properties["UNIQ_KEY"]
    assert (result.status, result.offset_id, result.queue_offset) == (SendStatus.SEND_OK, "AA", 7)
    assert result.queue == MessageQueue("a", int(fields["e"]), "T")


@pytest.mark.parametrize("status", SendStatus)
async def test_every_status_is_returned(use_network: Use, status: SendStatus) -> None:
    code = int(status.value)
    use_network(network_of(ONE, {A: broker(lambda command: stored(command, code))}))
    async with producer() as sender:
        assert (await sender.send(Message("T", b"x"))).status is status


async def test_nothing_is_sent_of_a_message_that_breaks_a_rule(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer() as sender:
        with pytest.raises(MessageRefused):
            await sender.send(Message("T", b""))
        with pytest.raises(MessageRefused):
            await sender.send(Message("T", b"x"), queue=MessageQueue("a", 0, "Other"))
    assert network.requests == []


async def test_a_lost_broker_is_replaced_by_another(use_network: Use) -> None:
    network = use_network(network_of(BOTH, {A: broker(), B: broker()}))
    async with producer() as sender:
        await asyncio.gather(*(sender.send(Message("T", b"x")) for _ in range(4)))
        network.cut(A)
        results = await asyncio.gather(*(sender.send(Message("T", b"x")) for _ in range(8)))
    assert {result.queue.broker_name for result in results} == {"b"}


async def test_a_retry_keeps_the_unique_id(use_network: Use) -> None:
    refused = broker(refusing(ResponseCode.SYSTEM_BUSY))
    network = use_network(network_of(BOTH, {A: refused, B: broker()}))
    async with producer() as sender:
        await asyncio.gather(*(sender.send(Message("T", b"x")) for _ in range(4)))
    ids: dict[str, set[str]] = {A: set(), B: set()}
    for address in (A, B):
        for command in network.sent(SEND, address):
            ids[address].add(decode_properties(command.fields["i"].encode())["UNIQ_KEY"])
    assert len(ids[B]) == 4
    assert ids[A] <= ids[B]
    assert ids[A]


async def test_after_all_attempts_the_last_refusal_is_raised(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(refusing(ResponseCode.SYSTEM_BUSY))}))
    async with producer() as sender:
        with pytest.raises(SystemBusy, match="no") as raised:
            await sender.send(Message("T", b"x"))
    assert len(network.sent(SEND)) == 3
    assert "brokers tried: a x 3" in raised.value.__notes__[0]


async def test_a_final_refusal_is_not_repeated(use_network: Use) -> None:
    network = use_network(network_of(BOTH, {
        A: broker(refusing(ResponseCode.MESSAGE_ILLEGAL)),
        B: broker(refusing(ResponseCode.MESSAGE_ILLEGAL)),
    }))  # fmt: skip
    async with producer() as sender:
        with pytest.raises(MessageIllegal):
            await sender.send(Message("T", b"x"))
    assert len(network.sent(SEND)) == 1


@in_virtual_time
async def test_silence_is_a_timeout_within_the_budget(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker(lambda command: None)}))
    async with producer(send_timeout=0.03) as sender:
        start = asyncio.get_running_loop().time()
        with pytest.raises(RequestTimeout, match="may have been stored or not"):
            await sender.send(Message("T", b"x"))
        assert asyncio.get_running_loop().time() - start == pytest.approx(0.03, abs=0.001)
        with pytest.raises(RequestTimeout):
            await sender.send(Message("T", b"x"), timeout=0.01)
    assert len(network.sent(SEND)) == 2


@in_virtual_time
async def test_a_bound_per_attempt_leaves_time_for_another_broker(use_network: Use) -> None:
    silent = broker(lambda command: None)
    use_network(network_of(BOTH, {A: silent, B: broker()}))
    async with producer(attempt_timeout=0.01) as sender:
        results = await asyncio.gather(*(sender.send(Message("T", b"x")) for _ in range(4)))
    assert {result.queue.broker_name for result in results} == {"b"}


@in_virtual_time
async def test_the_outcome_of_an_old_attempt_is_ignored(use_network: Use) -> None:
    silent = broker(lambda command: None)  # its connection is dropped when an attempt times out
    network = use_network(network_of(BOTH, {A: silent, B: broker()}))
    async with producer(attempt_timeout=0.01, retries=5) as sender:
        results = [await sender.send(Message("T", b"x")) for _ in range(6)]
        ids = [decode_properties(command.fields["i"].encode())["UNIQ_KEY"]
               for command in network.sent(SEND, B)]  # fmt: skip
    assert {result.queue.broker_name for result in results} == {"b"}
    assert sorted(ids) == sorted(result.message_id for result in results)


async def test_a_queue_of_the_users_choice_gets_one_attempt(use_network: Use) -> None:
    network = use_network(network_of(BOTH, {
        A: broker(refusing(ResponseCode.SYSTEM_BUSY)),
        B: broker(),
    }))  # fmt: skip
    queue = MessageQueue("a", 1, "T")
    async with producer() as sender:
        with pytest.raises(SystemBusy):
            await sender.send(Message("T", b"x"), queue=queue)
        with pytest.raises(SystemBusy):
            await sender.send(Message("T", b"x"), selector=lambda queues, message: queue)
    assert [command.fields["e"] for command in network.sent(SEND)] == ["1", "1"]


async def test_equal_sharding_keys_go_to_javas_queue(use_network: Use) -> None:
    use_network(network_of(BOTH, {A: broker(), B: broker()}))
    async with producer() as sender:
        queues = await sender.queues("T")
        for key in ("order-1", "order-2", "polygenelubricants"):
            message = Message("T", b"x", sharding_key=key)
            expected = queues[abs(string_hash(key)) % 4]
            for _ in range(3):
                assert (await sender.send(message)).queue == expected
            assert select_by_hash(queues, key) == expected


async def test_a_status_that_is_not_ok_is_retried_if_wished(use_network: Use) -> None:
    timeout = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    network = use_network(network_of(ONE, {A: broker(lambda command: stored(command, timeout))}))
    async with producer(retry_not_stored_ok=True) as sender:
        result = await sender.send(Message("T", b"x"))
    assert result.status is SendStatus.FLUSH_DISK_TIMEOUT
    assert len(network.sent(SEND)) == 3


async def test_many_sends_are_under_way_but_no_more_than_allowed(use_network: Use) -> None:
    held: list[int] = []
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer(in_flight_max=10) as sender:
        futures = []
        for n in range(100):
            futures.append(await sender.send_soon(Message("T", b"%d" % n)))
            held.append(sum(not future.done() for future in futures))
        await sender.flush()
        assert all(future.done() for future in futures)
    assert max(held) == 10
    assert [command.body for command in network.sent(SEND)] == [b"%d" % n for n in range(100)]


async def test_stopping_waits_for_what_is_under_way(use_network: Use) -> None:
    use_network(network_of(ONE, {A: broker()}))
    async with producer() as sender:
        futures = [await sender.send_soon(Message("T", b"x")) for _ in range(5)]
    assert [future.result().status for future in futures] == [SendStatus.SEND_OK] * 5
    with pytest.raises(ClientError, match="not running"):
        await sender.send(Message("T", b"x"))


async def test_large_bodies_are_compressed(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer(compression=Compression.ZSTD) as sender:
        await sender.send(Message("T", bytes(4096)))
        await sender.send(Message("T", bytes(4095)))
    flags = [(command.fields["f"], len(command.body)) for command in network.sent(SEND)]
    assert flags[0][0] == str(0x201)
    assert flags[0][1] < 100
    assert flags[1] == ("0", 4095)


async def test_oneway_messages_ask_for_no_answer(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer() as sender:
        await sender.send_oneway(Message("T", b"x"))
        await settle()
    [command] = network.sent(SEND)
    assert command.is_oneway


async def test_batches_split_under_the_limit_and_give_a_result_each(use_network: Use) -> None:
    def store_batch(command: Command) -> Answer:
        count = len(decode_batch(command.body))
        ids = ",".join(f"ID{n}" for n in range(count))
        fields = {"msgId": ids, "queueId": command.fields["e"], "queueOffset": "5"}
        return Answer(0, fields)

    network = use_network(network_of(ONE, {A: broker(store_batch)}))
    async with producer(message_bytes_max=1000) as sender:
        assert await sender.send_batch([]) == []
        results = await sender.send_batch([Message("T", bytes(200)) for _ in range(10)])
    requests = network.sent(RequestCode.SEND_BATCH_MESSAGE)
    sizes = [len(decode_batch(command.body)) for command in requests]
    assert sum(sizes) == 10
    assert all(len(command.body) <= 1000 for command in requests)
    assert len({result.message_id for result in results}) == 10
    assert [result.queue_offset for result in results[: sizes[0]]] == [
        5 + n for n in range(sizes[0])
    ]
    assert all("UNIQ_KEY" not in command.fields["i"] for command in requests)
    assert all(command.fields["m"] == "true" for command in requests)


async def test_batches_split_by_count_too(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer(batch_count_max=3) as sender:
        await sender.send_batch([Message("T", b"x") for _ in range(7)])
    requests = network.sent(RequestCode.SEND_BATCH_MESSAGE)
    assert [len(decode_batch(command.body)) for command in requests] == [3, 3, 1]


async def test_ids_may_be_given(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    queue = MessageQueue("a", 0, "T")
    keyed = [Message("T", b"x", sharding_key="k"), Message("T", b"y", sharding_key="l")]
    async with producer(auto_batch=True) as sender:
        sent = await sender.send_soon(Message("T", b"x"), message_id="ONE")
        assert (await sent).message_id == "ONE"
        results = await sender.send_batch(keyed, queue=queue, message_ids=["TWO", "THREE"])
        assert [result.message_id for result in results] == ["TWO", "THREE"]
        with pytest.raises(MessageRefused, match="agree in their sharding key"):
            await sender.send_batch(keyed)  # no queue is named, and the keys choose two
    [single], [batch] = network.sent(SEND), network.sent(RequestCode.SEND_BATCH_MESSAGE)
    items = decode_batch(batch.body)
    found = [decode_properties(bytes(item.properties))["UNIQ_KEY"] for item in items]
    assert decode_properties(single.fields["i"].encode())["UNIQ_KEY"] == "ONE"
    assert found == ["TWO", "THREE"]
    async with Producer("G", name_servers=NAMESRV, idempotent=True) as sender:
        with pytest.raises(MessageRefused, match="makes the ids"):
            await sender.send_soon(Message("T", b"x"), message_id="ONE")
        with pytest.raises(MessageRefused, match="makes the ids"):
            await sender.send_batch([Message("T", b"x")], message_ids=["ONE"])


@pytest.mark.parametrize(
    "messages",
    [
        [Message("T", b"x"), Message("U", b"x")],
        [Message("T", b"x"), Message("T", b"x", wait_store=False)],
        [Message("T", b"x", delay_level=1)],
        [Message("T", b"x", sharding_key="a"), Message("T", b"x", sharding_key="b")],
        [Message("%RETRY%g", b"x")],
        [Message("T", bytes(5000))],
    ],
)
async def test_messages_that_cannot_go_together_are_refused(
    use_network: Use, messages: list[Message]
) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer(message_bytes_max=5000) as sender:
        with pytest.raises(MessageRefused):
            await sender.send_batch(messages)
    assert network.requests == []


async def test_a_batch_that_fails_in_part_says_so(use_network: Use) -> None:
    answers = [True, False]

    def store_first(command: Command) -> Answer:
        if answers.pop(0):
            return stored(command)
        return Answer(ResponseCode.MESSAGE_ILLEGAL)

    use_network(network_of(ONE, {A: broker(store_first)}))
    async with producer(message_bytes_max=1000) as sender:
        with pytest.raises(MessageIllegal) as raised:
            await sender.send_batch([Message("T", bytes(600)), Message("T", bytes(600))])
    assert "1 of 2 messages are stored" in raised.value.__notes__


@in_virtual_time
async def test_an_unknown_topic_and_a_missing_broker_are_distinguished(use_network: Use) -> None:
    network = use_network(network_of(ONE, {}))
    async with producer() as sender:
        with pytest.raises(RouteNotFound):
            await sender.send(Message("Unknown", b"x"))
        with pytest.raises(ConnectionLost):
            await sender.send(Message("T", b"x"))
        with pytest.raises(ConnectionLost):
            await sender.send_oneway(Message("T", b"x"))
    assert network.sent(SEND) == []


SENDS: dict[str, Callable[[Producer], Awaitable[object]]] = {
    "one": lambda sender: sender.send(Message("T", b"x")),
    "batch": lambda sender: sender.send_batch([Message("T", b"x"), Message("T", b"y")]),
    "oneway": lambda sender: sender.send_oneway(Message("T", b"x")),
}


@pytest.mark.parametrize("kind", SENDS)
@in_virtual_time
async def test_a_group_without_a_leader_fails_no_send(use_network: Use, kind: str) -> None:
    """The first send of a producer, and one after the route was refreshed meanwhile."""
    table = {"T": headless_of(ONE["T"])}
    network = use_network(network_of(table, {A: broker()}))
    loop = asyncio.get_running_loop()
    async with producer() as sender:
        for number in (1, 2):
            loop.call_later(1.5, table.update, ONE)
            await SENDS[kind](sender)
            await settle()
            assert len(network.sent(SEND) + network.sent(RequestCode.SEND_BATCH_MESSAGE)) == number
            table["T"] = headless_of(ONE["T"])
            await asyncio.sleep(sender.config.route_seconds + 1)


@pytest.mark.parametrize("kind", ["one", "batch"])
@in_virtual_time
async def test_the_wait_for_a_leader_counts_for_the_time_limit(use_network: Use, kind: str) -> None:
    """The new leader does not answer."""
    table = {"T": headless_of(ONE["T"])}
    use_network(network_of(table, {A: broker(lambda command: None)}))
    loop = asyncio.get_running_loop()
    async with producer(send_timeout=3.0) as sender:
        loop.call_later(2, table.update, ONE)
        began = loop.time()
        with pytest.raises(RequestTimeout):
            await SENDS[kind](sender)
        assert loop.time() - began == pytest.approx(3.0, abs=0.2)


@in_virtual_time
async def test_sends_that_wait_for_a_leader_keep_their_order(use_network: Use) -> None:
    table = {"T": headless_of(ONE["T"])}
    network = use_network(network_of(table, {A: broker()}))
    async with producer() as sender:
        sends = [
            asyncio.ensure_future(sender.send(Message("T", b"%d" % number), queue=FIRST))
            for number in range(5)
        ]
        await asyncio.sleep(1)
        table.update(ONE)
        await asyncio.sleep(0.1)
        sends += [
            asyncio.ensure_future(sender.send(Message("T", b"%d" % number), queue=FIRST))
            for number in range(5, 10)
        ]
        await asyncio.gather(*sends)
    assert [command.body for command in network.sent(SEND)] == [b"%d" % n for n in range(10)]


async def test_slow_brokers_are_avoided_if_wished(use_network: Use) -> None:
    network = use_network(network_of(BOTH, {
        A: broker(refusing(ResponseCode.SYSTEM_BUSY)),
        B: broker(),
    }))  # fmt: skip
    async with producer(avoid_slow_brokers=True) as sender:
        for _ in range(20):
            await sender.send(Message("T", b"x"))
    assert len(network.sent(SEND, A)) <= 1


async def test_brokers_are_notified_of_the_group_and_of_its_leave(use_network: Use) -> None:
    network = use_network(network_of(ONE, {A: broker()}))
    async with producer() as sender:
        await sender.send(Message("T", b"x"))
        await settle()
    [beat] = network.sent(RequestCode.HEART_BEAT)
    assert b'"producerDataSet":[{"groupName":"G"}]' in beat.body
    [leave] = network.sent(RequestCode.UNREGISTER_CLIENT)
    assert leave.fields["producerGroup"] == "G"


@pytest.mark.parametrize("group", ["", "DEFAULT_PRODUCER", "a b", "g" * 121])
def test_illegal_groups_are_refused(group: str) -> None:
    with pytest.raises(ConfigError):
        Producer(group)
