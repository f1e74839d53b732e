"""One kind of work of a client, and its CPU per message: a process of ``clients.py``.

    python client_work.py KIND NAME_SERVERS TOPIC COUNT GROUP

Prints one line of JSON: the CPU microseconds per message and the messages per second. The counters
are those of the process, so that the threads of a client are included. The first twentieth of the
messages warms up and is not measured. Uses the public SDK only, so that it runs with any build.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import uvloop

from rocketpost.client import (
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    PushConsumer,
    PushConsumerConfig,
    ReceivedMessage,
    StartFrom,
    blocking,
)

BODY = b"x" * 1024
GATHERED = 256
THREADS = 16
PULLED = 32

Sends = Callable[[int], Awaitable[None]]


class Meter:
    """CPU and wall-clock time since its start."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def report(self, messages: int) -> None:
        """Print the figures."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        print(json.dumps({"cpu": cpu / messages * 1e6, "rate": messages / wall}), flush=True)


def make_message(topic: str, *, keyed: bool = False, body: bytes = BODY) -> Message:
    """Return a new message; *keyed* ones have a tag, two keys and a property."""
    if not keyed:
        return Message(topic, body)
    return Message(topic, body, tags="paid", keys="order-17 user-4", properties={"region": "eu"})


async def measure_sends(send: Sends, count: int) -> None:
    """Warm up, then send and report."""
    await send(max(GATHERED, count // 20))
    meter = Meter()
    await send(count)
    meter.report(count)


async def gather(name_servers: str, topic: str, count: int, *, keyed: bool = False) -> None:
    """Sends in groups: ``asyncio.gather`` of ``send``."""
    async with Producer("clients", name_servers=name_servers) as producer:

        async def send(count: int) -> None:
            for _ in range(0, count, GATHERED):
                await asyncio.gather(
                    *[producer.send(make_message(topic, keyed=keyed)) for _ in range(GATHERED)]
                )

        await measure_sends(send, count // GATHERED * GATHERED)


async def gather_keyed(name_servers: str, topic: str, count: int) -> None:
    """As ``gather``, with tag, keys and a property."""
    await gather(name_servers, topic, count, keyed=True)


async def gather_idempotent(name_servers: str, topic: str, count: int) -> None:
    """As ``gather``, by an idempotent producer."""
    async with Producer("clients", name_servers=name_servers, idempotent=True) as producer:

        async def send(count: int) -> None:
            for _ in range(0, count, GATHERED):
                await asyncio.gather(*[producer.send(make_message(topic)) for _ in range(GATHERED)])

        await measure_sends(send, count // GATHERED * GATHERED)


async def soon(name_servers: str, topic: str, count: int) -> None:
    """``send_soon`` as fast as it lets us; the results are awaited at the end."""
    async with Producer("clients", name_servers=name_servers) as producer:

        async def send(count: int) -> None:
            futures = [await producer.send_soon(make_message(topic)) for _ in range(count)]
            for future in futures:
                await future

        await measure_sends(send, count)


async def single(name_servers: str, topic: str, count: int) -> None:
    """One send after the other."""
    async with Producer("clients", name_servers=name_servers) as producer:

        async def send(count: int) -> None:
            for _ in range(count):
                await producer.send(make_message(topic))

        await measure_sends(send, count // 5)


async def batch(name_servers: str, topic: str, count: int) -> None:
    """``send_batch`` of 50 messages of 50 bytes."""
    async with Producer("clients", name_servers=name_servers) as producer:

        async def send(count: int) -> None:
            for _ in range(0, count, 50):
                await producer.send_batch([Message(topic, BODY[:50]) for _ in range(50)])

        await measure_sends(send, count // 50 * 50)


async def auto_batch(name_servers: str, topic: str, count: int) -> None:
    """Gathered sends of 50 bytes by a producer with ``auto_batch``."""
    config = ProducerConfig(name_servers=name_servers, auto_batch=True)
    async with Producer("clients", config=config) as producer:

        async def send(count: int) -> None:
            for _ in range(0, count, 1024):
                await asyncio.gather(
                    *[producer.send(make_message(topic, body=BODY[:50])) for _ in range(1024)]
                )

        await measure_sends(send, count // 1024 * 1024)


def threads(name_servers: str, topic: str, count: int) -> None:
    """Blocking sends of 16 threads that share a producer."""
    share = count // 5 // THREADS

    def send(producer: blocking.Producer, count: int) -> None:
        for _ in range(count):
            producer.send(make_message(topic))

    def send_all(producer: blocking.Producer, count: int) -> None:
        workers = [threading.Thread(target=send, args=(producer, count)) for _ in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    with blocking.Producer("clients", name_servers=name_servers) as producer:
        send_all(producer, 50)
        meter = Meter()
        send_all(producer, share)
        meter.report(share * THREADS)


def thread_soon(name_servers: str, topic: str, count: int) -> None:
    """``send_soon`` of the blocking producer in one thread."""
    with blocking.Producer("clients", name_servers=name_servers) as producer:

        def send(count: int) -> None:
            futures = [producer.send_soon(make_message(topic)) for _ in range(count)]
            for future in futures:
                future.result()

        send(1000)
        meter = Meter()
        send(count)
        meter.report(count)


def thread_single(name_servers: str, topic: str, count: int) -> None:
    """Blocking sends of one thread."""
    with blocking.Producer("clients", name_servers=name_servers) as producer:
        for _ in range(200):
            producer.send(make_message(topic))
        count //= 10
        meter = Meter()
        for _ in range(count):
            producer.send(make_message(topic))
        meter.report(count)


class Counter:
    """Counts handled messages and reports the cost of all after the first twentieth."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._measured = count - count // 20
        self._meter: Meter | None = None
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self.done = asyncio.Event()

    def count(self, message: ReceivedMessage) -> None:
        """Count a message, on the loop."""
        self._left -= 1
        if self._left == self._measured:
            self._meter = Meter()
        elif not self._left and self._meter is not None:
            self._meter.report(self._measured)
            self.done.set()

    def count_in_thread(self, message: ReceivedMessage) -> None:
        """Count a message, in a thread."""
        with self._lock:
            self._left -= 1
            left = self._left
        if left == self._measured:
            self._meter = Meter()
        elif not left and self._meter is not None:
            self._meter.report(self._measured)
            self._loop.call_soon_threadsafe(self.done.set)


