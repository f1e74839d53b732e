"""CPU per message of append + commit + dispatch, over 1, 100 and 10,000 queues.

    .venv/bin/python benchmarks/store_append.py [--messages 400000] [--batch 200] [--body 1024]

Messages carry a unique key and a tag, as clients send them. Two figures per row: without the key
index, and with it. CPU is the process's own, checkpoint and flusher threads included.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time

from rocketpost.codec.record import pack_host
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore


class _Clock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


def measure(
    root: str, *, queue_count: int, messages: int, batch: int, body_bytes: int, index: bool
) -> tuple[float, float]:
    config = StoreConfig(
        root=root,
        segment_bytes=256 * 1024**2,
        index_enabled=index,
        index_slot_count=5_000_000 if index else 1,
        index_entry_count=messages + queue_count + 10,
    )
    store = MessageStore.open_blocking(config, clock=_Clock(), on_durable=lambda position: None)
    host = pack_host("10.0.0.1", 10911)
    body = os.urandom(body_bytes)
    properties = b"UNIQ_KEY\x017F0000010001AAAA0000000000000000\x02WAIT\x01true\x02TAGS\x01TagA\x02"
    topics = [f"Topic{number}" for number in range(max(1, queue_count // 8))]
    per_topic = min(8, queue_count)
    places = [(topics[n // per_topic % len(topics)], n % per_topic) for n in range(queue_count)]
    for topic, queue_id in places:
        store.append(_draft(topic, queue_id, "warm-up", host, body, properties))
    store.confirm(store.commit())
    store.save_blocking()  # the files are there now: what follows is the steady state
    cpu = wall = 0.0
    for start in range(0, messages, batch):
        drafts = []
        for number in range(start, start + batch):
            topic, queue_id = places[number % queue_count]
            key = f"7F0000010001AAAA{number:016X}"
            drafts.append(_draft(topic, queue_id, key, host, body, properties))
        cpu_before, wall_before = time.process_time(), time.perf_counter()
        for draft in drafts:
            store.append(draft)
        store.confirm(store.commit())
        cpu += time.process_time() - cpu_before
        wall += time.perf_counter() - wall_before
    cpu_before = time.process_time()
    store.save_blocking()
    cpu += time.process_time() - cpu_before
    store.close_blocking()
    return cpu / messages * 1e6, wall / messages * 1e6


def _draft(
    topic: str, queue_id: int, key: str, host: bytes, body: bytes, properties: bytes
) -> Draft:
    born_ms = 1700000000000
    return Draft(
        topic, queue_id, 0, 0, born_ms, host, host, 0, 0, body, properties, 2598919, (key,)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    print("queues  index  cpu us/message  wall us/message")
    for queue_count in (1, 100, 10_000):
        for index in (False, True):
            root = tempfile.mkdtemp(prefix="store-append-", dir=arguments.dir)
            try:
                cpu, wall = measure(
                    root,
                    queue_count=queue_count,
                    messages=arguments.messages,
                    batch=arguments.batch,
                    body_bytes=arguments.body,
                    index=index,
                )
            finally:
                shutil.rmtree(root)
            print(f"{queue_count:6}  {'yes' if index else 'no':5}  {cpu:14.2f}  {wall:15.2f}")


if __name__ == "__main__":
    main()
