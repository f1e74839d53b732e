from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from client.brokers import NAMESRV, network_of, record
from client.network import Answer, FakeNetwork
from rocketpost.client import ConnectionLost, PullConsumer
from rocketpost.client.config import ClientConfig
from rocketpost.client.consumer import fetch
from rocketpost.client.consumer.fetch import Fetcher, PullQuery, PullStatus, Replica
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command, to_fields
from rocketpost.codec.headers.message import PullMessage
from rocketpost.model.group import Subscription
from rocketpost.model.route import BrokerData, MessageQueue, QueueData, TopicRoute

QUEUE = MessageQueue("a", 3, "T")
MASTER, SLAVE = "m:1", "s:2"
PULL = RequestCode.PULL_MESSAGE

Use = Callable[[FakeNetwork], FakeNetwork]


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("commit", [None, 0, 8])
@pytest.mark.parametrize("is_slave", [True, False])
def test_a_pull_has_the_fields_of_its_header(
    tells: bool, commit: int | None, is_slave: bool
) -> None:
    subscription = Subscription(topic="T", sub_string="A || B", sub_version=17)
    wish = PullQuery(
        QUEUE, 5, subscription, hold_ms=15, commit_offset=commit, tell_subscription=tells
    )
    flag = 2 | (4 if tells else 0) | (1 if commit is not None and not is_slave else 0)
    header = PullMessage(
        consumer_group="G",
        topic="T",
        queue_id=3,
        queue_offset=5,
        max_msg_nums=32,
        sys_flag=flag,
        commit_offset=commit or 0,
        suspend_timeout_millis=15,
        subscription="A || B" if tells else None,
        sub_version=17,
        expression_type=subscription.expression_type,
        max_msg_bytes=2**31 - 1,
    )
    fetcher = Fetcher(Session(ClientConfig(name_servers=NAMESRV)), "G")
    assert fetcher._fields(wish, is_slave=is_slave) == to_fields(header)


# Replicas.


class Replicas:
    """A master and a slave at one network, and the route that name servers tell."""

    def __init__(self, network: FakeNetwork, route: TopicRoute) -> None:
        self.network = network
        self.route = route
        self.suggested = {MASTER: 0, SLAVE: 0}
        self.code = {MASTER: 0, SLAVE: 0}
        network.servers[MASTER] = self.server(MASTER)
        network.servers[SLAVE] = self.server(SLAVE)

    def server(self, address: str) -> Callable[[Command], Answer]:
        def serve(command: Command) -> Answer:
            offset = int(command.fields.get("queueOffset", "0"))
            code = self.code[address]
            fields = {
                "suggestWhichBrokerId": str(self.suggested[address]),
                "nextBeginOffset": str(offset if code else offset + 1),
                "minOffset": "0",
                "maxOffset": "20",
            }
            return Answer(code, fields, b"" if code else record(queue_offset=offset))

        return serve

    def list_at_name_servers(self, **addresses: str) -> None:
        """Have name servers list these replicas, such as ``_0="m:1"``."""
        known = {int(broker_id[1:]): address for broker_id, address in addresses.items()}
        self.route.broker_datas[0].broker_addrs.clear()
        self.route.broker_datas[0].broker_addrs.update(known)

    @property
    def asked(self) -> list[str]:
        """The addresses of all pulls so far."""
        return [address for address, command in self.network.requests if command.code == PULL]


@pytest.fixture
def replicas(use_network: Use) -> Replicas:
    route = TopicRoute(
        broker_datas=[BrokerData(broker_name="a", broker_addrs={0: MASTER, 1: SLAVE})],
        queue_datas=[QueueData(broker_name="a", perm=6, read_queue_nums=4, write_queue_nums=4)],
    )
    return Replicas(use_network(network_of({"T": route}, {})), route)


@pytest.fixture
async def reader(replicas: Replicas) -> AsyncIterator[PullConsumer]:
    async with PullConsumer("G", name_servers=NAMESRV) as consumer:
        yield consumer


async def test_pulls_of_a_queue_go_where_the_last_answer_suggests(
    replicas: Replicas, reader: PullConsumer
) -> None:
    replicas.suggested[MASTER] = 1
    other = MessageQueue("a", 0, "T")
    for queue in (QUEUE, QUEUE, other, QUEUE):
        await reader.pull(queue, 5)
    assert replicas.asked == [MASTER, SLAVE, MASTER, MASTER]


