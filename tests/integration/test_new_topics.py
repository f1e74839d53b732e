"""A topic has a route as soon as its maker hears that it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketpost.client import Message, Producer, ProducerConfig, RouteNotFound
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import PERM_INHERIT, PERM_READ, PERM_WRITE, TopicConfig
from rocketpost.testing import Cluster


@pytest.mark.slow
async def test_routes_are_there_at_once(tmp_path: Path) -> None:
    with Cluster(tmp_path, name_servers=2) as cluster:
        async with (
            Producer("makers", name_servers=cluster.addresses) as producer,
            AdminClient(name_servers=cluster.addresses) as admin,
        ):
            for n in range(10):
                await producer.send(Message(f"BySend{n}", b"x"))
                for port in cluster.name_server_ports:
                    async with AdminClient(name_servers=f"127.0.0.1:{port}") as one:
                        assert (await one.cluster.route(f"BySend{n}")).queue_datas
            for n in range(10):
                config = TopicConfig(topic_name=f"ByTool{n}")
                await admin.topics.create(cluster.broker_addresses[0], config)
                assert (await admin.cluster.route(f"ByTool{n}")).queue_datas
        cluster.name_servers[0].kill()
        async with Producer("makers", name_servers=cluster.addresses) as producer:
            await producer.send(Message("OneNameServerIsGone", b"x"), timeout=10)


@pytest.mark.slow
async def test_new_topics_are_created_like_a_given_topic(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings={"autoCreateTopicEnable": "false"}) as cluster:
        async with AdminClient(name_servers=cluster.addresses) as admin:
            perm = PERM_READ | PERM_WRITE | PERM_INHERIT
            config = TopicConfig(
                topic_name="Model", read_queue_nums=3, write_queue_nums=3, perm=perm
            )
            await admin.topics.create(cluster.broker_addresses[0], config)
            settings = ProducerConfig(name_servers=cluster.addresses, auto_create_topic="Model")
            async with Producer("makers", config=settings) as producer:
                await producer.send(Message("Made", b"x"))
            assert (await admin.cluster.route("Made")).queue_datas[0].write_queue_nums == 3
        async with Producer("makers", name_servers=cluster.addresses) as producer:
            with pytest.raises(RouteNotFound, match="creates topics modelled on TBW102"):
                await producer.send(Message("Other", b"x"))
