"""A push consumer that handles so many messages and tells what that cost: for the benchmarks.

    python push_client.py NAME_SERVERS TOPIC GROUP COUNT

Prints ``ready``, waits for a line on its standard input, consumes, and prints one line of JSON:
CPU and wall-clock seconds from the first message to the last, and its memory in bytes after the
first twentieth, in the middle and at the end.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

from rocketpost.client import PushConsumer, PushConsumerConfig, ReceivedMessage, StartFrom


def memory_bytes() -> int:
    """Return the memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc has no RssAnon")


class Handler:
    """Counts; looks at memory now and then."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._looks = {count - count // 20, count // 2, 0}
        self.memory: list[int] = []
        self.began = self.cpu_began = 0.0
        self.done = asyncio.Event()

    async def __call__(self, message: ReceivedMessage) -> None:
        if not self.began:
            self.began, self.cpu_began = time.perf_counter(), time.process_time()
        self._left -= 1
        if self._left in self._looks:
            self.memory.append(memory_bytes())
            if not self._left:
                self.done.set()


async def main() -> None:
    name_servers, topic, group, count = sys.argv[1:]
    config = PushConsumerConfig(name_servers=name_servers, start_from=StartFrom.FIRST)
    consumer = PushConsumer(group, config=config)
    handler = Handler(int(count))
    consumer.subscribe(topic, handler)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    async with consumer:
        await handler.done.wait()
        cpu, wall = time.process_time() - handler.cpu_began, time.perf_counter() - handler.began
        print(json.dumps({"cpu": cpu, "wall": wall, "memory": handler.memory}), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
