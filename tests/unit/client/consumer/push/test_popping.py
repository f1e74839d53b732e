"""A push consumer that lets brokers share out, and pops: outcomes become acks and delays."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, network_of, record, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ConfigError,
    MessageQueue,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
)
from rocketpost.client.consumer.push.popping import DELAYS_SECONDS
from rocketpost.codec.bodies.assignment import Assignment, Assignments, decode_query
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.headers.pop import parse_receipt
from rocketpost.codec.lenient_json import encode
from rocketpost.testing.waiting import until

A = "a:1"
ROUTES = {"T": route_of({"a": A}), "%RETRY%G": route_of({"a": A}, queues=1)}
EVERYTHING = MessageQueue("a", -1, "T")

Use = Callable[[FakeNetwork], FakeNetwork]


class PopBroker:
    """A broker that assigns and hands out what is put into it, once."""

    def __init__(self) -> None:
        self.assigned: list[Assignment] | None = [Assignment(message_queue=EVERYTHING, mode="POP")]
        self.refuse: dict[int, int] = {}
        self.acked: list[int] = []
        self.changed: list[tuple[int, int]] = []
        self.dead: list[Command] = []
        self.asked: list[str] = []
        self._waiting: list[asyncio.Future[Answer]] = []
        self._ready: list[Answer] = []
        self._offsets = itertools.count()
        self.pops = 0

    def put(self, *bodies: bytes, reconsume_times: int = 0) -> None:
        records = [
            record(body=body, queue_offset=next(self._offsets), reconsume_times=reconsume_times)
            for body in bodies
        ]
        fields = {
            "popTime": "1000",
            "invisibleTime": "60000",
            "reviveQid": "3",
            "restNum": "0",
            "startOffsetInfo": "0 0 0",
            "msgOffsetInfo": "",
        }
        answer = Answer(fields=fields, body=b"".join(records))
        waiting = [each for each in self._waiting if not each.done()]
        if waiting:
            waiting[0].set_result(answer)
        else:
            self._ready.append(answer)

    def serve(self, command: Command) -> Answer | asyncio.Future[Answer] | None:
        code = command.code
        if code in self.refuse:
            return Answer(self.refuse[code], remark="refused")
        if code == RequestCode.QUERY_ASSIGNMENT:
            query = decode_query(command.body)
            self.asked.append(query.topic)
            found = self.assigned if query.topic == "T" else []
            return Answer(body=encode(Assignments(message_queue_assignments=found)))
        if code == RequestCode.POP_MESSAGE:
            self.pops += 1
            if self._ready:
                return self._ready.pop(0)
            future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            return future
        if code == RequestCode.ACK_MESSAGE:
            assert parse_receipt(command.fields["extraInfo"]).pop_ms == 1000
            self.acked.append(int(command.fields["offset"]))
        if code == RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            offset, ms = int(command.fields["offset"]), int(command.fields["invisibleTime"])
            self.changed.append((offset, ms))
            fields = {"popTime": "2000", "invisibleTime": str(ms), "reviveQid": "3"}
            return Answer(fields=fields)
        if code == RequestCode.SEND_MESSAGE_V2:
            self.dead.append(command)
            return Answer(fields={"msgId": "AA", "queueId": "0", "queueOffset": "7"})
        if code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return Answer(body=b'{"consumerIdList":[]}')
        return Answer()


def consumer(**options: object) -> PushConsumer:
    settings = {"client_rebalance": False, "error_seconds": 0.001, "stop_seconds": 0.05} | options
    return PushConsumer("G", config=PushConsumerConfig(name_servers=NAMESRV, **settings))  # type: ignore[arg-type]


@pytest.fixture
def broker(use_network: Use) -> PopBroker:
    broker = PopBroker()
    use_network(network_of(ROUTES, {A: broker.serve}))
    return broker


async def test_handled_messages_are_acknowledged(broker: PopBroker) -> None:
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)

    reader = consumer()
    reader.subscribe("T", handle)
    broker.put(b"one", b"two")
    async with reader:
        await until(lambda: len(broker.acked) == 2)
        assert reader.queues == [EVERYTHING]
        broker.put(b"three")
        await until(lambda: len(broker.acked) == 3)
    assert got == [b"one", b"two", b"three"]
    assert broker.acked == [0, 1, 2]
    assert broker.changed == []
    assert set(broker.asked) == {"T", "%RETRY%G"}


@pytest.mark.parametrize(("times", "level", "seconds"), [(0, 0, 10), (2, 0, 60), (0, 1, 1)])
async def test_failed_messages_are_redelivered_later_each_time(
    broker: PopBroker, times: int, level: int, seconds: int
) -> None:
    async def handle(message: ReceivedMessage) -> None:
        raise Retry(level)

    reader = consumer()
    reader.subscribe("T", handle)
    broker.put(b"bad", reconsume_times=times)
    async with reader:
        await until(lambda: broker.changed)
    assert broker.changed == [(0, seconds * 1000)]
    assert broker.acked == []
    assert max(DELAYS_SECONDS) == 7200


async def test_a_message_that_failed_too_often_becomes_a_dead_letter_before_its_ack(
    broker: PopBroker,
) -> None:
    async def handle(message: ReceivedMessage) -> None:
        raise ValueError("never")

    reader = consumer(retry_max=2)
    reader.subscribe("T", handle)
    broker.put(b"bad", reconsume_times=2)
    async with reader:
        await until(lambda: broker.acked)
    assert broker.changed == []
    [sent] = broker.dead
    assert sent.fields["b"] == "%RETRY%G"
    assert sent.fields["j"] == "3"


async def test_a_dead_letter_that_is_not_stored_is_redelivered(broker: PopBroker) -> None:
    async def handle(message: ReceivedMessage) -> None:
        raise Retry(-1)

    reader = consumer()
    reader.subscribe("T", handle)
    broker.refuse[RequestCode.SEND_MESSAGE_V2] = ResponseCode.NO_PERMISSION
    broker.put(b"bad")
    async with reader:
        await until(lambda: broker.changed)
    assert broker.acked == []


async def test_an_ack_that_is_lost_is_sent_again(broker: PopBroker) -> None:
    async def handle(message: ReceivedMessage) -> None:
        broker.refuse[RequestCode.ACK_MESSAGE] = ResponseCode.SYSTEM_BUSY

    reader = consumer()
    reader.subscribe("T", handle)
    broker.put(b"one")
    async with reader:
        await until(lambda: RequestCode.ACK_MESSAGE in broker.refuse)
        for _ in range(20):
            await asyncio.sleep(0)
        broker.refuse.clear()
        await until(lambda: broker.acked)


async def test_messages_not_started_are_released_at_the_end(broker: PopBroker) -> None:
    begun = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    reader = consumer(concurrency=1)
    reader.subscribe("T", handle)
    broker.put(b"one", b"two", b"three")
    async with reader:
        await begun.wait()
    assert sorted(broker.changed) == [(1, 0), (2, 0)]
    assert broker.acked == []


async def test_popping_rests_while_too_much_is_unfinished(broker: PopBroker) -> None:
    released = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await released.wait()

    reader = consumer(pop_threshold=1)
    reader.subscribe("T", handle)
    broker.put(b"one", b"two")
    async with reader:
        await until(lambda: broker.pops == 1)
        for _ in range(50):
            await asyncio.sleep(0)
        assert broker.pops == 1
        released.set()
        await until(lambda: broker.pops == 2)


async def test_a_topic_that_is_given_up_is_popped_no_more(broker: PopBroker) -> None:
    async def handle(message: ReceivedMessage) -> None:
        return

    reader = consumer()
    reader.subscribe("T", handle)
    reader.subscribe("U", handle)
    async with reader:
        await until(lambda: reader.queues == [EVERYTHING])
        await reader.unsubscribe("T")
        assert reader.queues == []


async def test_no_answer_changes_nothing_and_an_empty_one_takes_everything(
    broker: PopBroker,
) -> None:
    async def handle(message: ReceivedMessage) -> None:
        return

    reader = consumer()
    reader.subscribe("T", handle)
    async with reader:
        await until(lambda: reader.queues)
        broker.assigned = None
        await reader._rebalancer.round()
        assert reader.queues == [EVERYTHING]
        broker.assigned = []
        await reader._rebalancer.round()
        assert reader.queues == []


async def test_a_broker_that_does_not_share_out_leaves_it_to_the_members(
    broker: PopBroker,
) -> None:
    async def handle(message: ReceivedMessage) -> None:
        return

    broker.refuse[RequestCode.QUERY_ASSIGNMENT] = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    reader = consumer()
    reader.subscribe("T", handle)
    async with reader:
        await reader._rebalancer.round()
        assert broker.asked == []
        assert broker.pops == 0


def test_settings_have_bounds() -> None:
    for options in ({"pop_count_max": 33}, {"pop_invisible_seconds": 1.0}, {"pop_threshold": 0}):
        with pytest.raises(ConfigError):
            consumer(**options)


async def test_fields_of_a_pop(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: PopBroker().serve}))
    reader = consumer(pop_count_max=7, pop_invisible_seconds=9.0)
    reader.subscribe("T", print)  # type: ignore[arg-type]
    async with reader:
        await until(lambda: network.sent(RequestCode.POP_MESSAGE))
    fields = network.sent(RequestCode.POP_MESSAGE)[0].fields
    assert (fields["maxMsgNums"], fields["invisibleTime"]) == ("7", "9000")