async def consume(
    name_servers: str, topic: str, count: int, group: str, *, orderly: bool = False,
    in_threads: bool = False, reads: bool = False,
) -> None:  # fmt: skip
    """Consume the whole topic with a push consumer whose handler does next to nothing."""
    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    consumer, counter = PushConsumer(group, config=config), Counter(count)

    async def handle(message: ReceivedMessage) -> None:
        counter.count(message)

    async def read(message: ReceivedMessage) -> None:
        assert message.body
        assert message.message_id
        counter.count(message)

    handler = counter.count_in_thread if in_threads else read if reads else handle
    consumer.subscribe(topic, handler, orderly=orderly)
    async with consumer:
        await counter.done.wait()


async def push(name_servers: str, topic: str, count: int, group: str) -> None:
    """Async handlers that look at nothing."""
    await consume(name_servers, topic, count, group)


async def push_read(name_servers: str, topic: str, count: int, group: str) -> None:
    """Async handlers that read the body and the id."""
    await consume(name_servers, topic, count, group, reads=True)


async def push_threads(name_servers: str, topic: str, count: int, group: str) -> None:
    """Plain functions, which run in threads."""
    await consume(name_servers, topic, count, group, in_threads=True)


async def orderly(name_servers: str, topic: str, count: int, group: str) -> None:
    """Orderly async handlers."""
    await consume(name_servers, topic, count, group, orderly=True)


async def pull(name_servers: str, topic: str, count: int, group: str) -> None:
    """A pull consumer, queue by queue, 32 messages at a time; bodies are read."""
    async with PullConsumer(group, name_servers=name_servers) as consumer:
        queues = await consumer.queues(topic)

        async def read(queue_count: int) -> int:
            total = 0
            for queue in queues[:queue_count]:
                offset = 0
                while (result := await consumer.pull(queue, offset, count_max=PULLED)).messages:
                    offset = result.next_offset
                    total += sum(1 for message in result.messages if message.body)
            return total

        await read(1)
        meter = Meter()
        meter.report(await read(len(queues)))


KINDS = {
    work.__name__: work
    for work in (
        gather, gather_keyed, gather_idempotent, soon, single, batch, auto_batch,
        threads, thread_soon, thread_single,
        push, push_read, push_threads, orderly, pull,
    )
}  # fmt: skip
CONSUMERS = (push, push_read, push_threads, orderly, pull)


def main() -> None:
    kind, name_servers, topic, count, group = sys.argv[1:]
    work = KINDS[kind]
    arguments = (name_servers, topic, int(count), *([group] if work in CONSUMERS else []))
    if asyncio.iscoroutinefunction(work):
        uvloop.run(work(*arguments))
    else:
        work(*arguments)


if __name__ == "__main__":
    main()
