"""Settings of clients: what each does on the wire, or to the waiting."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

import pytest

from client.brokers import NAMESRV, QueueBroker, broker, network_of, route_of, stored
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ClientError,
    LitePullConsumer,
    LitePullConsumerConfig,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    RequestTimeout,
    StartFrom,
)
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import SystemBusy
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import settle

A = "a:1"
SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE
ROUTES = {"T": route_of({"a": A}, queues=1), "%RETRY%G": route_of({"a": A}, queues=1)}
QUEUE = MessageQueue("a", 0, "T")

Use = Callable[[FakeNetwork], FakeNetwork]


def producer(**options: object) -> Producer:
    return Producer("G", config=ProducerConfig(name_servers=NAMESRV, **options))  # type: ignore[arg-type]


def push(handler: Callable[[ReceivedMessage], object], **options: object) -> PushConsumer:
    defaults: dict[str, object] = {"start_from": StartFrom.FIRST, "stop_seconds": 0.05}
    config = PushConsumerConfig(name_servers=NAMESRV, **(defaults | options))  # type: ignore[arg-type]
    consumer = PushConsumer("G", config=config)
    consumer.subscribe("T", handler)  # type: ignore[arg-type]
    return consumer


def lite(**options: object) -> LitePullConsumer:
    config = LitePullConsumerConfig(
        name_servers=NAMESRV,
        **({"start_from": StartFrom.FIRST} | options),  # type: ignore[arg-type]
    )
    consumer = LitePullConsumer("G", config=config)
    consumer.subscribe("T")
    return consumer


def refusing(code: int) -> Callable[[Command], Answer]:
    return lambda command: Answer(code, remark="no")


def pulls(network: FakeNetwork) -> list[Command]:
    return [each for each in network.sent(PULL) if each.fields["topic"] == "T"]


# Producers.


@pytest.mark.parametrize("retries", [0, 4])
def test_retries(use_network: Use, retries: int) -> None:
    network = use_network(network_of(ROUTES, {A: broker(refusing(ResponseCode.SYSTEM_BUSY))}))

    @in_virtual_time
    async def run() -> None:
        async with producer(retries=retries, send_timeout=60.0) as sender:
            with pytest.raises(SystemBusy):
                await sender.send(Message("T", b"x"))

    run()
    assert len(network.sent(SEND)) == 1 + retries


def test_retry_codes(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker(refusing(ResponseCode.SYSTEM_BUSY))}))

    @in_virtual_time
    async def run() -> None:
        async with producer(retry_codes=frozenset(), send_timeout=60.0) as sender:
            with pytest.raises(SystemBusy):
                await sender.send(Message("T", b"x"))

    run()
    assert len(network.sent(SEND)) == 1


@pytest.mark.parametrize(("least", "compressed"), [(50, True), (200, False), (0, False)])
async def test_compress_bytes_min(use_network: Use, least: int, compressed: bool) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    async with producer(compress_bytes_min=least) as sender:
        await sender.send(Message("T", bytes(100)))
    assert (len(network.sent(SEND)[0].body) < 100) == compressed


async def test_compression_level(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    body = b"".join(b"%d" % (number * number) for number in range(3000))
    for level in (1, 9):
        async with producer(compression_level=level) as sender:
            await sender.send(Message("T", body))
    fast, best = (bytes(command.body) for command in network.sent(SEND))
    assert zlib.decompress(fast) == zlib.decompress(best) == body
    assert fast == zlib.compress(body, 1)
    assert best == zlib.compress(body, 9)


async def test_topics_that_are_to_be_made(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    async with producer(auto_create_topic="Model", auto_create_queues=7) as sender:
        await sender.send(Message("T", b"x"))
    fields = network.sent(SEND)[0].fields
    assert (fields["c"], fields["d"]) == ("Model", "7")


async def test_in_flight_bytes_max(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker(lambda command: None)}))
    async with producer(in_flight_bytes_max=250, send_timeout=0.2, retries=0) as sender:
        sends = [asyncio.ensure_future(sender.send(Message("T", bytes(100)))) for _ in range(5)]
        await settle()
        assert len(network.sent(SEND)) == 2
        await asyncio.gather(*sends, return_exceptions=True)


def test_auto_batch_seconds(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    waited = []

    @in_virtual_time
    async def run() -> None:
        loop = asyncio.get_running_loop()
        for seconds in (0.5, 5.0):
            async with producer(auto_batch=True, auto_batch_seconds=seconds) as sender:
                began = loop.time()
                await asyncio.gather(
                    sender.send(Message("T", b"1")), sender.send(Message("T", b"2"))
                )
                waited.append(loop.time() - began)

    run()
    assert waited[0] < 1 < 4 < waited[1]
    assert network.requests


async def test_enable_trace_of_producers(use_network: Use) -> None:
    seen = []
    for enabled in (True, False):
        routes = ROUTES | {"RMQ_SYS_TRACE_TOPIC": route_of({"a": A}, queues=1)}
        network = use_network(network_of(routes, {A: broker()}))
        async with producer(enable_trace=enabled) as sender:
            await sender.send(Message("T", b"x"))
        seen.append({command.fields["b"] for command in network.sent(SEND)})
    assert seen == [{"T", "RMQ_SYS_TRACE_TOPIC"}, {"T"}]


# What every client has.


async def test_client_ip(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    async with push(print, client_ip="192.0.2.7"):
        await settle()
    assert b'"clientID":"192.0.2.7@' in bytes(network.sent(RequestCode.HEART_BEAT)[0].body)


def test_route_seconds(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: broker()}))
    counts = []

    @in_virtual_time
    async def run() -> None:
        for seconds in (1.0, 1000.0):
            network.requests.clear()
            async with producer(route_seconds=seconds) as sender:
                await sender.send(Message("T", b"x"))
                await asyncio.sleep(20)
            counts.append(len(network.sent(RequestCode.GET_ROUTEINFO_BY_TOPIC)))

    run()
    assert counts[0] > 10 > counts[1]


@pytest.mark.parametrize("seconds", [0.5, 7.0])
def test_call_timeout(use_network: Use, seconds: float) -> None:
    network = network_of(ROUTES, {A: broker()})
    network.servers[NAMESRV] = lambda command: None
    use_network(network)

    @in_virtual_time
    async def run() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with producer(call_timeout=seconds, send_timeout=60.0, retries=0) as sender:
            with pytest.raises(ClientError):
                await sender.queues("T")
        return loop.time() - began

    assert seconds <= run() < 2 * seconds


# Pull consumers.


@pytest.mark.parametrize(
    ("options", "hold", "seconds"),
    [({"pull_timeout": 40.0}, False, 40.0), ({"hold_timeout": 50.0}, True, 50.0)],
)
def test_how_long_a_pull_is_waited_for(
    use_network: Use, options: dict[str, float], hold: bool, seconds: float
) -> None:
    use_network(network_of(ROUTES, {A: broker(PULL_MESSAGE=lambda command: None)}))

    @in_virtual_time
    async def run() -> float:
        loop = asyncio.get_running_loop()
        config = PullConsumerConfig(name_servers=NAMESRV, **options)
        async with PullConsumer("G", config=config) as reader:
            await reader.queues("T")  # the route is known from here on
            began = loop.time()
            with pytest.raises(RequestTimeout):
                await reader.pull(QUEUE, 0, hold=hold)
            return loop.time() - began

    assert seconds <= run() < seconds + 4


async def test_hold_seconds_of_pull_consumers(use_network: Use) -> None:
    found = {"suggestWhichBrokerId": "0", "nextBeginOffset": "0", "minOffset": "0",
             "maxOffset": "0"}  # fmt: skip
    nothing = Answer(ResponseCode.PULL_NOT_FOUND, found)
    network = use_network(network_of(ROUTES, {A: broker(PULL_MESSAGE=lambda command: nothing)}))
    config = PullConsumerConfig(name_servers=NAMESRV, hold_seconds=7.0)
    async with PullConsumer("G", config=config) as reader:
        await reader.pull(QUEUE, 0, hold=True)
    assert network.sent(PULL)[0].fields["suspendTimeoutMillis"] == "7000"


# Push consumers, and lite pull consumers, which fetch in the same way.


async def test_the_pull_requests_of_a_push_consumer(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    async with push(print, pull_count_max=3, pull_bytes_max=1234, hold_seconds=9.0):
        await settle()
    fields = pulls(network)[0].fields
    assert (fields["maxMsgNums"], fields["maxMsgBytes"]) == ("3", "1234")
    assert fields["suspendTimeoutMillis"] == "9000"


async def test_the_pull_requests_of_a_lite_pull_consumer(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    async with lite(pull_count_max=3, pull_bytes_max=1234, hold_seconds=9.0):
        await settle()
    fields = pulls(network)[0].fields
    assert (fields["maxMsgNums"], fields["maxMsgBytes"]) == ("3", "1234")
    assert fields["suspendTimeoutMillis"] == "9000"


BOUNDS = [
    ({"cached_count_max": 5}, 2),
    ({"cached_bytes_max": 500}, 2),
    ({"cached_span_max": 5}, 2),
    ({"topic_count_max": 5}, 2),
]


@pytest.mark.parametrize(("bound", "count"), [*BOUNDS, ({"topic_bytes_max": 500}, 2)])
async def test_when_fetching_of_a_push_consumer_rests(
    use_network: Use, bound: dict[str, int], count: int
) -> None:
    source = QueueBroker()
    network = use_network(network_of(ROUTES, {A: source.serve}))
    for _ in range(40):
        source.put(bytes(100))
    gate = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        await gate.wait()

    async with push(handle, pull_count_max=4, **bound):
        await settle()
        await settle()
        assert len(pulls(network)) == count
        gate.set()


@pytest.mark.parametrize(("bound", "count"), BOUNDS)
async def test_when_fetching_of_a_lite_pull_consumer_rests(
    use_network: Use, bound: dict[str, int], count: int
) -> None:
    source = QueueBroker()
    network = use_network(network_of(ROUTES, {A: source.serve}))
    for _ in range(40):
        source.put(bytes(100))
    async with lite(pull_count_max=4, **bound):
        await settle()
        await settle()
        assert len(pulls(network)) == count


@pytest.mark.parametrize("make", [lambda **options: push(print, **options), lite])
def test_how_long_a_fetch_is_waited_for_and_rests_after_a_failure(
    use_network: Use, make: Callable[..., PushConsumer | LitePullConsumer]
) -> None:
    times: list[float] = []
    source = QueueBroker()

    def silent(command: Command) -> Answer | None:
        if command.code == PULL and command.fields["topic"] == "T":
            times.append(asyncio.get_running_loop().time())
            return None
        return source.serve(command)  # type: ignore[return-value]

    use_network(network_of(ROUTES, {A: silent}))

    @in_virtual_time
    async def run() -> None:
        async with make(hold_seconds=2.0, pull_timeout=4.0, error_seconds=3.0):
            await asyncio.sleep(12)

    run()
    assert times[1] - times[0] == pytest.approx(7.0, abs=0.5)


def test_intervals_of_commits_and_rebalances(use_network: Use) -> None:
    source = QueueBroker()
    network = use_network(network_of(ROUTES, {A: source.serve}))
    commits, lists = [], []

    @in_virtual_time
    async def run() -> None:
        async def handle(message: ReceivedMessage) -> None:
            source.put(b"next")
            await asyncio.sleep(0.5)

        for seconds in (1.0, 100.0):
            network.requests.clear()
            source.put(b"first")
            async with push(handle, persist_seconds=seconds, rebalance_seconds=seconds):
                await asyncio.sleep(20)
                commits.append(len(network.sent(RequestCode.UPDATE_CONSUMER_OFFSET)))
                lists.append(len(network.sent(RequestCode.GET_CONSUMER_LIST_BY_GROUP)))

    run()
    assert commits[0] > 10 > commits[1]
    assert lists[0] > 10 > lists[1]


@pytest.mark.parametrize(("enabled", "topics"), [(True, {"Traces"}), (False, set())])
async def test_traces_of_consumers(use_network: Use, enabled: bool, topics: set[str]) -> None:
    source = QueueBroker()

    def serve(command: Command) -> Answer | asyncio.Future[Answer] | None:
        return stored(command) if command.code == SEND else source.serve(command)

    routes = ROUTES | {"Traces": route_of({"a": A}, queues=1)}
    network = use_network(network_of(routes, {A: serve}))
    source.put(b"x")
    handled = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        handled.set()

    async with asyncio.timeout(5), push(handle, enable_trace=enabled, trace_topic="Traces"):
        await handled.wait()
        await settle()
    assert {command.fields["b"] for command in network.sent(SEND)} == topics


async def test_concurrency(use_network: Use) -> None:
    source = QueueBroker()
    use_network(network_of(ROUTES, {A: source.serve}))
    for _ in range(9):
        source.put(b"x")
    gate, at_work = asyncio.Event(), []

    async def handle(message: ReceivedMessage) -> None:
        at_work.append(message)
        await gate.wait()

    async with push(handle, concurrency=3):
        await settle()
        assert len(at_work) == 3
        gate.set()


@pytest.mark.parametrize("start", [StartFrom.FIRST, StartFrom.TIMESTAMP])
async def test_where_a_lite_pull_consumer_starts(use_network: Use, start: StartFrom) -> None:
    source = QueueBroker()
    network = use_network(network_of(ROUTES, {A: source.serve}))
    source.put(b"x")
    async with lite(start_from=start, start_timestamp_ms=12_345):
        await settle()
        await settle()
    searches = network.sent(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
    asked = [command.fields["timestamp"] for command in searches]
    assert asked == (["12345"] if start is StartFrom.TIMESTAMP else [])
    ends = network.sent(RequestCode.GET_MAX_OFFSET)
    assert not ends  # where the default starts


def test_how_often_a_lite_pull_consumer_shares_out_queues(use_network: Use) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    lists = []

    @in_virtual_time
    async def run() -> None:
        for seconds in (1.0, 100.0):
            network.requests.clear()
            async with lite(rebalance_seconds=seconds):
                await asyncio.sleep(20)
                lists.append(len(network.sent(RequestCode.GET_CONSUMER_LIST_BY_GROUP)))

    run()
    assert lists[0] > 10 > lists[1]
