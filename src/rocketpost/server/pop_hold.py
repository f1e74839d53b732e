"""Pops that found nothing wait here for a message of their topic, or for their time.

Unlike pulls, which all see the same message, pops of a group share: an arrival is offered to the
oldest one first and to the next only while there is more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from rocketpost.store.draft import Appended

P = TypeVar("P")


class Place(NamedTuple):
    """What a pop waits for; the queue is -1 for all of them."""

    topic: str
    group: str
    queue_id: int


class Waiting(Generic[P]):
    """One waiting pop."""

    __slots__ = ("connection", "is_modest", "payload", "place", "timer", "weight")

    def __init__(
        self, connection: Any, place: Place, payload: P, *, is_modest: bool, weight: int = 0
    ) -> None:
        self.connection = connection
        self.place = place
        self.payload = payload
        self.is_modest = is_modest
        self.weight = weight
        self.timer: asyncio.TimerHandle | None = None


class PopHolds(Generic[P]):
    """The waiting pops of a broker. Owned by the loop.

    Args:
        retry: Tries a pop again; returns whether it is answered now.
        time_over: Answers a pop that has waited long enough; it is not held any more by then.
    """

    def __init__(
        self,
        *,
        retry: Callable[[Waiting[P]], bool],
        time_over: Callable[[Waiting[P]], None],
    ) -> None:
        self._retry = retry
        self._time_over = time_over
        self._loop = asyncio.get_running_loop()
        self._by_group: dict[tuple[str, str], dict[Waiting[P], None]] = {}
        self._watched: dict[str, set[tuple[str, str]]] = {}
        self._topics_of: dict[tuple[str, str], tuple[str, ...]] = {}
        self._by_connection: dict[Any, set[Waiting[P]]] = {}
        self._counts: dict[Place, int] = {}
        self._fresh: dict[tuple[str, str], None] = {}
        self._total = 0
        self.weight = 0
        """Tags and expressions of those that wait, which is most of the memory they take."""

    def __len__(self) -> int:
        return self._total

    def count(self, place: Place) -> int:
        """Return how many wait in one place."""
        return self._counts.get(place, 0)

    def park(self, waiting: Waiting[P], *, retry_topics: Sequence[str], seconds: float) -> None:
        """Hold a pop; messages in ``retry_topics`` are for its group as well.

        Args:
            waiting: The pop.
            retry_topics: Where messages come again for its group.
            seconds: How long at most.
        """
        place = waiting.place
        key = (place.topic, place.group)
        waiting.timer = self._loop.call_later(seconds, self._expire, waiting)
        group = self._by_group.get(key)
        if group is None:
            group = self._by_group[key] = {}
            self._topics_of[key] = (place.topic, *retry_topics)
            for topic in self._topics_of[key]:
                self._watched.setdefault(topic, set()).add(key)
        group[waiting] = None
        self._by_connection.setdefault(waiting.connection, set()).add(waiting)
        self._counts[place] = self._counts.get(place, 0) + 1
        self._total += 1
        self.weight += waiting.weight

    def arrived(self, messages: Iterable[Appended]) -> None:
        """Offer messages to those that wait, soon: the store may be at work right now."""
        if not self._total:
            return
        for message in messages:
            if message.topic in self._watched:
                self.offer(message.topic)

    def offer(self, topic: str) -> None:
        """Have those that wait for a topic look again, soon."""
        watching = self._watched.get(topic)
        if watching is None:
            return
        if not self._fresh:
            self._loop.call_soon(self._look_again)
        self._fresh.update(dict.fromkeys(watching))

    def drop(self, connection: Any) -> None:
        """Forget the pops of a connection that is gone."""
        for waiting in list(self._by_connection.get(connection, ())):
            self._forget(waiting)

    def close(self) -> None:
        """Answer everything that waits."""
        for group in list(self._by_group.values()):
            for waiting in list(group):
                self._expire(waiting)

    def _look_again(self) -> None:
        fresh, self._fresh = self._fresh, {}
        for key in fresh:
            for waiting in list(self._by_group.get(key, ())):
                if self._retry(waiting):
                    self._forget(waiting)
                elif not waiting.is_modest:
                    break  # it would have taken anything

    def _expire(self, waiting: Waiting[P]) -> None:
        self._forget(waiting)
        self._time_over(waiting)

    def _forget(self, waiting: Waiting[P]) -> None:
        assert waiting.timer is not None
        waiting.timer.cancel()
        place = waiting.place
        key = (place.topic, place.group)
        group = self._by_group[key]
        del group[waiting]
        if not group:
            del self._by_group[key]
            for topic in self._topics_of.pop(key):
                self._unwatch(topic, key)
        mine = self._by_connection[waiting.connection]
        mine.discard(waiting)
        if not mine:
            del self._by_connection[waiting.connection]
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]
        self._total -= 1
        self.weight -= waiting.weight

    def _unwatch(self, topic: str, key: tuple[str, str]) -> None:
        watching = self._watched[topic]
        watching.discard(key)
        if not watching:
            del self._watched[topic]
