"""Queues shared out by brokers: all brokers say the same, and modes survive kill -9."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rocketpost.client import PushConsumer, ReceivedMessage
from rocketpost.client.admin import AdminClient
from rocketpost.codec.bodies.assignment import (
    Assignment,
    QueryAssignment,
    RequestMode,
    decode_assignments,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.lenient_json import encode
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import Cluster

pytestmark = pytest.mark.slow


async def nothing(message: ReceivedMessage) -> None:
    """Be done."""


async def ask(
    admin: AdminClient, address: str, client_id: str, topic: str = "T"
) -> list[Assignment] | None:
    query = QueryAssignment(client_id=client_id, consumer_group="g", topic=topic)
    answer = await admin.session.call(address, RequestCode.QUERY_ASSIGNMENT, body=encode(query))
    return decode_assignments(answer.body).message_queue_assignments


async def test_brokers_agree_on_who_gets_what_and_keep_modes(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2) as cluster:
        async with AdminClient(name_servers=cluster.addresses) as admin:
            for address in cluster.broker_addresses:
                config = TopicConfig(topic_name="T", read_queue_nums=3, write_queue_nums=3)
                await admin.topics.create(address, config)
            first, second = (PushConsumer("g", name_servers=cluster.addresses) for _ in range(2))
            for each in (first, second):
                each.subscribe("T", nothing)
            async with first, second:
                ids = sorted([first.client_id, second.client_id])
                shares = []
                for client_id in ids:
                    one, other = [
                        await ask(admin, address, client_id) for address in cluster.broker_addresses
                    ]
                    assert one == other
                    assert one is not None
                    shares.append([each.message_queue for each in one])
                assert [len(share) for share in shares] == [3, 3]
                assert len({queue for share in shares for queue in share}) == 6
                assert await ask(admin, cluster.broker_addresses[0], ids[0], "Unknown") is None

                mode = RequestMode(topic="T", consumer_group="g", mode="POP")
                for address in cluster.broker_addresses:
                    await admin.groups.set_request_mode(address, mode)
                cluster.brokers[0].kill()
                await asyncio.to_thread(cluster.brokers[0].start)
                modes = await admin.groups.request_modes(cluster.broker_addresses[0])
                assert modes == {"T": {"g": mode}}
                popped = await ask(admin, cluster.broker_addresses[1], ids[0])
                assert popped is not None
                assert {each.mode for each in popped} == {"POP"}
                assert {each.message_queue for each in popped} == {
                    MessageQueue(name, -1, "T") for name in ("broker-0", "broker-1")
                }
