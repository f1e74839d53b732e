from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from client.brokers import NAMESRV, QueueBroker, network_of, record, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ConfigError,
    Fault,
    FilterError,
    MessageModel,
    MessageQueue,
    NoNameServer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
)
from rocketpost.client.consumer import rebalance as rebalance_module
from rocketpost.codec.bodies.client import LockResponse, decode_lock_request
from rocketpost.codec.bodies.offset import encode_queue_offsets
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import ONEWAY, Command, encode_command
from rocketpost.codec.lenient_json import decode_any, encode
from rocketpost.codec.properties import decode_properties
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle, until

A = "a:1"
RETRY_TOPIC = "%RETRY%G"
ROUTES = {
    "T": route_of({"a": A}),
    RETRY_TOPIC: route_of({"a": A}, queues=1),
}
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK

Use = Callable[[FakeNetwork], FakeNetwork]


def consumer(**options: object) -> PushConsumer:
    defaults: dict[str, object] = {
        "start_from": StartFrom.FIRST,
        "error_seconds": 0.001,
        "stop_seconds": 0.05,
    }
    config = PushConsumerConfig(name_servers=NAMESRV, **(defaults | options))  # type: ignore[arg-type]
    return PushConsumer("G", config=config)


class Got(list[ReceivedMessage]):
    """An async handler that remembers."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message)


def setup(use_network: Use, **options: object) -> tuple[FakeNetwork, QueueBroker]:
    broker = QueueBroker(**options)  # type: ignore[arg-type]
    return use_network(network_of(ROUTES, {A: broker.serve})), broker


def grant_locks(broker: QueueBroker) -> None:
    def lock(command: Command) -> Answer:
        wanted = decode_lock_request(command.body).mq_set
        return Answer(body=encode(LockResponse(list(wanted))))

    broker._lock_batch_mq = lock  # type: ignore[attr-defined]


def pulled_from(network: FakeNetwork, offset: int) -> bool:
    """Tell whether somebody has pulled from an offset."""
    pulls = network.sent(RequestCode.PULL_MESSAGE)
    return any(pull.fields["queueOffset"] == str(offset) for pull in pulls)


async def test_messages_reach_the_handler_and_offsets_the_broker(use_network: Use) -> None:
    network, broker = setup(use_network)
    for n in range(5):
        broker.put(b"%d" % n, queue_id=n % 2)
    got = Got()
    reader = consumer()
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: len(got) == 5)
        broker.put(b"late")
        await until(lambda: len(got) == 6)
        assert len(reader.queues) == 3
    assert sorted(message.body for message in got) == [b"0", b"1", b"2", b"3", b"4", b"late"]
    assert broker.offsets[("T", 0)] == 4
    assert broker.offsets[("T", 1)] == 2
    [leave] = network.sent(RequestCode.UNREGISTER_CLIENT)
    assert leave.fields["consumerGroup"] == "G"


async def test_the_broker_gets_subscriptions_before_the_first_pull(use_network: Use) -> None:
    network, _ = setup(use_network)
    reader = consumer()
    reader.subscribe("T", Got(), tags="A || B")
    async with reader:
        await until(lambda: len(network.sent(RequestCode.PULL_MESSAGE)) == 3)
    codes = [command.code for _, command in network.requests]
    assert codes.index(RequestCode.HEART_BEAT) < codes.index(RequestCode.PULL_MESSAGE)
    body = network.sent(RequestCode.HEART_BEAT)[0].body
    assert b'"subString":"A || B"' in body
    assert b'"topic":"%RETRY%G"' in body
    assert b"CONSUME_FROM_FIRST_OFFSET" in body
    assert network.sent(RequestCode.PULL_MESSAGE)[0].fields["sysFlag"] == "2"


async def test_a_slow_message_holds_back_what_is_committed(use_network: Use) -> None:
    _, broker = setup(use_network)
    release = asyncio.Event()
    done: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        if message.body == b"1":
            await release.wait()
        done.append(message.body)

    for n in range(4):
        broker.put(b"%d" % n)
    reader = consumer(persist_seconds=0.01)
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: len(done) == 3)
        await until(lambda: broker.offsets.get(("T", 0)) == 1)
        release.set()
        await until(lambda: broker.offsets.get(("T", 0)) == 4)


@pytest.mark.parametrize(
    ("error", "level", "kind", "text"),
    [
        (ValueError("x\ny"), "0", "ValueError", "x y"),
        (Retry(5), "5", "Retry", "retry with delay level 5"),
        (Retry(-1), "-1", "KeyError", "'why'"),
    ],
)
async def test_a_failed_message_is_sent_back(
    use_network: Use, error: Exception, level: str, kind: str, text: str
) -> None:
    network, broker = setup(use_network)
    if kind == "KeyError":
        error.__cause__ = KeyError("why")

    async def handler(message: ReceivedMessage) -> None:
        raise error

    broker.put(b"zero")
    broker.put(b"one", UNIQ_KEY="U")
    reader = consumer(retry_max=7)
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: len(network.sent(SEND_BACK)) == 2)
    fields = network.sent(SEND_BACK)[1].fields
    assert fields == {
        "offset": "100",
        "group": "G",
        "delayLevel": level,
        "originMsgId": "U",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "7",
        "failureKind": kind,
        "failureText": text,
    }
    assert broker.offsets[("T", 0)] == 2


async def test_why_it_failed_can_be_kept_here(use_network: Use) -> None:
    network, broker = setup(use_network)

    async def handler(message: ReceivedMessage) -> None:
        raise ValueError("secret")

    broker.put(b"zero")
    reader = consumer(record_failures=False)
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: network.sent(SEND_BACK))
    assert "failureKind" not in network.sent(SEND_BACK)[0].fields


async def test_a_message_the_broker_does_not_take_back_is_sent_to_the_retry_topic(
    use_network: Use,
) -> None:
    network, broker = setup(use_network)
    broker.refuse[SEND_BACK] = ResponseCode.SYSTEM_ERROR

    async def handler(message: ReceivedMessage) -> None:
        raise Retry

    broker.put(b"body", UNIQ_KEY="U", color="red", TRAN_MSG="true")
    reader = consumer()
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: network.sent(RequestCode.SEND_MESSAGE_V2))
    [command] = network.sent(RequestCode.SEND_MESSAGE_V2)
    fields = command.fields
    assert (fields["b"], fields["j"], fields["l"]) == (RETRY_TOPIC, "1", "16")
    assert command.body == b"body"
    assert decode_properties(fields["i"].encode()) == {
        "UNIQ_KEY": "U",
        "color": "red",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "U",
        "DELAY": "3",
        "CONSUME_FAILURE": "Retry",
        "CONSUME_FAILURE_TEXT": "retry with delay level 0",
    }
    assert broker.offsets[("T", 0)] == 1


async def test_a_message_that_nobody_takes_back_is_handled_again_here(use_network: Use) -> None:
    _, broker = setup(use_network)
    broker.refuse[SEND_BACK] = ResponseCode.SYSTEM_ERROR
    broker.refuse[RequestCode.SEND_MESSAGE_V2] = ResponseCode.MESSAGE_ILLEGAL
    calls: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        calls.append(message.body)
        if len(calls) == 1:
            raise ValueError("first time")

    broker.put(b"x")
    reader = consumer(local_retry_seconds=0.01)
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: len(calls) == 2)
    assert broker.offsets[("T", 0)] == 1


async def test_retried_messages_come_to_the_handler_of_their_topic(use_network: Use) -> None:
    _, broker = setup(use_network)
    broker.put(b"again", topic=RETRY_TOPIC, RETRY_TOPIC="T")
    got = Got()
    reader = consumer()
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: got)
    assert got[0].topic == "T"
    assert broker.offsets[(RETRY_TOPIC, 0)] == 1


async def test_plain_functions_run_in_threads(use_network: Use) -> None:
    _, broker = setup(use_network)
    for n in range(50):
        broker.put(b"%d" % n)
    names: list[str] = []
    reader = consumer(concurrency=3)
    reader.subscribe("T", lambda message: names.append(threading.current_thread().name))
    async with reader:
        await until(lambda: len(names) == 50)
    assert threading.main_thread().name not in names
    assert len(set(names)) <= 3
    assert broker.offsets[("T", 0)] == 50
    assert not [t for t in threading.enumerate() if t.name.startswith("rocketpost-handler")]


async def test_batches_hold_so_many_messages_at_most(use_network: Use) -> None:
    _, broker = setup(use_network)
    for n in range(10):
        broker.put(b"%d" % n)
    sizes: list[int] = []

    async def handler(messages: Sequence[ReceivedMessage]) -> None:
        sizes.append(len(messages))

    reader = consumer(batch_max=4)
    reader.subscribe_batches("T", handler)
    async with reader:
        await until(lambda: sum(sizes) == 10)
    assert sizes == [4, 4, 2]


async def test_fetching_rests_while_too_much_is_in_hand(use_network: Use) -> None:
    network, broker = setup(use_network)
    for n in range(100):
        broker.put(b"%d" % n)
    gate = asyncio.Event()
    done: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        await gate.wait()
        done.append(message.body)

    def pulled() -> list[str]:
        pulls = network.sent(RequestCode.PULL_MESSAGE)
        return [p.fields["queueOffset"] for p in pulls if p.fields["topic"] == "T"
                and p.fields["queueId"] == "0"]  # fmt: skip

    reader = consumer(cached_count_max=5, pull_count_max=4)
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: pulled() == ["0", "4"])
        for _ in range(50):
            await asyncio.sleep(0)
        assert pulled() == ["0", "4"]
        gate.set()
        await until(lambda: len(done) == 100)


@pytest.mark.parametrize("orderly", [False, True])
async def test_messages_in_hand_are_handled_although_the_broker_has_deleted_them(
    use_network: Use, orderly: bool
) -> None:
    """The consumer is so slow that retention overtakes what it has fetched."""
    network, broker = setup(use_network)
    grant_locks(broker)
    for n in range(5):
        broker.put(b"%d" % n)
    gate, got = asyncio.Event(), list[bytes]()

    async def handler(message: ReceivedMessage) -> None:
        got.append(message.body)
        await gate.wait()

    reader = consumer(concurrency=1)
    reader.subscribe("T", handler, orderly=orderly)
    async with reader:
        await until(lambda: got == [b"0"] and ("T", 0) in broker.held)
        broker.records["T", 0] = []
        broker.min_offset = 20
        broker.put(b"new")
        await until(lambda: pulled_from(network, 20))
        gate.set()
        await until(lambda: got[-1] == b"new")
    assert got == [b"0", b"1", b"2", b"3", b"4", b"new"]
    assert broker.offsets[("T", 0)] == 21


async def test_an_offset_outside_the_queue_is_corrected(use_network: Use) -> None:
    _, broker = setup(use_network)
    broker.min_offset = 50
    broker.offsets[("T", 0)] = 7
    broker.put(b"oldest")
    got = Got()
    reader = consumer()
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: got)
    assert got[0].queue_offset == 50
    assert broker.offsets[("T", 0)] == 51


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"start_from": StartFrom.FIRST}, b"0"),
        ({"start_from": StartFrom.LAST}, b"new"),
        ({"start_from": StartFrom.TIMESTAMP, "start_timestamp_ms": 5}, b"1"),
    ],
)
async def test_a_new_group_starts_at_the_configured_place(
    use_network: Use, options: dict[str, object], first: bytes
) -> None:
    network, broker = setup(use_network)
    for n in range(3):
        broker.put(b"%d" % n)
    got = Got()
    reader = consumer(**options)
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: len(network.sent(RequestCode.PULL_MESSAGE)) >= 3)
        broker.put(b"new")
        await until(lambda: got and got[-1].body == b"new")
    assert got[0].body == first


async def test_queues_are_released_when_a_member_joins(
    use_network: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "ROUND_SECONDS_MIN", 0.0)
    network, broker = setup(use_network)
    broker.put(b"x", queue_id=1)
    got = Got()
    reader = consumer()
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: got)
        assert {queue.queue_id for queue in reader.queues if queue.topic == "T"} == {0, 1}
        broker.members = ["0-sorts-first"]
        notice = encode_command(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            opaque=1,
            flag=ONEWAY,
            fields={"consumerGroup": "G"},
        )
        network.links[A][0].send(notice)
        await until(lambda: [q.queue_id for q in reader.queues] == [1])
    assert broker.offsets[("T", 1)] == 1


async def test_a_broker_can_reset_offsets(use_network: Use) -> None:
    network, broker = setup(use_network)
    for n in range(5):
        broker.put(b"%d" % n)
    got = Got()
    reader = consumer()
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: len(got) == 5)
        body = encode_queue_offsets({MessageQueue("a", 0, "T"): 3})
        fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
        head = encode_command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            opaque=1,
            flag=ONEWAY,
            fields=fields,
            body_bytes=len(body),
        )
        network.links[A][0].send(head, body)
        await until(lambda: len(got) == 7)
    assert [message.queue_offset for message in got[5:]] == [3, 4]


async def test_a_reset_ahead_skips_what_is_in_hand_and_is_stored(use_network: Use) -> None:
    network, broker = setup(use_network)
    for n in range(5):
        broker.put(b"%d" % n)
    started, gate = asyncio.Event(), asyncio.Event()
    got: list[int] = []

    async def slow(message: ReceivedMessage) -> None:
        started.set()
        await gate.wait()
        got.append(message.queue_offset)

    reader = consumer(concurrency=1)
    reader.subscribe("T", slow)
    async with reader:
        await started.wait()
        body = encode_queue_offsets({MessageQueue("a", 0, "T"): 4, MessageQueue("a", 9, "U"): 1})
        head = encode_command(
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
            opaque=1,
            flag=ONEWAY,
            fields={"topic": "T", "group": "G"},
            body_bytes=len(body),
        )
        network.links[A][0].send(head, body)
        await until(lambda: broker.offsets.get(("T", 0)) == 4)
        gate.set()
        await until(lambda: 4 in got)
        assert {queue.queue_id for queue in reader.queues if queue.topic == "T"} == {0, 1}
    assert got == [0, 4]  # the one at work ended for nothing, those behind it were dropped
    assert broker.offsets["T", 0] == 5


async def test_a_broker_that_forgot_us_gets_another_heartbeat(use_network: Use) -> None:
    network, broker = setup(use_network)
    got = Got()
    broker.put(b"x")
    broker.refuse[RequestCode.PULL_MESSAGE] = ResponseCode.SUBSCRIPTION_NOT_EXIST
    reader = consumer()
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: len(network.sent(RequestCode.HEART_BEAT)) >= 3)
        broker.refuse.clear()
        await until(lambda: got)


async def test_unknown_requests_get_code_3(use_network: Use) -> None:
    network, _ = setup(use_network)
    reader = consumer()
    reader.subscribe("T", Got())
    async with reader:
        await until(lambda: network.links.get(A))
        response = await network.links[A][0].request(4711, timeout=1)
    assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_operators_can_ask_for_its_state(use_network: Use) -> None:
    network, broker = setup(use_network)
    broker.put(b"x")
    got = Got()
    reader = consumer()
    reader.subscribe("T", got, tags="*")
    async with reader:
        await until(lambda: got)
        fields = {"consumerGroup": "G", "clientId": reader.client_id, "jstackEnable": "true"}
        ask = network.links[A][0].request
        told = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields=fields, timeout=1)
        info = decode_any(told.body)
        stranger = {**fields, "consumerGroup": "Other"}
        refused = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields=stranger, timeout=1)
        asked = {"topic": "T", "group": "G"}
        offsets = await ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields=asked, timeout=1)
    assert info["properties"]["PROP_NAMESERVER_ADDR"] == "ns:1;"
    assert info["statusTable"]["T"]["consumeOKTPS"] > 0
    assert {each["topic"] for each in info["subscriptionSet"]} == {"T", RETRY_TOPIC}
    queue = '{"brokerName":"a","queueId":0,"topic":"T"}'
    assert info["mqTable"][queue]["commitOffset"] == 1
    assert "test_push_consumer" in info["jstack"] or "run_until_complete" in info["jstack"]
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert decode_any(offsets.body)["messageQueueTable"][queue] == 1


async def test_operators_can_ask_why_a_queue_does_not_move(use_network: Use) -> None:
    network, broker = setup(use_network)
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow(message: ReceivedMessage) -> None:
        begun.set()
        await gate.wait()

    reader = consumer(cached_count_max=2, concurrency=1)
    reader.subscribe("T", slow)
    async with reader:
        fields = {"consumerGroup": "G", "clientId": reader.client_id}

        async def standing() -> str:
            ask = network.links[A][0].request
            told = await ask(RequestCode.GET_CONSUMER_RUNNING_INFO, fields=fields, timeout=1)
            queue = '{"brokerName":"a","queueId":0,"topic":"T"}'
            return str(decode_any(told.body)["mqTable"].get(queue, {}).get("standing"))

        async def until_standing(text: str) -> str:
            async with asyncio.timeout(15):
                while text not in (told := await standing()):
                    await asyncio.sleep(0)
            return told

        await until(lambda: reader.queues)
        await until(lambda: broker.held.get(("T", 0)))
        assert await standing() == ""
        for n in range(4):
            broker.put(b"%d" % n)
        await begun.wait()
        full = "fetching pauses because of the messages in hand (4 messages, 4 bytes, a span of 3)"
        told = await until_standing(full)
        assert "a handler has been busy with" in told
        assert "at offset 0 for 0 s" in told
        gate.set()
        await until(lambda: broker.held.get(("T", 0)))
        assert await standing() == ""
        reader.pause()
        broker.put(b"x")
        await until_standing("it is paused, for 0 s")


@pytest.mark.parametrize(
    ("error", "result"),
    [(None, "CR_SUCCESS"), (Retry(2), "CR_LATER"), (ValueError("x"), "CR_THROW_EXCEPTION")],
)
@pytest.mark.parametrize("plain", [True, False])
async def test_operators_can_have_a_message_handled(
    use_network: Use, error: Exception | None, result: str, plain: bool
) -> None:
    network, broker = setup(use_network)
    bodies: list[bytes] = []

    def handle(message: ReceivedMessage) -> None:
        bodies.append(message.body)
        if error is not None:
            raise error

    async def handle_async(message: ReceivedMessage) -> None:
        handle(message)

    reader = consumer()
    reader.subscribe("T", handle if plain else handle_async)
    async with reader:
        await until(lambda: network.links.get(A))
        fields = {"consumerGroup": "G", "clientId": reader.client_id, "brokerName": "a"}
        told = await network.links[A][0].request(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            fields=fields,
            body=record(body=b"now", queue_offset=3),
            timeout=1,
        )
    outcome = decode_any(told.body)
    assert (outcome["consumeResult"], bodies) == (result, [b"now"])
    assert ("ValueError" in outcome["remark"]) == (result == "CR_THROW_EXCEPTION")
    assert broker.offsets.get(("T", 0)) in (None, 0)


async def test_stopping_waits_for_handlers_but_not_forever(use_network: Use) -> None:
    _, broker = setup(use_network)
    for n in range(3):
        broker.put(b"%d" % n)
    started: list[bytes] = []
    cancelled: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        started.append(message.body)
        if message.body == b"1":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

    reader = consumer(stop_seconds=0.02)
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: len(started) == 3)
    assert cancelled == [b"1"]
    assert broker.offsets[("T", 0)] == 1


async def test_subscriptions_can_change_while_it_runs(
    use_network: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "ROUND_SECONDS_MIN", 0.0)
    broker = QueueBroker()
    routes = {**ROUTES, "U": route_of({"a": A}, queues=1)}
    use_network(network_of(routes, {A: broker.serve}))
    broker.put(b"u", topic="U")
    first, second = Got(), Got()
    reader = consumer()
    reader.subscribe("T", first)
    async with reader:
        await until(lambda: len(reader.queues) == 3)
        reader.subscribe("U", second)
        await until(lambda: second)
        reader.unsubscribe("U")
        await until(lambda: all(queue.topic != "U" for queue in reader.queues))
    assert broker.offsets[("U", 0)] == 1


@pytest.mark.parametrize("ends_well", [True, False])
async def test_a_message_handled_for_too_long_is_sent_back(
    use_network: Use, ends_well: bool
) -> None:
    network, broker = setup(use_network)
    for n in range(3):
        broker.put(b"%d" % n)
    gate = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        if message.body == b"1":
            await gate.wait()
            if not ends_well:
                raise ValueError("late, and too late")

    reader = consumer(consume_timeout=0.02, persist_seconds=0.01)
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: broker.offsets.get(("T", 0)) == 3)
        gate.set()
        await settle()
    [back] = network.sent(SEND_BACK)  # once, however it ends
    assert (back.fields["offset"], back.fields["delayLevel"]) == ("100", "3")


async def test_pulls_that_fail_again_and_again_are_logged_once(
    use_network: Use, caplog: pytest.LogCaptureFixture
) -> None:
    network, broker = setup(use_network)
    got = Got()
    reader = consumer()
    reader.subscribe("T", got)
    broker.refuse[RequestCode.PULL_MESSAGE] = ResponseCode.SYSTEM_ERROR
    async with reader:
        await until(lambda: len(network.sent(RequestCode.PULL_MESSAGE)) > 20)
        broker.refuse.clear()
        broker.put(b"back")
        await until(lambda: got)
    lines = [record.getMessage() for record in caplog.records if "T" in record.getMessage()]
    assert sum(line.startswith("pull failed: ") for line in lines) <= 2  # of T and of its retries
    assert any(line.startswith("broker answers again: broker=a topic=T ") for line in lines)


async def test_a_handler_that_meets_a_cancellation_fails_like_any_other(
    use_network: Use,
) -> None:
    network, broker = setup(use_network)
    for n in range(5):
        broker.put(b"%d" % n)

    async def handler(message: ReceivedMessage) -> None:
        raise asyncio.CancelledError

    reader = consumer(concurrency=2)
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: len(network.sent(SEND_BACK)) == 5)


async def test_a_consumer_does_not_start_when_no_name_server_answers(use_network: Use) -> None:
    network, _ = setup(use_network)
    network.cut(NAMESRV)
    reader = consumer()
    reader.subscribe("T", Got())
    with pytest.raises(NoNameServer):
        await reader.start()


async def test_a_consumer_without_a_topic_does_not_start(use_network: Use) -> None:
    setup(use_network)
    with pytest.raises(ConfigError, match="subscribe"):
        await consumer().start()
    with pytest.raises(ConfigError, match="characters"):
        consumer().subscribe("a b", Got())


def at_home(tmp_path: Path) -> dict[str, object]:
    return {"model": MessageModel.BROADCASTING, "offset_directory": str(tmp_path)}


async def test_a_broadcasting_member_gets_every_queue_and_keeps_its_own_offsets(
    use_network: Use, tmp_path: Path
) -> None:
    network, broker = setup(use_network, members=["another"])
    broker.put(b"0")
    broker.put(b"1", queue_id=1)
    got = Got()
    reader = consumer(**at_home(tmp_path))
    reader.subscribe("T", got)
    async with reader:
        assert reader.client_id.endswith("@DEFAULT")
        await until(lambda: len(got) == 2)
        assert len(reader.queues) == 2  # no retry topic
    assert not broker.offsets
    assert not network.sent(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    assert b'"messageModel":"BROADCASTING"' in network.sent(RequestCode.HEART_BEAT)[0].body
    assert {command.fields["sysFlag"] for command in network.sent(RequestCode.PULL_MESSAGE)} == {
        "2"
    }
    broker.put(b"2")
    again = consumer(**at_home(tmp_path))
    again.subscribe("T", got)
    async with again:
        await until(lambda: len(got) == 3)
    assert got[2].body == b"2"


class YoungBroker(QueueBroker):
    """Behaves as Apache's: "not found" for an empty queue, 0 for a young one.

    A message is stored between the two requests of a client that starts at the end.
    """

    def _query_consumer_offset(self, command: Command) -> Answer:
        key = command.fields["topic"], int(command.fields["queueId"])
        if key in self.offsets or not self.records.get(key):
            return super()._query_consumer_offset(command)
        return Answer(fields={"offset": "0"})

    def _get_max_offset(self, command: Command) -> Answer:
        self.put(b"between", queue_id=int(command.fields["queueId"]))
        return super()._get_max_offset(command)


async def test_messages_stored_while_a_new_group_finds_the_end_are_not_skipped(
    use_network: Use,
) -> None:
    broker = YoungBroker()
    use_network(network_of(ROUTES, {A: broker.serve}))
    got = Got()
    reader = consumer(start_from=StartFrom.LAST)
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: len(got) == 2)
    assert [message.body for message in got] == [b"between"] * 2


class ZeroBroker(QueueBroker):
    """Behaves as ours: 0 for a queue that never had a message."""

    def _query_consumer_offset(self, command: Command) -> Answer:
        return Answer(fields={"offset": "0"})


async def test_where_a_new_group_starts_is_stored_although_nothing_came(use_network: Use) -> None:
    """A broker says 0 of an empty queue, which does not mean that it keeps it."""
    broker = ZeroBroker()
    network = use_network(network_of(ROUTES, {A: broker.serve}))
    reader = consumer(start_from=StartFrom.LAST)
    reader.subscribe("T", Got())
    async with reader:
        await until(lambda: network.sent(RequestCode.PULL_MESSAGE))
    assert broker.offsets[("T", 0)] == broker.offsets[("T", 1)] == 0


async def test_a_broadcasting_member_that_has_started_skips_nothing(
    use_network: Use, tmp_path: Path
) -> None:
    _, broker = setup(use_network)
    broker.put(b"old")
    got = Got()
    reader = consumer(**at_home(tmp_path), start_from=StartFrom.LAST)
    reader.subscribe("T", got)
    async with reader:
        broker.put(b"new")
        await until(lambda: got)
    assert [message.body for message in got] == [b"new"]


async def test_a_broadcast_message_that_fails_is_dropped(
    use_network: Use, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network, broker = setup(use_network)
    calls: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        calls.append(message.body)
        raise ValueError("no")

    broker.put(b"0")
    broker.put(b"1")
    reader = consumer(**at_home(tmp_path))
    reader.subscribe("T", handler)
    async with reader:
        await until(lambda: caplog.text.count("message given up") == 2)
    assert sorted(calls) == [b"0", b"1"]
    assert not network.sent(SEND_BACK)


@in_virtual_time
async def test_pausing_stops_fetching_of_all_or_some_queues(use_network: Use) -> None:
    _, broker = setup(use_network)
    got = Got()
    reader = consumer()
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: len(broker.held) == 3)
        reader.pause()
        broker.put(b"0")
        broker.put(b"1", queue_id=1)
        await asyncio.sleep(1)
        assert not got
        reader.pause([MessageQueue("a", 1, "T")])
        reader.resume([MessageQueue("a", 1, "T")])
        await asyncio.sleep(1)
        assert not got  # all is still paused
        reader.resume()
        await until(lambda: len(got) == 2)
        reader.pause([MessageQueue("a", 0, "T")])
        broker.put(b"2")
        broker.put(b"3", queue_id=1)
        await until(lambda: len(got) == 3)
        assert got[2].body == b"3"
        reader.resume([MessageQueue("a", 0, "T")])
        await until(lambda: len(got) == 4)


@in_virtual_time
async def test_bounds_of_a_topic_are_divided_among_its_queues(use_network: Use) -> None:
    _, broker = setup(use_network)
    release = asyncio.Event()

    async def handler(message: ReceivedMessage) -> None:
        await release.wait()

    for _ in range(10):
        broker.put(b"xxxx")
        broker.put(b"xxxx", queue_id=1)
    reader = consumer(topic_count_max=4, pull_count_max=1)
    reader.subscribe("T", handler)
    async with reader:
        await asyncio.sleep(1)
        held = [owned.tracker.count for owned in reader._assigned_queues.owned if owned.tracker]
        assert sorted(held) == [0, 3, 3]  # the bound may be passed by one pull
        release.set()
        await until(lambda: broker.held.get(("T", 0)) and broker.held.get(("T", 1)))


async def test_a_sql_filter_added_at_run_time_is_checked_first(use_network: Use) -> None:
    network, broker = setup(use_network)
    reader = consumer()
    reader.subscribe("T", Got())
    async with reader:
        broker.refuse[RequestCode.CHECK_CLIENT_CONFIG] = ResponseCode.SUBSCRIPTION_PARSE_FAILED
        with pytest.raises(FilterError, match="at character 4"):
            reader.subscribe("T", Got(), sql="a >")  # found before any broker is asked
        with pytest.raises(Fault):
            await reader.subscribe("T", Got(), sql="a > 0")
        assert b"SQL92" not in network.sent(RequestCode.HEART_BEAT)[-1].body
        broker.refuse.clear()
        await reader.subscribe("T", Got(), sql="a > 1")
        assert b"SQL92" in network.sent(RequestCode.HEART_BEAT)[-1].body
        await reader.unsubscribe("T")
        assert b'"topic":"T"' not in network.sent(RequestCode.HEART_BEAT)[-1].body
        await until(lambda: [queue.topic for queue in reader.queues] == [RETRY_TOPIC])


async def test_members_that_subscribe_differently_are_reported_once(
    use_network: Use, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "ROUND_SECONDS_MIN", 0.0)
    network, broker = setup(use_network)
    table = {"T": {"topic": "T", "subString": "B", "expressionType": "TAG", "subVersion": 1}}
    body = encode({"subscriptionTable": table, "messageModel": "CLUSTERING"})
    monkeypatch.setattr(
        broker, "_get_consumer_connection_list", lambda _: Answer(body=body), raising=False
    )
    reader = consumer(rebalance_seconds=0.001)
    reader.subscribe("T", Got(), tags="A")
    async with reader:
        asked = RequestCode.GET_CONSUMER_CONNECTION_LIST
        await until(lambda: len(network.sent(asked)) > 3)
    assert caplog.text.count("this member subscribes to TAG A of T, another member to TAG B") == 1


async def test_a_topic_without_a_route_is_reported_once_and_not_immediately(
    use_network: Use, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance_module, "ROUND_SECONDS_MIN", 0.0)
    network, _ = setup(use_network)
    reader = consumer()
    reader.subscribe("Nowhere", Got())
    async with reader:

        def asked() -> int:
            sent = network.sent(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            return sum(command.fields["topic"] == "Nowhere" for command in sent)

        await until(lambda: asked() >= 1)
        assert "queues not assigned" not in caplog.text
        await until(lambda: asked() > 5)
    assert caplog.text.count("queues not assigned: topic=Nowhere") == 1


async def test_a_strategy_that_fails_leaves_the_queues_as_they_are(use_network: Use) -> None:
    _, broker = setup(use_network)

    class Moody:
        name = "MOODY"
        broken = False

        def __call__(
            self, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
        ) -> list[MessageQueue]:
            if self.broken:
                raise RuntimeError("bad day")
            return list(queues)

    strategy, got = Moody(), Got()
    config = PushConsumerConfig(
        name_servers=NAMESRV, start_from=StartFrom.FIRST, rebalance_seconds=0.01, stop_seconds=0.05
    )
    reader = PushConsumer("G", config=config, strategy=strategy)
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: len(reader.queues) == 3)
        strategy.broken = True
        assert not await reader._rebalancer.round()
        assert len(reader.queues) == 3
        broker.put(b"0")
        await until(lambda: got)


async def test_a_disconnected_member_continues_where_others_are_and_moves_no_offset_back(
    use_network: Use,
) -> None:
    network, broker = setup(use_network)
    for n in range(3):
        broker.put(b"%d" % n)
    got = Got()
    reader = consumer(persist_seconds=0.01)
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: broker.offsets.get(("T", 0)) == 3)
        network.cut(A)
        before = len(network.requests)
        for n in range(3, 9):
            broker.put(b"%d" % n)
        broker.offsets[("T", 0)] = 8  # another member handled 3 to 7 meanwhile
        network.servers[A] = broker.serve
        await until(lambda: len(got) == 4)
        await until(lambda: broker.offsets[("T", 0)] == 9)
    assert [message.body for message in got] == [b"0", b"1", b"2", b"8"]
    told = [
        int(command.fields["commitOffset"])
        for _, command in network.requests[before:]
        if command.fields.get("topic") == "T" and command.fields.get("queueId") == "0"
        if command.fields.get("commitOffset", "0") != "0"
    ]
    assert told
    assert min(told) >= 8


async def test_a_broker_that_forgot_offsets_gets_them_again(use_network: Use) -> None:
    network, broker = setup(use_network)
    for n in range(3):
        broker.put(b"%d" % n)
    got = Got()
    reader = consumer(persist_seconds=60.0)
    reader.subscribe("T", got)
    async with reader:
        await until(lambda: len(got) == 3)
        network.cut(A)
        broker.offsets[("T", 0)] = 1  # what it had saved before it died
        network.servers[A] = broker.serve
        broker.put(b"3")
        await until(lambda: len(got) == 4)
    assert [message.body for message in got] == [b"0", b"1", b"2", b"3"]
    assert broker.offsets[("T", 0)] == 4


@pytest.mark.parametrize("found", [None, 1])
async def test_who_handled_nothing_takes_back_nothing_that_is_stored_late(
    use_network: Use, found: int | None
) -> None:
    network, broker = setup(use_network)
    for n in range(4):
        broker.put(b"%d" % n)
    if found is not None:
        broker.offsets["T", 0] = found
    begun, never = asyncio.Event(), asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await never.wait()

    reader = consumer(persist_seconds=0.001)
    broker.refuse[RequestCode.UPDATE_CONSUMER_OFFSET] = ResponseCode.SYSTEM_ERROR
    reader.subscribe("T", handle)
    async with reader:
        await begun.wait()
        broker.offsets["T", 0] = 3  # stored by the member that had the queue before
        del broker.refuse[RequestCode.UPDATE_CONSUMER_OFFSET]
        pulls = len(network.sent(RequestCode.PULL_MESSAGE))
        broker.put(b"4")
        await until(lambda: len(network.sent(RequestCode.PULL_MESSAGE)) > pulls)
    assert broker.offsets["T", 0] == 3
    told = [
        command.fields["commitOffset"]
        for command in network.sent(RequestCode.PULL_MESSAGE)
        if command.fields["topic"] == "T" and command.fields["queueId"] == "0"
    ]
    assert set(told) == {"0"}
