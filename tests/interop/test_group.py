"""Foreign clients live through changes of the leader: rolling restarts, and kills."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import pytest

from integration.up_group import TOPIC, UpGroup, stored, up_group
from interop.senders import CLIENTS, start_sender
from interop.servers import MAKERS, Cluster, Maker
from rocketpost.client import Message, Producer
from rocketpost.client.admin import AdminClient
from rocketpost.model.topic import TopicConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

KILLED = [
    pytest.param(client, marks=() if client.startswith("java") else pytest.mark.long)
    for client in CLIENTS
]
"""The first run of the clients that are not Java's takes minutes: they are fetched and built."""
BEFORE = 100
AFTER = 200
ROUTE_SECONDS = 120
"""Foreign clients ask for routes every 30 seconds, and may avoid a broker for a while."""
SEGMENT_BYTES = str(16 * 1024 * 1024)
"""Size of the log's files of a group under test."""


async def create_topic(group: UpGroup) -> None:
    """Create the topic, so that the first send of a client need not."""
    async with AdminClient(name_servers=group.address) as admin:
        address = (await admin.cluster.info()).broker_addr_table["broker-a"].broker_addrs[0]
        await admin.topics.create(
            address, TopicConfig(topic_name=TOPIC, read_queue_nums=4, write_queue_nums=4)
        )


async def check_stored(group: UpGroup, sent: list[str]) -> None:
    """Check that everything acknowledged is there."""
    found = [body.decode() for body in await stored(group.address)]
    assert set(sent) <= set(found)


@pytest.mark.parametrize("client", KILLED)
async def test_a_kill_of_the_leader_loses_nothing(tmp_path: Path, client: str) -> None:
    async with up_group(tmp_path / "group") as group:
        await create_topic(group)
        with start_sender(client, tmp_path / "sender", group.address, TOPIC) as sender:
            await asyncio.to_thread(sender.wait_sent, BEFORE, seconds=ROUTE_SECONDS)
            at = await group.kill(await group.leader())
            first = await asyncio.to_thread(sender.wait_sent, 1, seconds=ROUTE_SECONDS)
            await asyncio.to_thread(sender.wait_sent, AFTER, seconds=ROUTE_SECONDS)
            print(
                f"{client}: first acknowledgement {first:.1f} s after the kill, "
                f"{len(sender.failed)} sends failed, {time.monotonic() - at:.1f} s in all"
            )
        await check_stored(group, sender.sent)


@pytest.mark.long
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_rolling_restart_is_not_noticed_by_senders(tmp_path: Path, client: str) -> None:
    async with up_group(tmp_path / "group") as group:
        await create_topic(group)
        with start_sender(client, tmp_path / "sender", group.address, TOPIC) as sender:
            await asyncio.to_thread(sender.wait_sent, BEFORE, seconds=ROUTE_SECONDS)
            for number in range(3):
                await group.restart(number)
                await asyncio.to_thread(sender.wait_sent, BEFORE, seconds=ROUTE_SECONDS)
        print(f"{client}: {len(sender.sent)} acknowledged, {len(sender.failed)} failed")
        assert sender.failed == []
        await check_stored(group, sender.sent)


@pytest.mark.parametrize("maker", MAKERS)
async def test_a_members_store_opens_in_a_broker_without_a_group(
    java: None, tmp_path: Path, maker: Maker
) -> None:
    """All messages of two leaders are there, and more can be sent."""
    async with up_group(tmp_path / "group") as group:
        await create_topic(group)
        leader = await group.leader()
        async with Producer("producers", name_servers=group.address) as producer:
            await send(producer, 0, BEFORE)
            await group.kill(leader)
            await send(producer, BEFORE, AFTER)
        await group.wait_restarted(leader)
        await group.wait_in_sync()
        await asyncio.to_thread(group.server.stop)
    settings = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
    for number in range(3):
        alone = Cluster(tmp_path / f"alone-{number}", maker, settings=settings)
        shutil.copytree(tmp_path / "group/store/nodes" / str(number), alone.store)
        await asyncio.to_thread(alone.__enter__)
        try:
            async with Producer("producers", name_servers=alone.namesrv) as producer:
                await send(producer, AFTER, AFTER + 10)
            found = sorted(int(body) for body in await stored(alone.namesrv))
            assert found == list(range(AFTER + 10))
        finally:
            alone.close()


async def send(producer: Producer, begin: int, end: int) -> None:
    """Send these numbers one after the other."""
    for number in range(begin, end):
        await producer.send(Message(TOPIC, b"%d" % number))
