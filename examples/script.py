"""The same without asyncio: for scripts, threads and web frameworks.

python examples/script.py    (NAMESRV_ADDR is 127.0.0.1:9876 if not set)
"""

import contextlib
import os
import threading

from rocketpost.client import Message, PushConsumerConfig, ReceivedMessage, StartFrom
from rocketpost.client.blocking import Producer, PushConsumer

NAME_SERVERS = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def main() -> None:
    with Producer("example-producer", name_servers=NAME_SERVERS) as producer:
        for n in range(10):
            producer.send(Message("ExampleScript", f"number {n}".encode()))

    enough = threading.Semaphore(0)

    def handle(message: ReceivedMessage) -> None:
        print(f"{threading.current_thread().name} got {message.body!r}")
        enough.release()

    consumer = PushConsumer(
        "example-script",
        name_servers=NAME_SERVERS,
        config=PushConsumerConfig(start_from=StartFrom.FIRST, concurrency=4),
    )
    consumer.subscribe("ExampleScript", handle)
    with consumer:
        for _ in range(10):
            enough.acquire()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
