"""Settings of RocketMQ's client that decide who keeps offsets, and who hears of queues."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from client.brokers import NAMESRV, QueueBroker, network_of, route_of
from client.network import FakeNetwork
from rocketpost.client import (
    ClientError,
    ConfigError,
    LitePullConsumer,
    LitePullConsumerConfig,
    MessageModel,
    MessageQueue,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.testing.virtual_time import in_virtual_time
from rocketpost.testing.waiting import until

A = "a:1"
ROUTES = {"T": route_of({"a": A}), "%RETRY%G": route_of({"a": A}, queues=1)}
QUEUES = [MessageQueue("a", 0, "T"), MessageQueue("a", 1, "T")]

Use = Callable[[FakeNetwork], FakeNetwork]


class Store:
    """Offsets in memory."""

    def __init__(self) -> None:
        self.offsets: dict[MessageQueue, int] = {}

    async def load(self, queue: MessageQueue) -> int | None:
        return self.offsets.get(queue)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        self.offsets.update(offsets)
        return set(offsets)


class FailingStore(Store):
    """A store that cannot be reached at first, nor at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 2
        self.is_down = False

    async def load(self, queue: MessageQueue) -> int | None:
        self._fail()
        return await super().load(queue)

    async def store(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        self._fail()
        return await super().store(offsets)

    def _fail(self) -> None:
        if self.is_down or self.failures:
            self.failures -= not self.is_down
            raise OSError("the database is away")


@in_virtual_time
async def test_a_store_that_fails_for_a_while_is_tried_again(use_network: Use) -> None:
    broker = QueueBroker()
    broker.put(b"0")
    network = use_network(network_of(ROUTES, {A: broker.serve}))
    store, got = FailingStore(), list[bytes]()
    config = PushConsumerConfig(name_servers=NAMESRV, start_from=StartFrom.FIRST)
    consumer = PushConsumer("G", config=config, offset_store=store)
    consumer.subscribe("T", lambda message: got.append(message.body))
    async with consumer:
        await until(lambda: got == [b"0"])
        store.failures = 1
        await asyncio.sleep(2 * config.persist_seconds + 1)
        assert store.offsets[QUEUES[0]] == 1
        broker.put(b"1")
        await until(lambda: got == [b"0", b"1"])
        store.is_down = True
    assert network.sent(RequestCode.UNREGISTER_CLIENT), "it has left its group nevertheless"


async def test_a_store_may_name_queues_that_it_was_not_asked_to_store(use_network: Use) -> None:
    class Talkative(Store):
        async def store(self, offsets: Mapping[MessageQueue, int]) -> set[MessageQueue]:
            await super().store(offsets)
            return {*QUEUES, MessageQueue("b", 0, "T")}

    broker = QueueBroker()
    broker.put(b"0")
    use_network(network_of(ROUTES, {A: broker.serve}))
    store = Talkative()
    config = LitePullConsumerConfig(name_servers=NAMESRV, start_from=StartFrom.FIRST)
    async with LitePullConsumer("G", config=config, offset_store=store) as consumer:
        await consumer.assign(QUEUES[:1])
        assert len(await consumer.poll()) == 1
        await consumer.commit()
    assert store.offsets == {QUEUES[0]: 1}


@pytest.mark.parametrize("failures", [0, 1])
async def test_a_poll_goes_on_while_the_store_fails(use_network: Use, failures: int) -> None:
    broker = QueueBroker()
    broker.put(b"0")
    use_network(network_of(ROUTES, {A: broker.serve}))
    store = FailingStore()
    store.failures = 0
    config = LitePullConsumerConfig(name_servers=NAMESRV, start_from=StartFrom.FIRST)
    consumer = LitePullConsumer("G", config=config, offset_store=store)
    async with consumer:
        await consumer.assign(QUEUES[:1])
        assert [message.body for message in await consumer.poll()] == [b"0"]
        store.failures = failures
        await consumer.commit()
        assert (QUEUES[0] in store.offsets) == (not failures)
        await consumer.commit()
        assert store.offsets[QUEUES[0]] == 1
        store.failures = 1
        with pytest.raises(ClientError, match="the database is away"):
            await consumer.committed(QUEUES[0])


@in_virtual_time
async def test_a_listener_is_called_with_the_queues_once(use_network: Use) -> None:
    use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    heard: list[tuple[str, list[MessageQueue], list[MessageQueue]]] = []

    def listen(topic: str, queues: list[MessageQueue], ours: list[MessageQueue]) -> None:
        heard.append((topic, queues, ours))
        raise ValueError("what a listener does is its own affair")

    config = PushConsumerConfig(name_servers=NAMESRV, rebalance_seconds=0.01)
    consumer = PushConsumer("G", config=config, queue_listener=listen)
    consumer.subscribe("T", print)
    async with consumer:
        await until(lambda: consumer.queues)
        await asyncio.sleep(1)  # more rounds, of which there is no news
    assert heard == [("T", QUEUES, QUEUES)]


def test_a_listener_that_would_hear_nothing_is_refused() -> None:
    config = PushConsumerConfig(client_rebalance=False)
    with pytest.raises(ConfigError, match="client_rebalance"):
        PushConsumer("G", config=config, queue_listener=lambda topic, queues, ours: None)
    with pytest.raises(ConfigError, match="must take 3"):
        LitePullConsumer("G", queue_listener=lambda topic: None)  # type: ignore[arg-type, misc]
    with pytest.raises(ConfigError, match="load"):
        PushConsumer("G", offset_store=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("model", MessageModel)
async def test_a_store_of_ones_own_keeps_the_offsets(use_network: Use, model: MessageModel) -> None:
    broker = QueueBroker()
    for n in range(4):
        broker.put(b"%d" % n)
    network = use_network(network_of(ROUTES, {A: broker.serve}))
    store = Store()
    store.offsets[QUEUES[0]] = 2
    got: list[bytes] = []

    async def handle(message: ReceivedMessage) -> None:
        got.append(message.body)
        assert (message.queue_begin, message.queue_end) == (0, 4)

    config = PushConsumerConfig(name_servers=NAMESRV, model=model)
    consumer = PushConsumer("G", config=config, offset_store=store)
    consumer.subscribe("T", handle)
    async with consumer:
        await until(lambda: len(got) == 2)
    assert sorted(got) == [b"2", b"3"]
    assert store.offsets[QUEUES[0]] == 4
    assert ("T", 0) not in broker.offsets
    assert not [
        command
        for command in network.sent(RequestCode.UPDATE_CONSUMER_OFFSET)
        if command.fields["topic"] == "T"
    ]


async def test_a_lite_pull_consumer_takes_a_store_too(use_network: Use) -> None:
    broker = QueueBroker()
    broker.put(b"0")
    use_network(network_of(ROUTES, {A: broker.serve}))
    store = Store()
    config = LitePullConsumerConfig(name_servers=NAMESRV, start_from=StartFrom.FIRST)
    consumer = LitePullConsumer("G", config=config, offset_store=store)
    consumer.subscribe("T")
    async with consumer:
        assert [message.body for message in await consumer.poll()] == [b"0"]
        await consumer.commit()
        assert await consumer.committed(QUEUES[0]) == 1
    assert store.offsets[QUEUES[0]] == 1


async def test_a_broadcasting_pull_consumer_keeps_its_offsets_in_a_file(
    use_network: Use, tmp_path: Path
) -> None:
    network = use_network(network_of(ROUTES, {A: QueueBroker().serve}))
    config = PullConsumerConfig(
        name_servers=NAMESRV, model=MessageModel.BROADCASTING, offset_directory=str(tmp_path)
    )
    async with PullConsumer("G", config=config) as consumer:
        assert await consumer.fetch_offset(QUEUES[0]) is None
        await consumer.commit_offset(QUEUES[0], 7)
    async with PullConsumer("G", config=config) as consumer:
        assert await consumer.fetch_offset(QUEUES[0]) == 7
    assert network.sent(RequestCode.UPDATE_CONSUMER_OFFSET) == []
    assert await asyncio.to_thread(lambda: list(tmp_path.rglob("offsets.json")))


async def test_pulls_that_found_something_are_followed_by_the_interval(use_network: Use) -> None:
    broker = QueueBroker()
    for n in range(3):
        broker.put(b"%d" % n)
    use_network(network_of(ROUTES, {A: broker.serve}))
    times: list[float] = []

    async def handle(message: ReceivedMessage) -> None:
        times.append(asyncio.get_running_loop().time())

    config = PushConsumerConfig(
        name_servers=NAMESRV, start_from=StartFrom.FIRST, pull_count_max=1, pull_interval=0.05
    )
    consumer = PushConsumer("G", config=config)
    consumer.subscribe("T", handle)
    async with consumer:
        await until(lambda: len(times) == 3)
    assert all(later - earlier >= 0.04 for earlier, later in itertools.pairwise(times))
    with pytest.raises(ConfigError, match="pull_interval"):
        PushConsumerConfig(pull_interval=-1)
