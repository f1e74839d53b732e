"""Send many small messages in few requests.

python examples/batch.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)
"""

import asyncio
import contextlib
import os

from rocketpost.client import Message, Producer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


async def main() -> None:
    messages = [Message("ExampleBatches", f"row {n}".encode()) for n in range(50_000)]
    async with Producer("example-producer", name_servers=NAME_SERVERS) as producer:
        results = await producer.send_batch(messages)  # as many requests as the size limit asks for
    print(f"{len(results)} stored, the last at offset {results[-1].queue_offset}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
