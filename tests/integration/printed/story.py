"""Preparation of the servers for the commands of the guides."""

from __future__ import annotations

import asyncio
import json

from click.testing import CliRunner

from rocketpost.admin.main import mqadmin
from rocketpost.client import (
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
    TransactionProducer,
    TransactionState,
)

SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "messageDelayLevel": "1s 1s 1s 1s",
    "transactionTimeOut": "300",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "1",
    "transactionOpBatchInterval": "100",
}
"""The broker's settings: the names in the guides, and short waits."""
OFFSET = 8120
"""The offset on the page about damage."""
TRACED = "7F0000010ED27A81..."
GIVEN_UP = "-i ID"


async def tell(name_servers: str) -> dict[str, str]:
    """Send and consume what the guides speak of; return the ids by the texts in their place."""
    traced = await send_and_retry(name_servers)
    await fill_queue(name_servers)
    given_up = await give_up_transaction(name_servers)
    return {TRACED: traced, GIVEN_UP: f"-i {given_up}"}


async def send_and_retry(name_servers: str) -> str:
    """Have a traced message handled in the second attempt; return its id."""
    attempts = 0
    done = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise Retry(1)
        done.set()

    config = ProducerConfig(name_servers=name_servers, enable_trace=True)
    async with Producer("orders", config=config) as producer:
        sent = await producer.send(Message("Orders", b"hello", keys="order-17"))
    consumer = PushConsumer(
        "billing",
        config=PushConsumerConfig(
            name_servers=name_servers, start_from=StartFrom.FIRST, enable_trace=True
        ),
    )
    consumer.subscribe("Orders", handle)
    async with consumer, asyncio.timeout(30):
        await done.wait()
    await wait_for_lines(name_servers, "queryMsgTraceById", "-i", sent.message_id, count=3)
    return sent.message_id


async def fill_queue(name_servers: str) -> None:
    """Send messages until one has the offset that is printed."""
    queue = MessageQueue(broker_name="broker-a", queue_id=3, topic="orders")
    async with Producer("orders", name_servers=name_servers) as producer:
        await producer.send(Message("orders", b"the first makes the topic"))
        for _ in range(OFFSET // 1000 + 1):
            await producer.send_batch([Message("orders", b"order")] * 1000, queue=queue)


async def give_up_transaction(name_servers: str) -> str:
    """Have a broker give up a transaction that its producer knows nothing of; return its id."""

    def unknown(*_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    producer = TransactionProducer("shop", checker=unknown, name_servers=name_servers)
    async with producer:
        await producer.send_in_transaction(Message("Orders", b"lost sight of"), unknown)
        [row] = await wait_for_lines(name_servers, "transactions", "-d", count=1)
    return str(row["transactionId"])


async def wait_for_lines(name_servers: str, *words: str, count: int) -> list[dict[str, object]]:
    """Call an mqadmin command until it lists so many lines."""
    command = [words[0], "-n", name_servers, *words[1:], "--json"]
    async with asyncio.timeout(30):
        while True:
            result = await asyncio.to_thread(CliRunner().invoke, mqadmin, command)
            found = json.loads(result.stdout) if not result.exit_code else []
            if len(found) >= count:
                return list(found)
            await asyncio.sleep(0.1)
