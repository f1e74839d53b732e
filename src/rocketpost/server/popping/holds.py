"""The table of held pops: pops that found nothing and wait for a message or their time limit.

All held pulls of a queue get the same message, but the pops of a group share messages: an arrival
is offered to the oldest pop first, and to the next one only while messages are left. A held pop has
looked at every queue already, so it looks again only at queues with new messages. Many pops are
woken in slices, and other requests are served in between.

The docstring of ``server.long_polling`` explains the order in which held requests are resumed. Pops
look again in the next loop iteration, after the pulls. They cannot do so at once: a pop appends to
the log, and the log writer reports arrivals while it still works on a commit.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import time
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Generic, TypeVar

from rocketpost.broker.pop.requests import PopPlace
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.transport.turns import BUDGET_SECONDS, SlicedWork, Turns, advance

P = TypeVar("P")

Fresh = dict[tuple[str, int], None]
"""Topics and queues with new messages, oldest first."""


class Waiting(Generic[P]):
    """One waiting pop."""

    __slots__ = (
        "is_busy",
        "is_held",
        "is_late",
        "leaves_messages",
        "number",
        "owner",
        "payload",
        "place",
        "timer",
        "weight",
    )

    def __init__(
        self,
        owner: Hashable,
        place: PopPlace,
        payload: P,
        *,
        leaves_messages: bool,
        weight: int = 0,
    ) -> None:
        self.owner = owner
        self.place = place
        self.payload = payload
        self.leaves_messages = leaves_messages
        self.weight = weight
        self.timer: asyncio.TimerHandle | None = None
        self.number = 0
        self.is_held = False
        self.is_busy = False
        """Whether it is looking for messages now, perhaps between two steps."""
        self.is_late = False
        """Whether its time ended during that search."""


class PopHolds(Generic[P]):
    """The waiting pops of a broker. Owned by the loop.

    Args:
        retry: Tries a pop again in queues with new messages; returns whether it is answered now.
        time_over: Answers a pop whose time is over; it is no longer held by then.
        turns: The queue in which the waking of many pops waits for its turn.
    """

    def __init__(
        self,
        *,
        retry: Callable[[Waiting[P], Fresh], Generator[None, None, bool]],
        time_over: Callable[[Waiting[P]], None],
        turns: Turns | None = None,
    ) -> None:
        self._retry = retry
        self._time_over = time_over
        self._turns = Turns() if turns is None else turns
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count()
        self._by_group: dict[tuple[str, str], dict[int, dict[Waiting[P], None]]] = {}
        self._watched: dict[str, dict[tuple[str, str], None]] = {}
        self._topics_of: dict[tuple[str, str], tuple[str, ...]] = {}
        self._by_owner: dict[Hashable, dict[Waiting[P], None]] = {}
        self._fresh: dict[tuple[str, str], Fresh] = {}
        self._waking: dict[tuple[str, str], Generator[None, None, None]] = {}
        self._is_closed = False
        self._lookers: dict[str, dict[int, Fresh]] = {}
        self._weights: dict[Hashable, int] = {}
        self._total = 0
        self.weight = 0
        """Tags and expressions of all waiting pops: most of the memory."""

    def __len__(self) -> int:
        return self._total

    def count(self, place: PopPlace) -> int:
        """Return the number of pops that wait in one place."""
        group = self._by_group.get((place.topic, place.group), {})
        return len(group.get(place.queue_id, ()))

    def count_of(self, owner: Hashable) -> int:
        """Return the number of waiting pops of one owner."""
        return len(self._by_owner.get(owner, ()))

    def weight_of(self, owner: Hashable) -> int:
        """Return the weight of one owner's pops: their tags and expressions."""
        return self._weights.get(owner, 0)

    def park(self, waiting: Waiting[P], *, retry_topics: Sequence[str], seconds: float) -> None:
        """Hold a pop; messages in ``retry_topics`` are for its group as well.

        Args:
            waiting: The pop.
            retry_topics: The topics in which messages are delivered again to its group.
            seconds: The longest wait.
        """
        if self._is_closed:
            self._time_over(waiting)
            return
        place = waiting.place
        key = (place.topic, place.group)
        waiting.timer = self._loop.call_later(seconds, self._expire, waiting)
        waiting.number = next(self._numbers)
        waiting.is_held = True
        group = self._by_group.get(key)
        if group is None:
            group = self._by_group[key] = {}
            self._topics_of[key] = (place.topic, *retry_topics)
            for topic in self._topics_of[key]:
                self._watched.setdefault(topic, {})[key] = None
        group.setdefault(place.queue_id, {})[waiting] = None
        self._by_owner.setdefault(waiting.owner, {})[waiting] = None
        self._total += 1
        self.weight += waiting.weight
        if waiting.weight:
            before = self._weights.get(waiting.owner, 0)
            self._weights[waiting.owner] = before + waiting.weight

    def note_arrivals(self, arrivals: Iterable[Arrival]) -> None:
        """Offer messages to waiting pops soon, not now: a commit may be in progress."""
        if not self._total and not self._lookers:
            return
        for arrival in arrivals:
            if arrival.topic in self._watched or arrival.topic in self._lookers:
                self.offer(arrival.topic, arrival.queue_id)

    def offer(self, topic: str, queue_id: int) -> None:
        """Let the pops that wait for a queue look at it again soon."""
        for fresh in self._lookers.get(topic, {}).values():
            fresh[topic, queue_id] = None
        watching = self._watched.get(topic)
        if watching is None:
            return
        for key in watching:
            self._fresh.setdefault(key, {})[topic, queue_id] = None
        self._turns.wake(self)

    @contextlib.contextmanager
    def looking(self, topics: Sequence[str]) -> Iterator[Fresh]:
        """Collect the queues of ``topics`` that get messages during a search in steps."""
        fresh: Fresh = {}
        for topic in topics:
            self._lookers.setdefault(topic, {})[id(fresh)] = fresh
        try:
            yield fresh
        finally:
            for topic in topics:
                lookers = self._lookers[topic]
                del lookers[id(fresh)]
                if not lookers:
                    del self._lookers[topic]

    def drop(self, owner: Hashable) -> None:
        """Drop the pops of a lost owner."""
        for waiting in list(self._by_owner.get(owner, ())):
            self._forget(waiting)

    def of(self, owner: Hashable) -> list[Waiting[P]]:
        """Return the pops of one owner."""
        return list(self._by_owner.get(owner, ()))

    def all(self) -> list[Waiting[P]]:
        """Return the waiting pops of all owners, without those that look for messages now."""
        mine = itertools.chain.from_iterable(self._by_owner.values())
        return [waiting for waiting in mine if not waiting.is_busy]

    def cancel(self, waiting: Waiting[P]) -> None:
        """Drop one pop, if it still waits."""
        self._forget(waiting)

    def close(self) -> None:
        """Answer every waiting pop, and from now on every pop that would wait."""
        self._is_closed = True
        for steps in list(self._waking.values()):
            steps.close()  # else it would answer again in the next term
        self._waking.clear()
        for group in list(self._by_group.values()):
            for waiting in list(itertools.chain.from_iterable(group.values())):
                waiting.is_busy = False  # no search continues
                self._expire(waiting)

    def go_on(self) -> None:
        """Let the pops with offered messages look again; :class:`Turns` calls this."""
        deadline = time.monotonic() + BUDGET_SECONDS
        for key in [key for key in self._fresh if key not in self._waking]:
            steps = self._waking[key] = self._wake(key)
            if time.monotonic() > deadline or not advance(steps, deadline):
                self._turns.add(SlicedWork(steps, self._turns))

    def _wake(self, key: tuple[str, str]) -> Generator[None, None, None]:
        """Let the pops of one group look again, one after the other."""
        while queues := self._fresh.pop(key, None):
            for waiting in self._wanting(key, queues):
                if not waiting.is_held:
                    continue
                waiting.is_busy = True
                is_answered = yield from self._retry(waiting, queues)
                waiting.is_busy = False
                if is_answered:
                    self._forget(waiting)
                elif waiting.is_late and waiting.is_held:
                    self._expire(waiting)
                elif not waiting.leaves_messages:
                    break  # it accepts any message, so none is left
                yield
        self._waking.pop(key, None)

    def _wanting(self, key: tuple[str, str], queues: Fresh) -> Iterator[Waiting[P]]:
        """Return the pops that may want the new messages in ``queues``, oldest first."""
        group = self._by_group.get(key, {})
        topic = key[0]
        if all(name == topic for name, _ in queues):
            ids = dict.fromkeys([-1, *(queue_id for _, queue_id in queues)])
            found = [list(group[queue_id]) for queue_id in ids if queue_id in group]
        else:  # retried messages are for every pop
            found = [list(waiting) for waiting in group.values()]
        return iter(found[0]) if len(found) == 1 else heapq.merge(*found, key=attrgetter("number"))

    def _expire(self, waiting: Waiting[P]) -> None:
        if waiting.is_busy:
            waiting.is_late = True
            return
        self._forget(waiting)
        self._time_over(waiting)

    def _forget(self, waiting: Waiting[P]) -> None:
        if not waiting.is_held:
            return  # its connection was lost during the search
        waiting.is_held = False
        assert waiting.timer is not None
        waiting.timer.cancel()
        place = waiting.place
        key = (place.topic, place.group)
        group = self._by_group[key]
        del group[place.queue_id][waiting]
        if not group[place.queue_id]:
            del group[place.queue_id]
        if not group:
            del self._by_group[key]
            for topic in self._topics_of.pop(key):
                self._unwatch(topic, key)
        mine = self._by_owner[waiting.owner]
        mine.pop(waiting, None)
        if not mine:
            del self._by_owner[waiting.owner]
        self._total -= 1
        self.weight -= waiting.weight
        if waiting.weight:
            self._weights[waiting.owner] -= waiting.weight
            if not self._weights[waiting.owner]:
                del self._weights[waiting.owner]

    def _unwatch(self, topic: str, key: tuple[str, str]) -> None:
        watching = self._watched[topic]
        watching.pop(key, None)
        if not watching:
            del self._watched[topic]
