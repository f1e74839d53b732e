"""Send and consume while the leader of a group is killed: nothing is lost, nothing comes twice.

rocketpost up --nodes 3               (in another terminal; it prints the process ids)
python examples/failover.py [seconds] (NAMESRV_ADDR is 127.0.0.1:9876 if not set)

Kill the leader meanwhile with ``kill -9``. A line is printed for every pause of over 0.3 seconds.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections import Counter

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
)

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "FailoverTopic"
PAUSE_SECONDS = 0.3


async def send_for(seconds: float) -> list[str]:
    """Send one message after the other, and return those that were acknowledged."""
    acknowledged: list[str] = []
    run = f"{time.time():.0f}"
    # An idempotent producer may send again after an unclear answer: it is stored once.
    config = ProducerConfig(name_servers=NAME_SERVERS, send_timeout=30.0, attempt_timeout=2.0)
    async with Producer("failover-producer", config=config, idempotent=True) as producer:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            body = f"{run}/{len(acknowledged)}"
            began = time.monotonic()
            await producer.send(Message(TOPIC, body.encode()))
            acknowledged.append(body)
            if len(acknowledged) == 10:
                print("sending; kill the leader", flush=True)
            waited = time.monotonic() - began
            if waited > PAUSE_SECONDS:
                print(f"message {len(acknowledged)} waited {waited:.2f} s for a leader", flush=True)
            await asyncio.sleep(0.01)
    return acknowledged


async def main(seconds: float) -> None:
    handled: Counter[str] = Counter()

    async def handle(message: ReceivedMessage) -> None:
        handled[message.body.decode()] += 1

    config = PushConsumerConfig(name_servers=NAME_SERVERS, start_from=StartFrom.FIRST)
    consumer = PushConsumer("failover-consumer", config=config)
    consumer.subscribe(TOPIC, handle)
    async with consumer:
        acknowledged = await send_for(seconds)
        async with asyncio.timeout(60):
            while not handled.keys() >= set(acknowledged):  # noqa: ASYNC110 - two sides to wait for
                await asyncio.sleep(0.1)
    again = sum(handled[body] - 1 for body in acknowledged)
    print(f"{len(acknowledged)} acknowledged, all of them handled, {again} handled again")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(float(sys.argv[1]) if len(sys.argv) > 1 else 30.0))
