"""Send messages, many at a time.

python examples/produce.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)
"""

import asyncio
import contextlib
import os

from rocketpost.client import Message, Producer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    async with Producer("example-producer", name_servers=NAME_SERVERS) as producer:
        result = await producer.send(
            Message("ExampleTopic", b"hello", tags="greeting", keys="first")
        )
        print(f"{result.status.name}: {result.queue.broker_name}/{result.queue.queue_id} "
              f"offset {result.queue_offset}, id {result.message_id}")  # fmt: skip

        # Pipelining: each send waits for room only, the results are collected afterwards.
        futures = [
            await producer.send_soon(Message("ExampleTopic", f"number {n}".encode(), tags="number"))
            for n in range(100)
        ]
        results = await asyncio.gather(*futures)
        print(f"{len(results)} more stored")

        # Messages with one sharding key go to one queue. Waiting for each keeps their order.
        for step in ("created", "paid", "shipped"):
            message = Message("ExampleTopic", step.encode(), tags="order", sharding_key="order-17")
            await producer.send(message)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
