"""Failures of replicated RocketMQ, by the numbers under which its users reported them.

Each happens to a group of three in a simulated cluster. A test does what the report says, and sees
that nothing of it happens here.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from rocketpost.client import (
    Message,
    ProducerConfig,
    PullConsumer,
    ReceivedMessage,
    RocketpostError,
)
from rocketpost.client.admin import AdminClient
from rocketpost.codec.faults import TopicNotExist
from rocketpost.model.topic import TopicConfig
from rocketpost.testing import SimulatedCluster

pytestmark = pytest.mark.slow

CHANCES = [0, *(pytest.param(chance, marks=pytest.mark.long) for chance in (1, 2))]

TOPIC = "Orders"
HOUR = 3600.0


def leader_of(cluster: SimulatedCluster) -> str:
    leader = cluster.leader()
    assert leader is not None
    return leader


def address_of(cluster: SimulatedCluster, node: str) -> str:
    return f"{cluster.network.machines[node].ip}:{cluster.brokers[node].port}"


async def send(cluster: SimulatedCluster, *bodies: str, **options: int) -> list[tuple[int, int]]:
    """Send messages, and return the queue and the offset of each."""
    found = []
    async with cluster.producer() as producer:
        for body in bodies:
            result = await producer.send(Message(TOPIC, body.encode(), **options), timeout=60)
            found.append((result.queue.queue_id, result.queue_offset))
    return found


async def send_in_vain(cluster: SimulatedCluster, messages: list[Message]) -> None:
    """Send to a leader that has just been cut off, and takes messages that it cannot commit."""
    group = cluster.brokers[leader_of(cluster)].group
    assert group is not None
    end = group.node.log.end
    config = ProducerConfig(send_timeout=0.3, retries=0)
    async with cluster.producer(config=config) as producer:
        sends = [producer.send(message) for message in messages]
        answers = await asyncio.gather(*sends, return_exceptions=True)
    assert all(isinstance(answer, RocketpostError) for answer in answers)
    assert group.node.log.end > end  # it has a tail now


async def stored(cluster: SimulatedCluster) -> dict[tuple[int, int], str]:
    """Return all messages of the topic by queue and offset."""
    found = {}
    async with PullConsumer("readers", name_servers=cluster.name_servers) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset = await consumer.min_offset(queue)
            while (pulled := await consumer.pull(queue, offset)).messages:
                for message in pulled.messages:
                    found[queue.queue_id, message.queue_offset] = message.body.decode()
                offset = pulled.next_offset
    return found


class Collector:
    """A consumer that notes what it gets, and how often."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.got: Counter[str] = Counter()

    async def run(self) -> None:
        async def handle(message: ReceivedMessage) -> None:
            self.got[message.body.decode()] += 1

        consumer = self._cluster.consumer("collectors")
        consumer.subscribe(TOPIC, handle)
        async with consumer:
            await asyncio.Event().wait()

    async def until(self, *bodies: str, seconds: float = 300) -> None:
        async with asyncio.timeout(seconds):
            while not self.got.keys() >= set(bodies):
                await asyncio.sleep(0.1)


def test_7017_a_leader_that_is_cut_off_with_its_clients_acknowledges_nothing() -> None:
    """Two masters appeared, and what the old one had taken was lost when they met again."""
    with SimulatedCluster(nodes=3, seed=7017) as cluster:
        old = leader_of(cluster)
        acknowledged: list[str] = []
        tried: list[str] = []

        async def stay_with_the_old_leader() -> None:
            config = ProducerConfig(send_timeout=3.0, attempt_timeout=2.0)
            async with cluster.producer(config=config) as producer:
                while True:
                    body = f"there {len(tried)}"
                    tried.append(body)
                    try:
                        await producer.send(Message(TOPIC, body.encode()))
                        acknowledged.append(body)
                    except RocketpostError:
                        pass  # it stays in the room
                    await asyncio.sleep(0.1)

        async def main() -> None:
            await send(cluster, "before")
            cluster.spawn("room", stay_with_the_old_leader)
            await asyncio.sleep(5)
            count = len(acknowledged)
            assert count > 0
            cluster.partition([old, "room"])
            await asyncio.sleep(2)
            began = len(acknowledged)
            await asyncio.sleep(15)
            assert len(tried) > began + 3
            assert len(acknowledged) == began
            assert cluster.leader() != old
            places = await send(cluster, "here 0", "here 1")
            cluster.heal()
            await asyncio.sleep(30)
            cluster.kill("room")
            found = await stored(cluster)
            assert [found[place] for place in places] == ["here 0", "here 1"]
            assert {"before", *acknowledged} <= set(found.values())
            assert sum(broker.is_leader for broker in cluster.brokers.values()) == 1

        cluster.run(main())


