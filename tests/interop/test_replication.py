"""Master and slave of different makers: equal logs, queues and tables after kills and cuts.

Java's slave fetches tables once a minute, so most of these take minutes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from interop.peer import Peer, named
from interop.replicas import (
    COPIED_SECONDS_MAX,
    Pair,
    log_of,
    queues_of,
    running_pair,
    table_of,
    wait_for,
)
from interop.servers import Cluster, Maker
from rocketpost.client import (
    ClientConfig,
    Credentials,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    PullConsumerConfig,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from rocketpost.client.admin import AdminClient
from rocketpost.errors import RocketpostError
from rocketpost.model.group import GroupConfig
from rocketpost.model.topic import TopicConfig

pytestmark = pytest.mark.interop

TOPIC, GROUP, SDK_GROUP = "Copied", "reader", "sdk_reader"
GROUP_KEY = f"{TOPIC}@{GROUP}"
# A kill takes the ends of transactions that are still gathered; their next owner would ask.
UNASKED = {"transactionTimeOut": "3600000"}
# Apache's broker keeps passwords in clear text, so this one is none that leak checks look for.
KEYS = Credentials("admin", "apache-stores-it")
_PROVIDERS = "org.apache.rocketmq.auth.{kind}.provider.{name}"
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"apache-stores-it"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"admin","secretKey":"apache-stores-it"}',
    "haTrustedNetworks": "127.0.0.0/8",  # RocketMQ's brokers cannot log in
} | {
    f"{kind}{what}": _PROVIDERS.format(kind=kind, name=f"{prefix}{kind.capitalize()}{what}")
    for kind in ("authentication", "authorization")
    for what, prefix in (("Provider", "Default"), ("MetadataProvider", "Local"))
}
PAIRS: list[tuple[Maker, Maker]] = [("rocketpost", "apache"), ("apache", "rocketpost")]
IDS = [f"master-{master}" for master, _ in PAIRS]


@pytest.fixture(params=PAIRS, ids=IDS)
def makers(request: pytest.FixtureRequest, java: None, target: Maker) -> tuple[Maker, Maker]:
    """The makers of master and slave; for the yardstick both are Apache's."""
    pair: tuple[Maker, Maker] = request.param
    if target == "apache":
        if pair != PAIRS[0]:
            pytest.skip("the target is Apache's broker, there is no second maker")
        return "apache", "apache"
    return pair


@pytest.fixture
def java_client(java: None, tmp_path: Path) -> Iterator[Peer]:
    with Peer("5.3", tmp_path / "peer") as running:
        yield running


async def make_topic(pair: Pair) -> None:
    config = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
    async with AdminClient(name_servers=pair.master.namesrv) as admin:
        await admin.topics.create(pair.master.broker, config)
        for group in (GROUP, SDK_GROUP):
            await admin.groups.create(pair.master.broker, GroupConfig(group_name=group))


async def send_every_kind(pair: Pair, prefix: str, count: int) -> list[str]:
    """Send messages of every kind; return the bodies of those that were acknowledged.

    Failures are expected while brokers are killed.
    """
    acknowledged: list[str] = []

    async def send(producer: Producer, body: str, message: Message) -> None:
        try:
            await producer.send(message)
        except RocketpostError:
            return
        acknowledged.append(body)

    async with Producer("writer", name_servers=pair.master.namesrv) as producer:
        for number in range(count):
            body = f"{prefix}-{number}"
            kind = number % 5
            if kind == 4:
                bodies = [f"{body}-{part}" for part in range(3)]
                try:
                    await producer.send_batch([Message(TOPIC, each.encode()) for each in bodies])
                except RocketpostError:
                    continue
                acknowledged += bodies
                continue
            options: dict[str, Any] = {}
            if kind == 1:
                options = {"tags": "paid", "keys": f"key-{body}"}
            elif kind == 2:
                options = {"sharding_key": f"k{number % 8}"}
            elif kind == 3:
                options = {"delay_level": 1}
            await send(producer, body, Message(TOPIC, body.encode(), **options))
    try:
        async with TransactionProducer(
            "transactions", checker=look_up, name_servers=pair.master.namesrv
        ) as producer:
            transaction = await producer.begin(Message(TOPIC, f"{prefix}-end".encode()))
            await transaction.commit()
    except RocketpostError:
        return acknowledged
    return [*acknowledged, f"{prefix}-end"]


async def look_up(message: ReceivedMessage) -> TransactionState | None:
    """Leave transactions open whose ends a kill has taken."""
    return None


async def commit_offsets(pair: Pair, group: str = GROUP, *, at_start: bool = False) -> None:
    """Commit an offset of each queue."""
    async with PullConsumer(group, name_servers=pair.master.namesrv) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset = 0 if at_start else await consumer.max_offset(queue)
            await consumer.commit_offset(queue, offset)


