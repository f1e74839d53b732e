"""A consumer with a bug: what ``rocketpost.testing.consumer`` is, with one thing done wrong.

    python odd_consumer.py --bug NAME ARGUMENTS OF THE CONSUMER

Each bug is one that a client could well have, and that ``test_consumers`` must find.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable

from rocketpost.client.consumer.assigned_queues import AssignedQueues
from rocketpost.client.consumer.offset_tracker import OffsetTracker
from rocketpost.client.consumer.owned_queue import OwnedQueue
from rocketpost.client.consumer.push.orderly import OrderlyConsumption
from rocketpost.client.consumer.queue_locks import ConsumerLocks
from rocketpost.testing import consumer


def commits_what_it_fetched() -> None:
    """Store the offset after the last fetched message, not the smallest unfinished one."""
    OffsetTracker.committable = property(lambda self: self.next_offset)  # type: ignore[assignment]


def trusts_its_memory() -> None:
    """Go on where we were, even if the broker gave us up and others had the queue."""
    AssignedQueues._broker_lost = lambda self, address: None  # type: ignore[method-assign]


def goes_back() -> None:
    """Begin a queue far before the stored offset."""
    start_offset = AssignedQueues._start_offset

    async def too_low(self: AssignedQueues, owned: OwnedQueue) -> int:
        return max(0, await start_offset(self, owned) - 200)

    AssignedQueues._start_offset = too_low  # type: ignore[method-assign]


def needs_no_lock() -> None:
    """Handle a queue in order without the broker's leave."""

    async def acquire(self: ConsumerLocks, owned: OwnedQueue) -> None:
        assert owned.lock is not None
        owned.lock.take(time.monotonic() + 1e9)

    async def renew(self: ConsumerLocks) -> bool:
        return True

    ConsumerLocks._broker_lost = lambda self, address: None  # type: ignore[method-assign]
    ConsumerLocks.acquire = acquire  # type: ignore[method-assign]
    ConsumerLocks.renew = renew  # type: ignore[method-assign]


def unlocks_too_early() -> None:
    """Give a queue's lock back while a handler is at work, which then takes its time."""

    async def settle(self: OrderlyConsumption, owned: OwnedQueue, seconds: float) -> bool:
        return True

    async def slowly(self: consumer.NotedHandler, message: consumer.ReceivedMessage) -> None:
        self._note("begin", message)
        await asyncio.sleep(0.05)
        self._end(message)

    OrderlyConsumption.settle = settle  # type: ignore[method-assign]
    consumer.NotedHandler.handle = slowly  # type: ignore[method-assign]
    consumer.NotedHandler.handle_blocking = slowly  # type: ignore[assignment, method-assign]


def hands_out_backwards() -> None:
    """Hand a queue's messages out from the end of what was fetched."""
    submit = OrderlyConsumption.submit

    def backwards(
        self: OrderlyConsumption, owned: OwnedQueue, messages: Iterable[consumer.ReceivedMessage]
    ) -> None:
        submit(self, owned, list(messages)[::-1])

    OrderlyConsumption.submit = backwards  # type: ignore[assignment, method-assign]


BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        commits_what_it_fetched,
        trusts_its_memory,
        goes_back,
        needs_no_lock,
        unlocks_too_early,
        hands_out_backwards,
    )
}

if __name__ == "__main__":
    BUGS[sys.argv.pop(2)]()
    del sys.argv[1]
    consumer.main()
