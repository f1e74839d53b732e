"""CPU per message of a slave's store: append of a master's bytes, confirm, queues and key index.

    .venv/bin/python benchmarks/store_raw_append.py [--messages 200000] [--body 1024] [--queues 8]

Each row is one size of chunk. Columns are microseconds of CPU per message: the process's own,
checkpoint and flusher threads included. ``control`` writes the same chunks to a file of the same
size without looking at them, in the same round; ``master`` appends the same messages to a master's
store as drafts, in batches of as many. Each figure is the least of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import tempfile
import time

from rocketpost.codec.record import pack_host
from rocketpost.kernel.record_scan import record_starts
from rocketpost.model.ids import Position
from rocketpost.store.config import StoreConfig
from rocketpost.store.draft import Draft
from rocketpost.store.message_store import MessageStore

SEGMENT_BYTES = 1024**3
CHUNKS = (1, 4, 64 * 1024, 1024**2)
"""Sizes of chunks: up to 100 a number of records, above a number of bytes."""


class _Clock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Bench:
    """The stores and the files of one run."""

    def __init__(self, root: str, *, messages: int, body_bytes: int, queue_count: int) -> None:
        self.root = root
        self.messages = messages
        self.queue_count = queue_count
        self._host = pack_host("10.0.0.1", 10911)
        self._body = os.urandom(body_bytes)
        self._count = 0

    def open(self) -> MessageStore:
        """Return a new store."""
        self._count += 1
        config = StoreConfig(
            root=f"{self.root}/{self._count}",
            segment_bytes=SEGMENT_BYTES,
            index_slot_count=5_000_000,
            index_entry_count=20_000_000,
        )
        return MessageStore.open_blocking(config, clock=_Clock())

    def close(self, store: MessageStore) -> None:
        """Close a store and remove its files."""
        store.close_blocking()
        shutil.rmtree(store.config.root)

    def fill(self, store: MessageStore, count: int, batch: int) -> float:
        """Append messages as a master does; return the CPU seconds."""
        cpu = 0.0
        for start in range(0, count, batch):
            drafts = [self._draft(number) for number in range(start, min(start + batch, count))]
            before = time.process_time()
            for draft in drafts:
                store.append(draft)
            store.confirm(store.commit())
            cpu += time.process_time() - before
        return cpu

    def log(self) -> bytes:
        """Return a master's log."""
        store = self.open()
        self.fill(store, self.messages, 200)
        data = bytes(store.view(0, store.end_position) or b"")
        assert data
        self.close(store)
        return data

    def master(self, batch: int) -> float:
        """Return the CPU seconds of the same messages on a master."""
        store = self.open()
        cpu = self.fill(store, self.messages, batch)
        self.close(store)
        return cpu

    def _draft(self, number: int) -> Draft:
        key = f"7F0000010001AAAA{number:016X}"
        properties = f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02TAGS\x01TagA\x02".encode()
        topic = f"Topic{number // 4 % max(1, self.queue_count // 4)}"
        return Draft(
            topic, number % min(4, self.queue_count),
            0, 0, 1700000000000, self._host, self._host, 0, 0, self._body, properties, 2598919,
            (key,),
        )  # fmt: skip


def cuts_of(log: bytes, chunk: int) -> list[int]:
    """Return where the chunks of a log begin, and its end."""
    cuts = [0]
    while cuts[-1] < len(log):
        count, size = (chunk, len(log)) if chunk < 100 else (len(log), chunk)
        starts, end = record_starts(log, cuts[-1], count_max=count, bytes_max=size)
        cuts.append(end if end - cuts[-1] <= size or len(starts) == 1 else starts[-1])
    return cuts


def append(store: MessageStore, log: bytes, cuts: list[int]) -> float:
    view = memoryview(log)
    chunks = [(low, view[low:high]) for low, high in itertools.pairwise(cuts)]
    before = time.process_time()
    for position, data in chunks:
        store.confirm(store.append_raw(Position(position), data))
    return time.process_time() - before


def write(path: str, log: bytes, cuts: list[int]) -> float:
    view = memoryview(log)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, len(log))
        chunks = [(low, view[low:high]) for low, high in itertools.pairwise(cuts)]
        before = time.process_time()
        for position, data in chunks:
            os.pwrite(fd, data, position)
        return time.process_time() - before
    finally:
        os.close(fd)
        os.unlink(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--body", type=int, default=1024)
    parser.add_argument("--queues", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None)
    arguments = parser.parse_args()
    root = tempfile.mkdtemp(prefix="store-raw-append-", dir=arguments.dir)
    try:
        bench = Bench(
            root,
            messages=arguments.messages,
            body_bytes=arguments.body,
            queue_count=arguments.queues,
        )
        log = bench.log()
        print("chunk       slave  control  master  (us of CPU per message)")
        for chunk in CHUNKS:
            cuts = cuts_of(log, chunk)
            batch = max(1, round(arguments.messages / (len(cuts) - 1)))
            rounds: list[tuple[float, float, float]] = []
            for _ in range(arguments.rounds):
                store = bench.open()
                slave = append(store, log, cuts)
                bench.close(store)
                control = write(f"{root}/control", log, cuts)
                rounds.append((slave, control, bench.master(batch)))
            best = [min(column) / arguments.messages * 1e6 for column in zip(*rounds, strict=True)]
            name = f"{chunk} rec" if chunk < 100 else f"{chunk // 1024} KiB"
            print(f"{name:9}  {best[0]:6.2f}  {best[1]:7.2f}  {best[2]:6.2f}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
