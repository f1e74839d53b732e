"""Long polling: pulls that found nothing wait here for the next message or their time.

Waiting pulls lie under their queue and are woken by arrivals; nothing scans. Each is run again
at most once more: by an arrival that its tags want, or when its time is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

C = TypeVar("C")
P = TypeVar("P")


class Held(Generic[C, P]):
    """One waiting pull."""

    __slots__ = ("connection", "key", "payload", "tags", "timer")

    def __init__(
        self, connection: C, key: tuple[str, int], tags: AbstractSet[int], payload: P
    ) -> None:
        self.connection = connection
        self.key = key
        self.tags = tags
        self.payload = payload
        self.timer: asyncio.TimerHandle | None = None


class Holds(Generic[C, P]):
    """The waiting pulls of a broker. Owned by the loop.

    Args:
        resume: Called with each pull that is to be run again; it is not held any more by then.
    """

    def __init__(self, *, resume: Callable[[Held[C, P]], None]) -> None:
        self._resume = resume
        self._loop = asyncio.get_running_loop()
        # Dictionaries serve as ordered sets: a hundred thousand pulls may wait for one queue, and
        # taking one out must not look at the others.
        self._by_queue: dict[tuple[str, int], dict[Held[C, P], None]] = {}
        self._by_connection: dict[C, set[Held[C, P]]] = {}
        self._count = 0
        self.tag_count = 0
        """Tags that the waiting pulls want, which is most of what they may weigh."""

    def __len__(self) -> int:
        return self._count

    @property
    def queues(self) -> AbstractSet[tuple[str, int]]:
        """The queues that somebody waits for, live."""
        return self._by_queue.keys()

    def park(
        self,
        connection: C,
        key: tuple[str, int],
        *,
        tags: AbstractSet[int],
        payload: P,
        seconds: float,
    ) -> None:
        """Hold a pull on the queue ``key`` for ``seconds`` at most."""
        held = Held(connection, key, tags, payload)
        held.timer = self._loop.call_later(seconds, self._time_over, held)
        self._by_queue.setdefault(key, {})[held] = None
        self._by_connection.setdefault(connection, set()).add(held)
        self._count += 1
        self.tag_count += len(tags)

    def arrived(self, key: tuple[str, int], tags_codes: Iterable[int]) -> None:
        """Run again those pulls on ``key`` that want one of the arrived messages."""
        waiting = self._by_queue.pop(key, None)
        if waiting is None:
            return
        codes = set(tags_codes)
        staying: dict[Held[C, P], None] = {}
        for held in waiting:
            if held.tags and held.tags.isdisjoint(codes):
                staying[held] = None
            else:
                self._release(held)
        if staying:
            self._by_queue.setdefault(key, {}).update(staying)

    def wake(self, key: tuple[str, int]) -> None:
        """Run every pull on the queue ``key`` again."""
        for held in list(self._by_queue.get(key, ())):
            self._time_over(held)

    def wake_all(self) -> None:
        """Run every held pull again."""
        for key in list(self._by_queue):
            self.wake(key)

    def drop(self, connection: C) -> None:
        """Forget the pulls of a connection that is gone."""
        for held in self._by_connection.pop(connection, ()):
            self._forget(held)
            self._remove_from_queue(held)

    def _release(self, held: Held[C, P]) -> None:
        mine = self._by_connection[held.connection]
        mine.discard(held)
        if not mine:
            del self._by_connection[held.connection]
        self._forget(held)
        self._resume(held)

    def _time_over(self, held: Held[C, P]) -> None:
        self._remove_from_queue(held)
        self._release(held)

    def _forget(self, held: Held[C, P]) -> None:
        self._count -= 1
        self.tag_count -= len(held.tags)
        assert held.timer is not None
        held.timer.cancel()

    def _remove_from_queue(self, held: Held[C, P]) -> None:
        waiting = self._by_queue.get(held.key)
        if waiting is not None:
            waiting.pop(held, None)
            if not waiting:
                del self._by_queue[held.key]
