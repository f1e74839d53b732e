"""Masters and slaves as real processes: kills of both, and a slave that becomes the master."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    PullConsumer,
    PullStatus,
    SendStatus,
    SimpleConsumer,
    StartFrom,
    TransactionProducer,
    TransactionState,
)
from rocketpost.errors import RouteNotFound
from rocketpost.testing.replicas.group import Replica, ReplicaGroup


async def until_equal(group: ReplicaGroup, *, seconds: float = 30) -> bytes:
    """Wait until master and slaves have the same log; returns it."""
    async with asyncio.timeout(seconds):
        while True:
            log = group.master.log_bytes()
            if all(slave.log_bytes() == log for slave in group.slaves):
                return log
            await asyncio.sleep(0.05)


async def send_many(group: ReplicaGroup, count: int) -> None:
    async with Producer("load", name_servers=group.addresses) as producer:
        messages = [Message("T", b"%d " % at + b"x" * 1000) for at in range(count)]
        for result in await asyncio.gather(*map(producer.send, messages)):
            assert result.status is SendStatus.SEND_OK


@pytest.mark.long
async def test_the_logs_are_equal_after_kills_of_either_side(tmp_path: Path) -> None:
    with ReplicaGroup(tmp_path, settings={"mappedFileSizeCommitLog": "1048576",
                                          "maxMessageSize": "100000"}) as group:  # fmt: skip
        (slave,) = group.slaves
        for victims in ([group.master], [slave], [group.master, slave]):
            await send_many(group, 500)
            for victim in victims:
                victim.process.kill()
            for victim in victims:
                victim.start()
            assert len(await until_equal(group)) > 500_000


async def read_all(addresses: str, topic: str) -> Counter[bytes]:
    """Return every message of a topic, with the number of times that it is there."""
    found: Counter[bytes] = Counter()
    async with PullConsumer("reader", name_servers=addresses) as consumer:
        try:
            queues = await consumer.queues(topic)
        except RouteNotFound:  # the broker that has it is not there yet
            return found
        for queue in queues:
            at = await consumer.min_offset(queue)
            while (result := await consumer.pull(queue, at)).status is PullStatus.FOUND:
                found.update(message.body for message in result.messages)
                at = result.next_offset
    return found


async def until_read(
    addresses: str, topic: str, wanted: set[bytes], *, seconds: float = 40
) -> None:
    """Wait until a topic has these messages, each once."""
    async with asyncio.timeout(seconds):
        while not wanted <= set(found := await read_all(addresses, topic)):
            await asyncio.sleep(0.2)
    assert all(count == 1 for count in found.values()), found


def promote(slave: Replica) -> None:
    """Make a slave the master, as the guide says: stop it, change role and id, start it."""
    assert slave.process.stop() == 0
    slave.start(brokerRole="ASYNC_MASTER", brokerId="0")


@pytest.mark.long
async def test_a_promoted_slave_goes_on_with_every_kind_of_message(tmp_path: Path) -> None:
    settings = {
        "transactionTimeOut": "2000",
        "transactionCheckInterval": "1000",
        "messageDelayLevel": "1s 4s",
    }
    with ReplicaGroup(tmp_path, settings=settings, master={"brokerRole": "SYNC_MASTER"}) as group:
        (slave,) = group.slaves
        names = group.addresses
        async with (
            Producer("plain", name_servers=names) as plain,
            Producer("once", name_servers=names, idempotent=True, producer_id="p") as once,
            SimpleConsumer("workers", name_servers=names, start_from=StartFrom.FIRST) as workers,
        ):
            for at in range(20):
                await plain.send(Message("Plain", b"%d" % at))
            await once.send(Message("Once", b"first"), sequence=0)
            await plain.send(Message("Popped", b"popped"))
            await workers.subscribe("Popped")
            (popped,) = await workers.receive(invisible_seconds=5)
            assert popped.body == b"popped"
            due_ms = int(time.time() * 1000) + 5000
            await plain.send(Message("Timed", b"past", delay_seconds=0.3))
            await plain.send(Message("Timed", b"timed", deliver_at_ms=due_ms))
            await plain.send(Message("Delayed", b"over", delay_level=1))
            await plain.send(Message("Delayed", b"delayed", delay_level=2))
            await until_read(names, "Timed", {b"past"})
            await until_read(names, "Delayed", {b"over"})
        async with TransactionProducer(
            "payers", checker=commit_it, topics=["Paid"], name_servers=names
        ) as payer:
            await payer.begin(Message("Paid", b"paid"))
            await until_equal(group)
            group.master.process.kill()
            shutil.rmtree(group.master.store)
            promote(slave)
            await until_read(names, "Paid", {b"paid"})
        assert await read_all(names, "Plain") == Counter(b"%d" % at for at in range(20))
        await until_read(names, "Delayed", {b"over", b"delayed"})
        await until_read(names, "Timed", {b"past", b"timed"})
        assert time.time() * 1000 >= due_ms
        async with SimpleConsumer("workers", name_servers=names) as workers:
            await workers.subscribe("Popped")
            (again,) = await workers.receive(await_seconds=30)
            assert again.body == b"popped"
            await workers.ack(again)
        async with Producer("once", name_servers=names, idempotent=True, producer_id="p") as once:
            await once.send(Message("Once", b"first"), sequence=0)  # a repetition
            await once.send(Message("Once", b"second"), sequence=1)
        assert await read_all(names, "Once") == Counter({b"first": 1, b"second": 1})


async def commit_it(message: object) -> TransactionState:
    return TransactionState.COMMIT
