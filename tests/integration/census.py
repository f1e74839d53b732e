"""A count of everything that a term may leave behind: tasks, threads, files, requests, objects.

Counts are taken inside ``overlook_older_objects``: a process that has run thousands of tests has
millions of objects, and a census that looks at each of them takes seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections import Counter
from collections.abc import Iterator

from rocketpost.server.broker import BrokerServer
from rocketpost.server.feature import Feature
from rocketpost.server.term import Term


@contextlib.contextmanager
def overlook_older_objects() -> Iterator[None]:
    """Let a census see only the objects that are made meanwhile."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def take_census(server: BrokerServer) -> Counter[str]:
    """Count what is there when nothing is going on."""
    for _ in range(5):
        await asyncio.sleep(0)  # callbacks of what just ended
    gc.collect()
    found = Counter({"held requests": server.held_count})
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            found[f"task {task.get_name()}"] += 1
    for thread in threading.enumerate():
        if not thread.name.startswith("asyncio_"):  # a pool of the loop, which grows as it likes
            found[f"thread {thread.name.split('_')[0]}"] += 1
    for each in gc.get_objects():
        if isinstance(each, Term | Feature):
            found[f"object {type(each).__name__}"] += 1
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if "/consumequeue/" not in target:  # the store maps and unmaps them as they are read
                found[f"open {target.split(':')[0]}"] += 1  # sockets have numbers
    return found


async def find_leaks(server: BrokerServer, before: Counter[str]) -> Counter[str]:
    """Return what there is more of than before.

    What has just ended gets a second: a thread of the pool may not have let go of its last work.
    """
    for _ in range(50):
        found = await take_census(server) - before
        if not found:
            break
        await asyncio.sleep(0.02)
    return found