async def check_tables(pair: Pair) -> None:
    """Wait until the tables of the slave say what those of the master say."""

    def offsets(broker: Cluster) -> Any:
        return table_of(broker, "consumerOffset.json").get("offsetTable", {}).get(GROUP_KEY)

    def topic(broker: Cluster) -> Any:
        return table_of(broker, "topics.json").get("topicConfigTable", {}).get(TOPIC)

    def delays(broker: Cluster) -> Any:
        return table_of(broker, "delayOffset.json").get("offsetTable")

    for read in (offsets, topic, delays):
        await wait_for(
            lambda read=read: bool(read(pair.master)) and read(pair.slave) == read(pair.master),  # type: ignore[misc]
            f"{read.__name__}: {read(pair.master)} at the master, {read(pair.slave)} at the slave",
        )


async def bodies_at(name_servers: str) -> set[str]:
    """Return the bodies of all messages that consumers get."""
    found: set[str] = set()
    async with PullConsumer("all", name_servers=name_servers) as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                pulled = await consumer.pull(queue, offset)
                found |= {message.body.decode() for message in pulled.messages}
                offset = pulled.next_offset
    return found


async def test_logs_queues_and_tables_are_copied(
    makers: tuple[Maker, Maker], tmp_path: Path
) -> None:
    async with running_pair(tmp_path, *makers, settings=UNASKED) as pair:
        await make_topic(pair)
        acknowledged = await send_every_kind(pair, "a", 500)
        await commit_offsets(pair)
        await pair.wait_copied()
        assert len(log_of(pair.master)) > 100_000
        assert set(acknowledged) <= await bodies_at(pair.master.namesrv)
        await check_tables(pair)


@pytest.mark.long
async def test_the_copy_serves_when_the_other_maker_opens_it(
    makers: tuple[Maker, Maker], tmp_path: Path
) -> None:
    """The slave's store becomes that of a master, of the maker whose log it is a copy of."""
    master, slave = makers
    async with running_pair(tmp_path, *makers, settings=UNASKED) as pair:
        await make_topic(pair)
        acknowledged = await send_every_kind(pair, "a", 100)
        await commit_offsets(pair)
        await check_tables(pair)
        await pair.wait_copied()
        log, queues = log_of(pair.master), queues_of(pair.master)
        for broker in (pair.master, pair.slave):
            await asyncio.to_thread(broker.stop_broker)
        promoted = pair.slave
        promoted.settings = {**promoted.settings, "brokerRole": "ASYNC_MASTER", "brokerId": "0"}
        for maker in (master, slave):
            await asyncio.to_thread(promoted.start_broker, maker)
            async with asyncio.timeout(COPIED_SECONDS_MAX):  # some are delayed
                while not set(acknowledged) <= await bodies_at(promoted.namesrv):
                    await asyncio.sleep(0.2)
            acknowledged += await send_every_kind(pair, maker, 10)
            await asyncio.to_thread(promoted.stop_broker)
        assert log_of(promoted).startswith(log)
        copied = queues_of(promoted)
        assert all(copied[queue][: len(entries)] == entries for queue, entries in queues.items())


async def test_a_synchronous_master_answers_when_the_slave_has_the_message(
    makers: tuple[Maker, Maker], tmp_path: Path
) -> None:
    settings = UNASKED | {"inSyncReplicas": "2", "slaveTimeout": "2000"}
    async with running_pair(tmp_path, *makers, settings=settings, role="SYNC_MASTER") as pair:
        await make_topic(pair)
        async with Producer("writer", name_servers=pair.master.namesrv) as producer:
            queue = MessageQueue(pair.master.broker_name, 0, TOPIC)

            async def send_until_copied() -> None:
                """Send until the slave has connected."""
                async with asyncio.timeout(COPIED_SECONDS_MAX):
                    while True:
                        sent = await producer.send(Message(TOPIC, b"first"), queue=queue)
                        if sent.status is SendStatus.SEND_OK:
                            return
                        await asyncio.sleep(0.2)

            await send_until_copied()
            for number in range(100):
                body = b"number %03d" % number
                sent = await producer.send(Message(TOPIC, body), queue=queue)
                assert sent.status is SendStatus.SEND_OK
                assert body in log_of(pair.slave)[-4096:]
            await asyncio.to_thread(pair.slave.kill_broker)
            alone = await producer.send(Message(TOPIC, b"alone"), queue=queue)
            # Java's master waits in vain; ours knows that there is no slave.
            assert alone.status in (SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE)
            assert alone.queue_offset == sent.queue_offset + 1
            await asyncio.to_thread(pair.slave.start_broker)
            await send_until_copied()
            assert b"alone" in log_of(pair.slave)


@pytest.mark.long
async def test_brokers_with_access_control_follow_each_other(
    makers: tuple[Maker, Maker], tmp_path: Path
) -> None:
    """The slave signs its requests for tables; the HA port lets its address in."""
    async with running_pair(tmp_path, *makers, settings=UNASKED | GUARDED) as pair:
        names = pair.master.namesrv
        settings: dict[str, Any] = {"name_servers": names, "credentials": KEYS}
        async with AdminClient(config=ClientConfig(**settings)) as admin:
            config = TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
            await admin.topics.create(pair.master.broker, config)
            await admin.groups.create(pair.master.broker, GroupConfig(group_name=GROUP))
        async with Producer("writer", config=ProducerConfig(**settings)) as producer:
            for number in range(100):
                await producer.send(Message(TOPIC, b"%d" % number))
            await producer.send(Message(TOPIC, b"later", delay_level=1))
        async with PullConsumer(GROUP, config=PullConsumerConfig(**settings)) as consumer:
            for queue in await consumer.queues(TOPIC):
                await consumer.commit_offset(queue, await consumer.max_offset(queue))
        await pair.wait_copied()
        assert len(log_of(pair.slave)) > 10_000
        await check_tables(pair)


