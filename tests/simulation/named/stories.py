"""Stories of simulated clusters in which something must not happen.

Each takes the seed of its cluster, and fails if the promise is broken that it is named after.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from rocketpost.client import Message, PullConsumer
from rocketpost.client.admin import AdminClient
from rocketpost.codec.codes import ResponseCode
from rocketpost.errors import Fault
from rocketpost.testing import SimulatedCluster
from rocketpost.testing.link import BrokerLink, SendPart

TOPIC = "Orders"
_LEADER_SECONDS = 30


async def send(cluster: SimulatedCluster, *bodies: str, **options: float) -> None:
    async with cluster.producer() as producer:
        for body in bodies:
            await producer.send(Message(TOPIC, body.encode(), **options), timeout=60)


async def bodies(cluster: SimulatedCluster) -> Counter[str]:
    """Return how often each message is in the topic."""
    found: Counter[str] = Counter()
    async with PullConsumer("readers", name_servers=cluster.name_servers) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset = await consumer.min_offset(queue)
            while (pulled := await consumer.pull(queue, offset)).messages:
                found.update(message.body.decode() for message in pulled.messages)
                offset = pulled.next_offset
    return found


def leader_of(cluster: SimulatedCluster) -> str:
    leader = cluster.leader()
    assert leader is not None
    return leader


async def next_leader(cluster: SimulatedCluster, old: str) -> str:
    """Wait until another member leads."""
    async with asyncio.timeout(_LEADER_SECONDS):
        while cluster.leader() in (None, old):
            await asyncio.sleep(0.01)
    return leader_of(cluster)


async def connect(cluster: SimulatedCluster, node: str) -> BrokerLink:
    return await BrokerLink.connect(cluster.address_of(node))


def a_relay_asks_the_leader_of_today(seed: int) -> None:
    with SimulatedCluster(nodes=3, seed=seed) as cluster:

        async def main() -> None:
            await send(cluster, "before")
            first = leader_of(cluster)
            for other in set(cluster.nodes) - {first}:
                link = await connect(cluster, other)
                answer = await link.send(TOPIC, 0, [SendPart(b"passed on", {})])
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            cluster.partition(first, cluster.nodes)
            second = await next_leader(cluster, first)
            (third,) = set(cluster.nodes) - {first, second}
            link = await connect(cluster, third)
            await asyncio.sleep(1)
            answer = await link.send(TOPIC, 0, [SendPart(b"after", {})])
            assert answer.code == ResponseCode.SUCCESS, f"passed on in vain: {answer.remark}"
            cluster.heal()
            await asyncio.sleep(5)
            assert (await bodies(cluster))["after"] == 1

        cluster.run(main())


def a_deposed_leader_acknowledges_nothing(seed: int) -> None:
    settings = {"slaveTimeout": "60000"}
    with SimulatedCluster(nodes=3, seed=seed, settings=settings) as cluster:

        async def main() -> None:
            await send(cluster, "before")
            old = leader_of(cluster)
            link = await connect(cluster, old)
            cluster.partition(old, cluster.nodes)
            waiting = [link.send(TOPIC, 0, [SendPart(b"%d" % n, {})]) for n in range(5)]
            await next_leader(cluster, old)
            await send(cluster, "after")
            cluster.heal()
            answers = await asyncio.gather(*waiting)
            await asyncio.sleep(5)
            found = await bodies(cluster)
            for number, answer in enumerate(answers):
                if answer.code == ResponseCode.SUCCESS:
                    assert found[str(number)] == 1, "an acknowledged message is lost"

        cluster.run(main())


def queues_of(cluster: SimulatedCluster) -> list[dict[int, tuple[int, int, int]]]:
    """Return the queues of each member: where they begin and end, and their last message."""
    found = []
    for broker in cluster.brokers.values():
        queues = broker._context.store.queues_of(TOPIC)
        found.append({each.queue_id: (each.first, each.end, each.last_position) for each in queues})
    return found


def messages_that_were_cut_off_are_gone(seed: int) -> None:
    """Let a leader have messages in vain: the queues go on as if they had never been there."""
    with SimulatedCluster(nodes=3, seed=seed) as cluster:

        async def main() -> None:
            await send(cluster, "before")
            old = leader_of(cluster)
            link = await connect(cluster, old)
            cluster.partition(old, cluster.nodes)
            for number in range(5):
                link.send(TOPIC, 0, [SendPart(b"%d" % number, {})])
            new = await next_leader(cluster, old)
            link = await connect(cluster, new)
            cluster.heal()
            for _ in range(3):
                answer = await link.send(TOPIC, 0, [SendPart(b"after", {})])
                assert answer.code == ResponseCode.SUCCESS, answer.remark
            await asyncio.sleep(10)

        cluster.run(main())
        found = queues_of(cluster)
        assert found[0] == found[1] == found[2], "members show different messages"


def a_restart_shows_only_what_is_committed(seed: int) -> None:
    with SimulatedCluster(nodes=3, seed=seed) as cluster:

        async def main() -> None:
            await send(cluster, "before")
            await asyncio.sleep(5)
            old = leader_of(cluster)
            store = cluster.brokers[old]._context.store
            shown, end = store.confirmed_position, store.written_position
            link = await connect(cluster, old)
            cluster.partition(old, cluster.nodes)
            link.send(TOPIC, 0, [SendPart(b"in vain", {})])
            await asyncio.sleep(0.1)
            assert store.written_position > end
            cluster.kill(old)
            cluster.start(old)
            await asyncio.sleep(5)
            store = cluster.brokers[old]._context.store
            assert store.confirmed_position == shown, "it shows what is not committed"

        cluster.run(main())


def the_next_leader_is_found(seed: int) -> None:
    """Cut the leader off: name servers give its place to the next one, and clients find that."""
    with SimulatedCluster(nodes=3, seed=seed) as cluster:
        first = leader_of(cluster)
        cluster.partition(first)  # it still has id 0, for all that the name server knows
        cluster.run_for(10)
        second = leader_of(cluster)
        assert second != first
        assert cluster.brokers[second].unregistered == [], "the name server refuses the leader"


def a_queue_has_one_holder(seed: int) -> None:
    with SimulatedCluster(nodes=3, seed=seed) as cluster:

        async def main() -> None:
            await send(cluster, "before")
            first = leader_of(cluster)
            link = await connect(cluster, first)
            assert await link.lock("G", "a", TOPIC, 0)
            cluster.kill(first)
            link = await connect(cluster, await next_leader(cluster, first))
            assert not await link.lock("G", "b", TOPIC, 0), "a holds the queue"
            assert await link.lock("G", "a", TOPIC, 0)

        cluster.run(main())


def deleted_topics_are_equal(seed: int) -> None:
    """Delete a topic and use it again: every member shows the messages sent since."""

    async def main() -> None:
        await send(cluster, *map(str, range(5)))
        late = next(node for node in cluster.nodes if node != leader_of(cluster))
        cluster.kill(late)
        async with AdminClient(name_servers=cluster.name_servers) as admin:
            await admin.topics.delete(TOPIC, [cluster.address_of(leader_of(cluster))])
        await send(cluster, *map(str, range(7)))
        cluster.start(late)
        await asyncio.sleep(65)

    with SimulatedCluster(nodes=3, seed=seed) as cluster:
        cluster.run(main())
        counts = [
            sum(end - first for first, end, _ in queues.values()) for queues in queues_of(cluster)
        ]
        assert counts == [7, 7, 7], "a member has deleted too much or too little"


def changes_that_were_not_committed_are_taken_back(seed: int) -> None:
    settings = {"slaveTimeout": "60000"}
    with SimulatedCluster(nodes=3, seed=seed, settings=settings) as cluster:

        async def create_in_vain(link: BrokerLink) -> None:
            try:
                await link.create_topic("Lost", 1)
            except Fault:
                return
            raise AssertionError("a topic was made without a majority")

        async def main() -> None:
            await send(cluster, "before")
            old = leader_of(cluster)
            link = await connect(cluster, old)
            await link.create_topic("Kept", 1)
            cluster.partition(old, cluster.nodes)
            lost = asyncio.create_task(create_in_vain(link))
            await next_leader(cluster, old)
            await lost
            cluster.heal()
            await send(cluster, "after")
            await asyncio.sleep(5)
            for broker in cluster.brokers.values():
                names = broker._context.tables.topics.body().topic_config_table.keys()
                assert "Kept" in names
                assert "Lost" not in names, "a change was kept that was not committed"

        cluster.run(main())


def timed_messages_are_delivered_once(seed: int) -> None:
    settings = {"timerFlushIntervalMs": "150", "timerPrecisionMs": "100"}
    with SimulatedCluster(nodes=3, seed=seed, settings=settings) as cluster:

        async def main() -> None:
            await send(cluster, "first", delay_seconds=1)
            names = [f"timed {number}" for number in range(12)]
            for number, name in enumerate(names):
                await send(cluster, name, delay_seconds=4 + number % 4)
            for _ in range(4):
                await asyncio.sleep(1.3)
                leader = leader_of(cluster)
                cluster.partition(leader)
                await next_leader(cluster, leader)
                cluster.heal()
            await asyncio.sleep(60)
            found = await bodies(cluster)
            assert found >= Counter(["first", *names]), "a timed message is lost"
            assert found <= Counter(["first", *names]), "a timed message was delivered twice"

        cluster.run(main())