@pytest.mark.parametrize("chance", CHANCES)
def test_7689_messages_after_a_kill_of_all_share_no_offset_with_those_before(chance: int) -> None:
    """A master that started again gave offsets a second time that its hidden tail had."""
    with SimulatedCluster(nodes=3, seed=chance) as cluster:

        async def main() -> None:
            places = dict(zip(await send(cluster, "a", "b", "c"), "abc", strict=True))
            leader = leader_of(cluster)
            others = [node for node in cluster.nodes if node != leader]
            cluster.partition([leader], others)
            await send_in_vain(
                cluster, [Message(TOPIC, b"hidden %d" % number) for number in range(8)]
            )
            cluster.kill(*cluster.nodes)
            cluster.heal()
            cluster.start()
            await cluster.ready()
            bodies = [f"after {number}" for number in range(8)]
            places |= dict(zip(await send(cluster, *bodies), bodies, strict=True))
            assert len(places) == 11
            found = await stored(cluster)
            assert {place: found[place] for place in places} == places
            for queue in {queue for queue, _ in found}:
                offsets = sorted(offset for each, offset in found if each == queue)
                assert offsets == list(range(len(offsets)))

        cluster.run(main())


def test_7923_delayed_messages_that_are_due_while_the_leader_dies_are_delivered() -> None:
    """A message was due before routes changed: it was sent to the dead master, and given up."""
    with SimulatedCluster(nodes=3, seed=7923) as cluster:
        collector = Collector(cluster)

        async def main() -> None:
            cluster.spawn("collector", collector.run)
            bodies = [f"level {number}" for number in range(5)]
            await send(cluster, *bodies, delay_level=2)  # five seconds
            timed = [f"timed {number}" for number in range(5)]
            await send(cluster, *timed, delay_seconds=5)
            await asyncio.sleep(3.5)
            cluster.kill(leader_of(cluster))
            await collector.until(*bodies, *timed)
            await asyncio.sleep(60)
            assert collector.got == Counter([*bodies, *timed])

        cluster.run(main())


@pytest.mark.parametrize("chance", CHANCES)
def test_9804_a_topic_is_there_after_a_switch_and_a_deleted_one_is_not(chance: int) -> None:
    """Topics that an administrator had made were gone when another broker became the master."""
    with SimulatedCluster(nodes=3, seed=chance) as cluster:

        async def leader_address(admin: AdminClient) -> str:
            async with asyncio.timeout(120):
                while True:
                    table = (await admin.cluster.info()).broker_addr_table
                    leader = cluster.leader()
                    address = table["broker-a"].broker_addrs.get(0, "")
                    if leader is not None and address == address_of(cluster, leader):
                        return address
                    await asyncio.sleep(0.1)

        async def main() -> None:
            async with AdminClient(name_servers=cluster.name_servers) as admin:
                address = await leader_address(admin)
                for name in ("kept", "deleted"):
                    await admin.topics.create(
                        address, TopicConfig(topic_name=name, read_queue_nums=5, write_queue_nums=5)
                    )
                await admin.topics.delete("deleted", [address])
                first = leader_of(cluster)
                cluster.kill(first)
                await asyncio.sleep(10)
                address = await leader_address(admin)
                assert leader_of(cluster) != first
                assert (await admin.topics.config(address, "kept")).write_queue_nums == 5
                with pytest.raises(TopicNotExist):
                    await admin.topics.config(address, "deleted")
                cluster.start(first)
                await asyncio.sleep(10)
                back = address_of(cluster, first)
                assert (await admin.topics.config(back, "kept")).write_queue_nums == 5
                with pytest.raises(TopicNotExist):
                    await admin.topics.config(back, "deleted")

        cluster.run(main())


@pytest.mark.parametrize("chance", CHANCES)
def test_10668_timers_go_on_after_the_log_was_cut(chance: int) -> None:
    """The timer kept references to messages that were cut off, and delivered nothing any more."""
    with SimulatedCluster(nodes=3, seed=chance) as cluster:
        collector = Collector(cluster)

        async def main() -> None:
            cluster.spawn("collector", collector.run)
            await send(cluster, "first", delay_seconds=40)
            old = leader_of(cluster)
            others = [node for node in cluster.nodes if node != old]
            cluster.partition([old], others)
            await send_in_vain(
                cluster,
                [
                    Message(TOPIC, b"cut %d" % number, delay_seconds=20 + number)
                    for number in range(5)
                ],
            )
            await asyncio.sleep(5)
            cluster.partition([old])  # its clients find the other leader
            await send(cluster, "second", delay_seconds=30)
            cluster.heal()
            await asyncio.sleep(2)
            # The member whose log was cut leads again.
            for _ in range(20):
                if leader_of(cluster) == old:
                    break
                await cluster.brokers[leader_of(cluster)].group.hand_over(old)
                await asyncio.sleep(2)
            assert leader_of(cluster) == old
            await send(cluster, "third", delay_seconds=10)
            await collector.until("first", "second", "third")
            await asyncio.sleep(60)
            assert collector.got == Counter(["first", "second", "third"])

        cluster.run(main())


