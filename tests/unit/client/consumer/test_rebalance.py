from __future__ import annotations

from collections.abc import Callable

from client.brokers import NAMESRV, QueueBroker, network_of, route_of
from client.network import FakeNetwork
from rocketpost.client import MessageQueue
from rocketpost.client.config import ClientConfig
from rocketpost.client.consumer.allocation import Average
from rocketpost.client.consumer.rebalance import Rebalancer
from rocketpost.client.session import Session

MASTER, SLAVE = "m:1", "s:2"

Use = Callable[[FakeNetwork], FakeNetwork]


async def test_a_slave_tells_the_members_when_the_master_is_gone(use_network: Use) -> None:
    route = route_of({"a": MASTER})
    route.broker_datas[0].broker_addrs[1] = SLAVE
    shares: list[list[MessageQueue]] = []

    async def apply(topic: str, share: list[MessageQueue], alone: bool) -> None:
        shares.append(share)

    members = QueueBroker(members=["me@1"])
    brokers = {MASTER: members.serve, SLAVE: members.serve}
    network = use_network(network_of({"T": route}, {**brokers}))
    session = Session(ClientConfig(name_servers=NAMESRV, client_ip="me", instance_name="1"))
    await session.start()
    try:
        rebalancer = Rebalancer(
            session, "G", strategy=Average(), topics=lambda: ["T"], apply=apply, every=20.0
        )
        assert await rebalancer.round()
        network.cut(MASTER)
        del route.broker_datas[0].broker_addrs[0]
        assert not await rebalancer.round()
        assert await rebalancer.round()
    finally:
        await session.stop()
    queues = [MessageQueue("a", queue_id, "T") for queue_id in range(2)]
    assert shares == [queues, queues]
