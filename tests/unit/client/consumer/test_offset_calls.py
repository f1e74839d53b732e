from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from client.brokers import NAMESRV, network_of, route_of
from client.network import Answer, FakeNetwork
from rocketpost.client import (
    ConnectionLost,
    Fault,
    MessageQueue,
    PullConsumer,
    PullConsumerConfig,
    RouteNotFound,
)
from rocketpost.client.consumer.offset_calls import OffsetCalls
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command

A = "a:1"
QUEUES = [MessageQueue("a", number, "T") for number in range(4)]
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET

Use = Callable[[FakeNetwork], FakeNetwork]


class ThreadedBroker:
    """A broker that handles commits beside each other, as Apache's does.

    Each looks for the group's table first, and puts a new one in place later if there was none.
    """

    def __init__(self) -> None:
        self.table: dict[int, int] | None = None
        self.busy = 0
        self.busy_max = 0
        self.refuses = False
        self.turn = asyncio.Event()
        self.turn.set()
        self._work: set[asyncio.Task[None]] = set()

    def serve(self, command: Command) -> Answer | asyncio.Future[Answer]:
        if command.code == COMMIT:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._commit(command, self.table, answer))
            self._work.add(task)
            task.add_done_callback(self._work.discard)
            return answer
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            offset = (self.table or {}).get(int(command.fields["queueId"]), 0)
            return Answer(fields={"offset": str(offset)})
        return Answer()

    async def _commit(
        self, command: Command, table: dict[int, int] | None, answer: asyncio.Future[Answer]
    ) -> None:
        self.busy += 1
        self.busy_max = max(self.busy_max, self.busy)
        for _ in range(3):
            await asyncio.sleep(0)
        await self.turn.wait()
        self.busy -= 1
        if self.refuses:
            answer.set_result(Answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="no"))
            return
        if table is None:
            table = self.table = {}
        table[int(command.fields["queueId"])] = int(command.fields["commitOffset"])
        answer.set_result(Answer())


@pytest.fixture
def broker() -> ThreadedBroker:
    return ThreadedBroker()


@pytest.fixture
def network(use_network: Use, broker: ThreadedBroker) -> FakeNetwork:
    return use_network(network_of({"T": route_of({"a": A}, queues=4)}, {A: broker.serve}))


@pytest.fixture
async def reader(network: FakeNetwork) -> AsyncIterator[PullConsumer]:
    async with PullConsumer("G", name_servers=NAMESRV) as reader:
        await reader.queues("T")
        yield reader


async def commit_all(reader: PullConsumer, offset: int) -> None:
    await asyncio.gather(*(reader.commit_offset(queue, offset) for queue in QUEUES))


async def test_the_first_commits_of_a_group_do_not_replace_each_other(
    broker: ThreadedBroker, reader: PullConsumer
) -> None:
    await commit_all(reader, 5)
    assert broker.table == dict.fromkeys(range(4), 5)
    await commit_all(reader, 6)
    assert broker.table == dict.fromkeys(range(4), 6)
    assert broker.busy_max == 4  # later ones need not wait for each other


async def test_a_commit_that_another_member_replaced_is_sent_again(
    broker: ThreadedBroker, reader: PullConsumer, network: FakeNetwork
) -> None:
    broker.turn.clear()
    commit = asyncio.create_task(reader.commit_offset(QUEUES[0], 5))
    while not broker.busy:
        await asyncio.sleep(0)
    serve, replaced = network.servers[A], False

    def replace(command: Command) -> Answer | asyncio.Future[Answer] | None:
        nonlocal replaced
        if command.code == RequestCode.QUERY_CONSUMER_OFFSET and not replaced:
            replaced, broker.table = True, {1: 9}
        return serve(command)

    network.servers[A] = replace
    broker.turn.set()
    await commit
    assert broker.table == {0: 5, 1: 9}


async def test_those_that_wait_for_a_first_commit_fail_with_it_and_can_try_again(
    broker: ThreadedBroker, reader: PullConsumer, network: FakeNetwork
) -> None:
    broker.refuses = True
    commits = [reader.commit_offset(queue, 5) for queue in QUEUES]
    assert all(
        isinstance(outcome, Fault)
        for outcome in await asyncio.gather(*commits, return_exceptions=True)
    )
    assert len(network.sent(COMMIT)) == 1
    broker.refuses = False
    await commit_all(reader, 5)
    assert broker.table == dict.fromkeys(range(4), 5)


async def test_a_first_commit_that_is_given_up_leaves_its_place_to_the_next(
    broker: ThreadedBroker, reader: PullConsumer
) -> None:
    broker.turn.clear()
    first = asyncio.create_task(reader.commit_offset(QUEUES[0], 5))
    while not broker.busy:
        await asyncio.sleep(0)
    second = asyncio.create_task(reader.commit_offset(QUEUES[1], 5))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    broker.turn.set()
    await second
    assert broker.table is not None
    assert broker.table[1] == 5


async def test_offsets_are_kept_at_the_smallest_id_while_there_is_no_master(
    use_network: Use,
) -> None:
    route = route_of({"a": A})
    brokers = {address: ThreadedBroker() for address in (A, "s:2", "s:3")}
    servers = {address: broker.serve for address, broker in brokers.items()}
    route.broker_datas[0].broker_addrs.update({3: "s:3", 2: "s:2"})
    network = use_network(network_of({"T": route}, {**servers}))
    async with PullConsumer("G", name_servers=NAMESRV) as consumer:
        await consumer.commit_offset(QUEUES[0], 5)
        network.cut(A)
        del route.broker_datas[0].broker_addrs[0]
        await consumer.commit_offset(QUEUES[0], 6)
        assert await consumer.fetch_offset(QUEUES[0]) == 6
    assert [brokers[address].table for address in (A, "s:2", "s:3")] == [{0: 5}, {0: 6}, None]


@pytest.mark.parametrize("asks_slaves", [True, False])
async def test_the_bounds_of_a_queue_come_from_masters_unless_a_slave_will_do(
    use_network: Use, asks_slaves: bool
) -> None:
    route = route_of({"a": A})
    route.broker_datas[0].broker_addrs.clear()
    route.broker_datas[0].broker_addrs[1] = "s:1"
    use_network(network_of({"T": route}, {"s:1": lambda _: Answer(fields={"offset": "9"})}))
    async with PullConsumer("G", name_servers=NAMESRV) as consumer:
        calls = OffsetCalls(consumer._running(), asks_slaves=asks_slaves)
        if asks_slaves:
            assert await calls.max_offset(QUEUES[0]) == 9
        else:
            with pytest.raises(RouteNotFound):
                await calls.max_offset(QUEUES[0])


async def test_no_slave_keeps_offsets_while_name_servers_list_the_master(use_network: Use) -> None:
    route = route_of({"a": A})
    route.broker_datas[0].broker_addrs[1] = "s:1"
    slave = ThreadedBroker()
    network = use_network(network_of({"T": route}, {"s:1": slave.serve}))
    config = PullConsumerConfig(name_servers=NAMESRV, call_timeout=0.1)
    async with PullConsumer("G", config=config) as consumer:
        with pytest.raises(ConnectionLost):
            await consumer.commit_offset(QUEUES[0], 5)
    assert slave.table is None
    assert not network.sent(COMMIT)
