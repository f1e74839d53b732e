"""Read a topic from its beginning to its end, queue by queue.

python examples/pull.py [topic]    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)
"""

import asyncio
import contextlib
import os
import sys

from rocketpost.client import PullConsumer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main(topic: str) -> None:
    async with PullConsumer("example-reader", name_servers=NAME_SERVERS) as consumer:
        for queue in await consumer.queues(topic):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            count = 0
            while offset < end:
                result = await consumer.pull(queue, offset)
                count += len(result.messages)
                offset = result.next_offset
            print(f"{queue.broker_name}/{queue.queue_id}: {count} messages")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ExampleTopic"))
