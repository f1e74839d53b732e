"""Shell commands that start Spark are run as printed, those of a chapter one after the other.

``test_shell.py`` says what differs from the page. Here the root directory of lakes, ``/lake``, is
one in the scratch directory as well, and there are two files that the reader has: ``job.py``, a
program of three lines, and ``orders.csv``, the keys of the orders. Each command starts a JVM of
its own, which is told by its environment to start fast.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)
from rocketpost.errors import RouteNotFound
from rocketpost.model.names import dlq_topic
from rocketpost.testing import Cluster
from rocketpost.testing.class_archive import java_options

from .pages import SHELL, commands_of
from .shell import Shell
from .story import SETTINGS

pytestmark = pytest.mark.long

BLOCKS = [block for block in SHELL if block.uses_spark]
CHAPTERS = sorted({block.chapter for block in BLOCKS})
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
ORDERS = 20
REFUNDS = 3
JOB = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("job").getOrCreate()
orders = spark.read.format("rocketmq").options(nameServer="127.0.0.1:9876", topic="Orders").load()
assert orders.count() == {orders}
"""


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_commands_of_a_chapter_do_what_it_says(chapter: str, tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", settings=SETTINGS) as cluster:
        asyncio.run(tell(cluster.addresses))
        directory = tmp_path / "page"
        directory.mkdir()
        write_files(directory)
        broker_port = int(cluster.broker_addresses[0].rpartition(":")[2])
        ports = {9876: cluster.name_server_ports[0], 10911: broker_port}
        shell = Shell(
            directory,
            ports,
            words={" /lake/": f" {directory}/lake/"},
            environment={"JAVA_TOOL_OPTIONS": f"{FAST} {java_options()}"},
        )
        try:
            for block in BLOCKS:
                for command in commands_of(block):
                    if block.chapter == chapter:
                        shell.run(command)
            shell.stop()
        finally:
            shell.kill()


def write_files(directory: Path) -> None:
    """Write the files that a reader has."""
    (directory / "job.py").write_text(JOB.format(orders=ORDERS))
    keys = "".join(f"order-{number}\n" for number in range(ORDERS))
    (directory / "orders.csv").write_text("keys\n" + keys)


async def tell(name_servers: str) -> None:
    """Have orders sent and handled, with traces, and refunds that nobody can handle."""
    config = ProducerConfig(name_servers=name_servers, enable_trace=True)
    async with Producer("orders", config=config) as producer:
        for number in range(ORDERS):
            await producer.send(
                Message("Orders", b"%d" % number, tags="paid", keys=f"order-{number}")
            )
        for number in range(REFUNDS):
            await producer.send(Message("Refunds", b"%d" % number))
        await producer.send(Message("OrdersAgain", b"the first makes the topic"))
    await consume(name_servers)
    await wait_for_dead_letters(name_servers)


async def consume(name_servers: str) -> None:
    """Handle all messages; return when each was tried."""
    seen = 0
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal seen
        seen += 1
        if seen == ORDERS + REFUNDS:
            done.set()
        if message.topic == "Refunds":
            raise KeyError("customer")

    config = PushConsumerConfig(
        name_servers=name_servers, enable_trace=True, start_from=StartFrom.FIRST, retry_max=0
    )
    consumer = PushConsumer("billing", config=config)
    consumer.subscribe("Orders", handle)
    consumer.subscribe("Refunds", handle)
    async with consumer, asyncio.timeout(60):
        await done.wait()


async def wait_for_dead_letters(name_servers: str) -> None:
    async with PullConsumer("looker", name_servers=name_servers) as puller, asyncio.timeout(60):
        while True:
            with contextlib.suppress(RouteNotFound):  # until the broker has told of the topic
                queues = await puller.queues(dlq_topic("billing"))
                if sum([await puller.max_offset(queue) for queue in queues]) == REFUNDS:
                    return
            await asyncio.sleep(0.05)