@pytest.mark.long
async def test_consumers_start_at_the_slave_while_the_master_is_gone(
    makers: tuple[Maker, Maker], tmp_path: Path, java_client: Peer
) -> None:
    async with running_pair(tmp_path, *makers, settings=UNASKED) as pair:
        await make_topic(pair)
        acknowledged = await send_every_kind(pair, "a", 100)
        for group in (GROUP, SDK_GROUP):
            await commit_offsets(pair, group, at_start=True)
        await check_tables(pair)
        await pair.wait_copied()
        await asyncio.to_thread(pair.master.kill_broker)
        events = await asyncio.to_thread(
            java_client.run,
            "push",
            namesrv=pair.master.namesrv,
            topic=TOPIC,
            group=GROUP,
            count=len(acknowledged),
            timeout=90,
        )
        assert set(acknowledged) == {event["body"] for event in named(events, "message")}
        assert set(acknowledged) == await consumed(pair.master.namesrv, len(acknowledged))


async def consumed(name_servers: str, count: int) -> set[str]:
    """Return the bodies of the first messages that a consumer of ours gets."""
    found: set[str] = set()
    is_complete = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        found.add(message.body.decode())
        if len(found) >= count:
            is_complete.set()

    consumer = PushConsumer(SDK_GROUP, name_servers=name_servers)
    consumer.subscribe(TOPIC, handle)
    async with consumer, asyncio.timeout(COPIED_SECONDS_MAX):
        await is_complete.wait()
    return found


@pytest.mark.long
@pytest.mark.parametrize("is_old", [True, False], ids=["by-routes", "by-heartbeats"])
async def test_a_slave_acts_for_the_other_makers_master(
    makers: tuple[Maker, Maker], tmp_path: Path, is_old: bool
) -> None:
    """The master is killed and returns; consumers of an acting group notice nothing."""
    settings = UNASKED | {
        "enableSlaveActingMaster": "true",
        "totalReplicas": "2",
        "compatibleWithOldNameSrv": str(is_old).lower(),
    }
    namesrv = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
    async with running_pair(
        tmp_path, *makers, settings=settings, namesrv_settings=namesrv, is_proxied=False
    ) as pair:
        await make_topic(pair)
        acknowledged = await send_every_kind(pair, "a", 50)
        await commit_offsets(pair, SDK_GROUP, at_start=True)
        await commit_offsets(pair)
        await check_tables(pair)
        await pair.wait_copied()
        await asyncio.to_thread(pair.master.kill_broker)
        assert set(acknowledged) == await consumed(pair.master.namesrv, len(acknowledged))
        await asyncio.to_thread(pair.master.start_broker)
        await pair.wait_registered(pair.master)  # it prepares with the slave first
        again = await send_every_kind(pair, "b", 50)
        assert again
        await pair.wait_copied()
        assert {*acknowledged, *again} <= await bodies_at(pair.master.namesrv)
        async with PullConsumer(SDK_GROUP, name_servers=pair.master.namesrv) as consumer:
            offsets = [await consumer.fetch_offset(queue) for queue in await consumer.queues(TOPIC)]
        # What was committed at the slave came back to the master.
        assert sum(offset or 0 for offset in offsets) > 0


@pytest.mark.long
async def test_kills_and_cuts_leave_equal_copies(
    makers: tuple[Maker, Maker], tmp_path: Path
) -> None:
    """10,000 acknowledged messages of all kinds, 50 kills of each side, 50 cuts of their link."""
    rng = random.Random(7)
    acknowledged: list[str] = []
    faults = ["master", "slave", "link"] * 50
    rng.shuffle(faults)
    async with running_pair(tmp_path, *makers, settings=UNASKED) as pair:
        await make_topic(pair)
        for number, fault in enumerate(faults):
            sending = asyncio.create_task(send_every_kind(pair, f"r{number}", 50))
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            if fault == "link":
                await pair.link.cut()
            else:
                await pair.kill(pair.master if fault == "master" else pair.slave)
            acknowledged += await sending
            if len(acknowledged) < 67 * (number + 1):  # the fault came too early
                await pair.wait_registered(pair.master)
                acknowledged += await send_every_kind(pair, f"r{number}-again", 50)
        await pair.wait_registered(pair.master)  # it may have been killed last
        acknowledged += await send_every_kind(pair, "last", 10)
        await commit_offsets(pair)
        await pair.wait_copied()
        await check_tables(pair)
        assert len(acknowledged) >= 10_000
        assert set(acknowledged) <= await bodies_at(pair.master.namesrv)
