from __future__ import annotations

import asyncio

import pytest

from client.brokers import name_server, route_of
from rocketpost.client import MessageQueue, RouteNotFound
from rocketpost.client.route_cache import (
    PublishRoute,
    RouteCache,
    publish_queues,
    subscribe_queues,
)
from rocketpost.codec.command import Command
from rocketpost.model.route import BrokerData, QueueData, TopicRoute
from rocketpost.testing.virtual_time import in_virtual_time

A, B = "a:1", "b:1"


def cache(routes: dict[str, TopicRoute]) -> RouteCache:
    serve = name_server(routes)

    async def ask(code: int, fields: dict[str, str]) -> Command:
        answer = serve(Command(code, text_fields=fields))
        assert answer is not None
        return Command(answer.code, body=answer.body, remark=answer.remark)

    return RouteCache(ask)


def test_only_writable_queues_of_brokers_with_a_master_are_published_to() -> None:
    route = TopicRoute(
        broker_datas=[
            BrokerData(broker_name="b", broker_addrs={0: B}),
            BrokerData(broker_name="a", broker_addrs={0: A}),
            BrokerData(broker_name="slave", broker_addrs={1: "s:1"}),
        ],
        queue_datas=[
            QueueData(broker_name="b", perm=2, write_queue_nums=1, read_queue_nums=2),
            QueueData(broker_name="a", perm=6, write_queue_nums=2, read_queue_nums=1),
            QueueData(broker_name="slave", perm=6, write_queue_nums=4, read_queue_nums=1),
        ],
    )
    published = [(q.broker_name, q.queue_id) for q in publish_queues("T", route)]
    assert published == [("a", 0), ("a", 1), ("b", 0)]
    assert [(q.broker_name, q.queue_id) for q in subscribe_queues("T", route)] == [
        ("a", 0),
        ("slave", 0),
    ]


def test_an_order_configuration_wins() -> None:
    route = TopicRoute(order_topic_conf="b:1;a:2", queue_datas=[QueueData(broker_name="c")])
    assert publish_queues("T", route) == [
        MessageQueue("b", 0, "T"),
        MessageQueue("a", 0, "T"),
        MessageQueue("a", 1, "T"),
    ]


async def test_an_order_configuration_without_queues_is_named() -> None:
    route = TopicRoute(order_topic_conf="garbage", broker_datas=route_of({"a": A}).broker_datas)
    with pytest.raises(RouteNotFound, match=r"topic T; the order table .* 'garbage'; `mqadmin"):
        await cache({"T": route}).publish("T")


def test_queues_are_taken_in_turn() -> None:
    route = PublishRoute(publish_queues("T", route_of({"a": A, "b": B})))
    taken = [route.next() for _ in range(8)]
    assert taken[:4] == taken[4:]
    assert len(set(taken)) == 4


def test_the_broker_that_failed_is_avoided_if_there_is_another() -> None:
    both = PublishRoute(publish_queues("T", route_of({"a": A, "b": B})))
    assert {both.next(avoid="a").broker_name for _ in range(9)} == {"b"}
    alone = PublishRoute(publish_queues("T", route_of({"a": A})))
    assert {alone.next(avoid="a").broker_name for _ in range(9)} == {"a"}
    assert both.next_of(lambda broker: broker == "a", avoid="a") is None


async def test_a_topic_that_does_not_exist_gets_the_templates_queues() -> None:
    routes = cache({"TBW102": route_of({"a": A}, queues=8, perm=7)})
    assert len((await routes.publish("New")).queues) == 4
    assert routes.master("a") == A
    assert routes.topics == ["New"]
    with pytest.raises(RouteNotFound):  # there is nothing to read yet
        await routes.subscribe("New")


async def test_without_a_template_the_topic_is_not_found() -> None:
    with pytest.raises(RouteNotFound, match="no broker creates topics modelled on TBW102"):
        await cache({}).publish("New")
    with pytest.raises(RouteNotFound):
        await cache({"T": route_of({"a": A}, perm=4)}).publish("T")


def headless(*, perm: int = 6) -> TopicRoute:
    """Return the route of a topic whose only broker has no master."""
    return TopicRoute(
        broker_datas=[BrokerData(broker_name="a", broker_addrs={1: "s:1"})],
        queue_datas=[QueueData(broker_name="a", perm=perm, write_queue_nums=2)],
    )


@in_virtual_time
async def test_a_missing_master_is_waited_for() -> None:
    loop = asyncio.get_running_loop()
    for table in ({"T": headless()}, {"TBW102": headless(perm=7)}):
        routes, began = cache(table), loop.time()
        loop.call_later(1.5, table.update, {name: route_of({"a": A}, perm=7) for name in table})
        assert {queue.broker_name for queue in (await routes.publish("T", seconds=3)).queues} == {
            "a"
        }
        assert 1.5 <= loop.time() - began < 2


@in_virtual_time
async def test_a_missing_master_is_not_waited_for_longer_than_wanted() -> None:
    loop = asyncio.get_running_loop()
    routes = cache({"T": headless()})
    for seconds in (0, 3):
        began = loop.time()
        with pytest.raises(RouteNotFound, match="no broker of the topic T has a master"):
            await routes.publish("T", seconds=seconds)
        assert seconds - 0.25 <= loop.time() - began <= seconds


@in_virtual_time
async def test_nothing_else_is_waited_for() -> None:
    loop = asyncio.get_running_loop()
    read_only = headless(perm=4)
    for table in ({}, {"T": read_only}, {"T": route_of({"a": A}, perm=4)}):
        began = loop.time()
        with pytest.raises(RouteNotFound):
            await cache(table).publish("T", seconds=3)
        assert loop.time() == began


async def test_a_refresh_follows_the_route_and_outlives_failure() -> None:
    table = {"T": route_of({"a": A})}
    routes = cache(table)
    before = await routes.publish("T")
    await routes.fetch("T")
    assert routes.peek_publish("T") is before  # unchanged: the turn goes on
    table["T"] = route_of({"b": B})
    await routes.fetch("T")
    assert {queue.broker_name for queue in (await routes.publish("T")).queues} == {"b"}
    routes.drop_offline()
    with pytest.raises(RouteNotFound):
        routes.master("a")
    del table["T"]
    await routes.refresh("T")
    assert routes.peek_publish("T") is not None


async def test_the_replicas_of_a_broker() -> None:
    route = TopicRoute(
        broker_datas=[BrokerData(broker_name="a", broker_addrs={0: A, 2: "s:2"})],
        queue_datas=[QueueData(broker_name="a", read_queue_nums=1)],
    )
    routes = cache({"T": route})
    await routes.route("T")
    assert routes.replicas("a") == {0: A, 2: "s:2"}
    assert routes.replicas("unknown") == {}
    assert routes.master_or_first("a") == A
    assert routes.slave("a") == ("s:2", True)
    assert sorted(routes.broker_addresses(masters_only=False)) == [A, "s:2"]
    assert routes.broker_addresses(masters_only=True) == [A]
    assert routes.some_broker("T") == A
    with pytest.raises(RouteNotFound):
        routes.master_or_first("unknown")


async def test_the_smallest_id_stands_in_for_a_master() -> None:
    route = TopicRoute(
        broker_datas=[BrokerData(broker_name="a", broker_addrs={3: "s:3", 2: "s:2"})],
        queue_datas=[QueueData(broker_name="a", read_queue_nums=1)],
    )
    routes = cache({"T": route})
    await routes.route("T")
    assert routes.master_or_first("a") == "s:2"
    with pytest.raises(RouteNotFound):
        routes.master("a")
