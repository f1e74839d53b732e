"""Queues shared out by brokers: all brokers say the same, and modes survive kill -9."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
)
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


async def test_brokers_agree_on_the_assignment_and_keep_modes(tmp_path: Path) -> None:
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


async def test_sdk_members_pop_pull_and_switch_modes(tmp_path: Path) -> None:
    with Cluster(tmp_path, brokers=2) as cluster:
        async with AdminClient(name_servers=cluster.addresses) as admin:

            async def set_mode(mode: str) -> None:
                wanted = RequestMode(topic="T", consumer_group="g", mode=mode)
                for address in cluster.broker_addresses:
                    await admin.groups.set_request_mode(address, wanted)

            for address in cluster.broker_addresses:
                config = TopicConfig(topic_name="T", read_queue_nums=2, write_queue_nums=2)
                await admin.topics.create(address, config)
            await set_mode("POP")
            handled: Counter[bytes] = Counter()
            failed: set[bytes] = set()

            async def handle(message: ReceivedMessage) -> None:
                assert message.topic == "T"
                if message.body.startswith(b"bad") and message.body not in failed:
                    failed.add(message.body)
                    raise Retry(1)
                if message.body.startswith(b"late") and message.body not in failed:
                    failed.add(message.body)
                    raise Retry(2)
                handled[message.body] += 1

            def queue_ids() -> list[int]:
                queues = [queue for member in members for queue in member.queues]
                return sorted(queue.queue_id for queue in queues if queue.topic == "T")

            config = PushConsumerConfig(
                name_servers=cluster.addresses,
                client_rebalance=False,
                start_from=StartFrom.FIRST,
                rebalance_seconds=1.0,
            )
            members = [PushConsumer("g", config=config) for _ in range(3)]
            for each in members:
                each.subscribe("T", handle)
            producer = Producer("p", name_servers=cluster.addresses)
            async with producer, members[0], members[1], members[2]:
                bodies = [b"good%d" % n for n in range(40)] + [b"bad%d" % n for n in range(4)]
                for body in bodies:
                    await producer.send(Message("T", body))
                await until(lambda: len(handled) == len(bodies))
                assert queue_ids() == [-1] * 6
                await producer.send(Message("T", b"late"))
                await until(lambda: b"late" in failed)
                await set_mode("PULL")
                await until(lambda: queue_ids() == [0, 0, 1, 1])
                await producer.send(Message("T", b"pulled"))
                # One was in somebody's hands when the others began to pull, and comes again.
                await until(lambda: {b"pulled", b"late"} <= handled.keys())
            assert failed == {b"bad%d" % n for n in range(4)} | {b"late"}
            # While members change over, what arrives may be popped by one and pulled by another.
            assert {handled[body] for body in bodies} == {1}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.05)