async def test_a_dead_master_is_replaced_by_a_slave_in_the_same_pull(
    replicas: Replicas, reader: PullConsumer
) -> None:
    await reader.pull(QUEUE, 5)
    replicas.network.cut(MASTER)
    result = await reader.pull(QUEUE, 6)
    assert [message.queue_offset for message in result.messages] == [6]
    await reader.pull(QUEUE, 7)
    assert replicas.asked == [MASTER, SLAVE, SLAVE]


async def test_a_pull_that_was_waiting_at_a_dying_master_goes_on_at_a_slave(
    replicas: Replicas, reader: PullConsumer
) -> None:
    waits = asyncio.get_running_loop().create_future()
    replicas.network.servers[MASTER] = lambda command: waits if command.code == PULL else Answer()
    pull = asyncio.create_task(reader.pull(QUEUE, 5, hold=True))
    while not replicas.asked:
        await asyncio.sleep(0)
    replicas.network.cut(MASTER)
    assert (await pull).status is PullStatus.FOUND
    assert replicas.asked == [MASTER, SLAVE]


async def test_a_master_that_returns_is_found_and_used_again(
    replicas: Replicas, reader: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketpost.client.route_cache.REFRESH_SECONDS_MIN", 0.0)
    monkeypatch.setattr(fetch, "_LOOK_SECONDS", 0.0)
    replicas.network.cut(MASTER)
    replicas.list_at_name_servers(_1=SLAVE)
    for _ in range(2):
        await reader.pull(QUEUE, 5)
    replicas.network.servers[MASTER] = replicas.server(MASTER)
    replicas.list_at_name_servers(_0=MASTER, _1=SLAVE)
    await reader.pull(QUEUE, 5)  # its answer suggests a master that is in no route
    assert set(replicas.asked) == {SLAVE}
    for _ in range(50):
        await asyncio.sleep(0)  # the route is refreshed beside the pulls
        await reader.pull(QUEUE, 5)
        if replicas.asked[-1] == MASTER:
            return
    pytest.fail("the master is not used again")


async def test_the_first_error_is_raised_when_no_replica_serves(
    replicas: Replicas, reader: PullConsumer
) -> None:
    replicas.network.cut(MASTER)
    replicas.code[SLAVE] = ResponseCode.SYSTEM_BUSY  # slaveReadEnable=false
    with pytest.raises(ConnectionLost, match=MASTER):
        await reader.pull(QUEUE, 5, timeout=0.1)
    assert replicas.asked == [SLAVE]


async def test_only_suggested_replicas_are_replaced(
    replicas: Replicas, reader: PullConsumer
) -> None:
    replicas.network.cut(MASTER)
    with pytest.raises(ConnectionLost, match=MASTER):
        await reader.pull_raw(QUEUE, 5, count_max=1, bytes_max=9, replica=Replica.MASTER)
    assert replicas.asked == []


async def test_a_slave_that_sends_us_to_an_unreachable_master_is_not_asked_without_end(
    replicas: Replicas, reader: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_NO_MASTER_SECONDS", 3600.0)
    replicas.network.cut(MASTER)
    replicas.code[SLAVE] = ResponseCode.PULL_RETRY_IMMEDIATELY
    pull = asyncio.create_task(reader.pull(QUEUE, 5, hold=True))
    _, waiting = await asyncio.wait([pull], timeout=0.05)
    assert waiting
    assert replicas.asked == [SLAVE]
    pull.cancel()
    await asyncio.wait([pull])
    with pytest.raises(ConnectionLost, match="its master cannot be reached"):
        await reader.pull(QUEUE, 5, timeout=0.01)  # it may not wait
    assert set(replicas.asked) == {SLAVE}


async def test_a_slave_that_sends_us_back_is_followed_in_the_same_pull(
    replicas: Replicas, reader: PullConsumer
) -> None:
    replicas.suggested[MASTER] = 1
    await reader.pull(QUEUE, 5)
    replicas.suggested[MASTER] = 0
    replicas.code[SLAVE] = ResponseCode.PULL_RETRY_IMMEDIATELY
    assert (await reader.pull(QUEUE, 6)).status is PullStatus.FOUND
    assert replicas.asked == [MASTER, SLAVE, MASTER]