@pytest.mark.long
def test_7182_messages_do_not_multiply_while_everything_is_restarted() -> None:
    """A consumer that stopped during a message left it and a retry of it: 1, 2, 4, 8 copies."""
    with SimulatedCluster(nodes=3, seed=7182) as cluster:
        started: Counter[str] = Counter()
        is_calm = False

        async def work(stopping: asyncio.Event) -> None:
            async def handle(message: ReceivedMessage) -> None:
                started[message.body.decode()] += 1
                if not is_calm:
                    await asyncio.sleep(3)
                    raise RuntimeError("stopped in the middle")

            consumer = cluster.consumer("workers")
            consumer.subscribe(TOPIC, handle)
            async with consumer:
                await stopping.wait()

        async def main() -> None:
            nonlocal is_calm
            bodies = [f"job {number}" for number in range(4)]
            await send(cluster, *bodies)
            for round in range(6):
                stopping = asyncio.Event()
                cluster.spawn("worker", lambda stopping=stopping: work(stopping))
                await asyncio.sleep(4 + round / 10)
                stopping.set()
                await cluster.brokers[leader_of(cluster)].group.hand_over("")
                await asyncio.sleep(40)
                assert cluster.network.machines["worker"].process is None  # it has ended
            is_calm = True
            before = Counter(started)
            cluster.spawn("worker", lambda: work(asyncio.Event()))
            await asyncio.sleep(HOUR / 6)
            assert started.keys() == set(bodies)
            for body in bodies:
                # One copy of each is left, which is handled for the last time.
                assert started[body] - before[body] <= 1, started
                assert started[body] <= 7, started

        cluster.run(main())


@pytest.mark.parametrize("chance", CHANCES[:2])
def test_2705_an_outage_of_the_leader_repeats_no_old_messages(chance: int) -> None:
    """The network of a broker was away for an hour; then three days were consumed again."""
    with SimulatedCluster(nodes=3, seed=chance) as cluster:
        collector = Collector(cluster)

        async def main() -> None:
            cluster.spawn("collector", collector.run)
            old = [f"old {number}" for number in range(100)]
            await send(cluster, *old)
            await collector.until(*old)
            await asyncio.sleep(30)
            leader = leader_of(cluster)
            cluster.partition([leader])
            await asyncio.sleep(10)
            new = [f"new {number}" for number in range(20)]
            await send(cluster, *new)
            await collector.until(*new)
            await asyncio.sleep(HOUR / 12)
            cluster.heal()
            await asyncio.sleep(HOUR / 20)
            again = {body for body, count in collector.got.items() if count > 1}
            assert again <= set(new)

        cluster.run(main())


def test_1440_roles_that_change_hours_apart_repeat_nothing() -> None:
    """Roles were changed and changed back half a day later: consumers were given that half day."""
    with SimulatedCluster(nodes=3, seed=1440) as cluster:
        collector = Collector(cluster)

        async def main() -> None:
            cluster.spawn("collector", collector.run)
            bodies: list[str] = []
            for round in range(4):
                more = [f"{round}: {number}" for number in range(20)]
                await send(cluster, *more)
                bodies += more
                await collector.until(*bodies)
                await asyncio.sleep(60)
                leader = leader_of(cluster)
                await cluster.brokers[leader].group.hand_over("")
                cluster.kill(leader)
                await asyncio.sleep(HOUR / 40)
                cluster.start(leader)
                await asyncio.sleep(30)
            cluster.kill("collector")
            cluster.start("collector")
            await asyncio.sleep(60)
            assert collector.got == Counter(bodies)

        cluster.run(main())


async def seconds_for(cluster: SimulatedCluster, count: int) -> float:
    """Return the virtual time that a number of sends takes, one after the other."""
    async with cluster.producer() as producer:
        await producer.send(Message(TOPIC, b"first"), timeout=60)
        began = time.monotonic()
        for number in range(count):
            await producer.send(Message(TOPIC, b"%d" % number), timeout=60)
        return time.monotonic() - began


@pytest.mark.parametrize("harm", ["slow disk", "killed", "cut off"])
def test_1515_one_bad_follower_does_not_slow_sends_down(harm: str) -> None:
    """Sends took ten times as long as before while one of three members was in trouble."""
    with SimulatedCluster(nodes=3, seed=1515) as cluster:

        async def main() -> tuple[float, float]:
            healthy = await seconds_for(cluster, 100)
            follower = next(node for node in cluster.nodes if node != cluster.leader())
            if harm == "slow disk":
                cluster.slow_disk(follower, 0.5)
            elif harm == "killed":
                cluster.kill(follower)
            else:
                cluster.partition([follower])
            return healthy, await seconds_for(cluster, 100)

        healthy, harmed = cluster.run(main())
        assert harmed < 2 * healthy
