"""Consume messages until interrupted, or until a number of them has come.

python examples/consume.py [count]    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)
"""

import asyncio
import contextlib
import os
import sys

from rocketpost.client import (
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    Retry,
    StartFrom,
)

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main(count: int | None) -> None:
    seen = 0
    enough = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        nonlocal seen
        if message.tags == "later" and message.reconsume_times == 0:
            raise Retry(delay_level=1)  # comes again after a second
        print(f"{message.queue.queue_id}/{message.queue_offset} {message.tags} {message.body!r}")
        seen += 1
        if seen == count:
            enough.set()

    config = PushConsumerConfig(start_from=StartFrom.FIRST)
    consumer = PushConsumer("example-consumer", name_servers=NAME_SERVERS, config=config)
    consumer.subscribe("ExampleTopic", handle, tags="greeting || number || order || later")
    async with consumer:
        if count is None:
            await consumer.run_forever()  # until Ctrl-C or SIGTERM
        else:
            await enough.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else None))
