"""The values that Apache's rocketmq-exporter reads, which drops a broker's metrics if one is wrong.

The exporter is not published as a package, so this test knows what it parses, and how.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.client.admin import AdminClient
from rocketpost.server.up import SingleNode

pytestmark = pytest.mark.slow

LONGS = [
    "msgPutTotalTodayNow", "msgGetTotalTodayNow", "msgPutTotalTodayMorning",
    "msgGetTotalTodayMorning", "msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning",
    "sendThreadPoolQueueHeadWaitTimeMills", "queryThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills", "sendThreadPoolQueueSize", "queryThreadPoolQueueSize",
    "pullThreadPoolQueueSize", "sendThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity",
    "queryThreadPoolQueueCapacity", "bootTimestamp", "brokerVersion", "commitLogMinOffset",
    "commitLogMaxOffset", "dispatchMaxBuffer", "dispatchBehindBytes", "pageCacheLockTimeMills",
    "getMessageEntireTimeMax", "putMessageEntireTimeMax", "putMessageTimesTotal",
    "putMessageSizeTotal", "startAcceptSendRequestTimeStamp", "earliestMessageTimeStamp",
    "remainTransientStoreBufferNumbs",
]  # fmt: skip
DOUBLES = ["consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize"]
RATES = ["putTps", "getMissTps", "getTransferredTps", "getTotalTps", "getFoundTps"]
TEXTS = ["runtime", "brokerVersionDesc"]
WRITES = [
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s",
    "2~3s", "3~4s", "4~5s", "5~10s", "10s~",
]  # fmt: skip


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[SingleNode]:
    node = SingleNode(tmp_path, settings={"mappedFileSizeCommitLog": "8388608"})
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


async def test_every_value_is_there_and_can_be_parsed(node: SingleNode) -> None:
    assert node.broker is not None
    async with Producer("g", name_servers=node.address) as producer:
        for _ in range(7):
            await producer.send(Message("T", b"x"))
    async with AdminClient(name_servers=node.address) as admin:
        values = await admin.brokers.runtime(node.broker.address)
    assert set(LONGS + DOUBLES + RATES + TEXTS) <= values.keys()
    assert [key for key in LONGS if not re.fullmatch(r"-?\d+", values[key])] == []
    for key in DOUBLES:
        float(values[key])
    for key in RATES:
        assert len([float(each) for each in values[key].split(" ")]) == 3
    size, unit = values["remainHowManyDataToFlush"].split(" ")
    assert (float(size) >= 0, unit) == (True, "B")
    capacity = r"Total : [\d.]+ [KMGTPE]iB, Free : [\d.]+ [KMGTPE]iB\."
    assert re.fullmatch(capacity, values["commitLogDirCapacity"])
    pairs = [each.split(":") for each in values["putMessageDistributeTime"].split(" ")]
    counts = {name.strip("[]"): int(count) for name, count in pairs}
    assert list(counts) == WRITES
    assert sum(counts.values()) == int(values["putMessageTimesTotal"]) == 7
    for key in (each for each in values if each.startswith("scheduleMessageOffset")):
        delivered, end = values[key].split(",")
        assert 0 <= int(delivered) <= int(end)


async def test_messages_that_are_sent_back_are_counted(node: SingleNode) -> None:
    assert node.broker is not None
    failed = asyncio.Event()

    async def fail(message: ReceivedMessage) -> None:
        failed.set()
        raise ValueError("not now")

    config = PushConsumerConfig(name_servers=node.address, start_from=StartFrom.FIRST)
    consumer = PushConsumer("readers", config=config)
    consumer.subscribe("T", fail)
    async with Producer("g", name_servers=node.address) as producer, asyncio.timeout(30):
        await producer.send(Message("T", b"x"))
        async with consumer:
            await failed.wait()
        async with AdminClient(name_servers=node.address) as admin:
            address = node.broker.address
            back = await admin.brokers.stats(address, "SNDBCK_PUT_NUMS", "T@readers")
            sums = {
                name: (await admin.brokers.stats(address, name, key)).stats_minute.sum
                for name, key in (
                    ("TOPIC_PUT_NUMS", "T"),
                    ("GROUP_GET_NUMS", "T@readers"),
                    ("BROKER_PUT_NUMS", "DefaultCluster"),
                )
            }
    assert back.stats_minute.sum == 1
    assert sums["TOPIC_PUT_NUMS"] == sums["GROUP_GET_NUMS"] == 1
    assert sums["BROKER_PUT_NUMS"] >= 1
