"""Send many small messages in few requests.

NAMESRV_ADDR=127.0.0.1:9876 python examples/batch.py
"""

import asyncio

from rocketpost.client import Message, Producer


async def main() -> None:
    messages = [Message("ExampleBatches", f"row {n}".encode()) for n in range(50_000)]
    async with Producer("example-producer") as producer:
        results = await producer.send_batch(messages)  # as many requests as the size limit asks for
    print(f"{len(results)} stored, the last at offset {results[-1].queue_offset}")


if __name__ == "__main__":
    asyncio.run(main())
