"""Long polling: pulls that found nothing wait here for the next message or their time.

Waiting pulls lie under their queue by what they want: everything, some tags, or what an expression
lets through. An arrival looks at those that want it, and at each distinct expression once, however
many pulls wait with it; nothing scans. Each pull is run again at most once more: by an arrival that
it wants, or when its time is over.

A hundred thousand may want the same message. They are run again for a moment per turn of the loop,
and the connections take turns, so that whoever waits with one pull is not behind somebody's
thousands.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from time import monotonic
from typing import Generic, TypeVar

from rocketpost.broker.filter.matching import WORK_MAX, Matcher
from rocketpost.transport.turns import BUDGET_SECONDS, Turns

C = TypeVar("C")
P = TypeVar("P")


class Held(Generic[C, P]):
    """One waiting pull."""

    __slots__ = ("connection", "key", "matcher", "payload", "tags", "timer")

    def __init__(
        self,
        connection: C,
        key: tuple[str, int],
        payload: P,
        *,
        tags: AbstractSet[int],
        matcher: Matcher | None,
    ) -> None:
        self.connection = connection
        self.key = key
        self.tags = tags
        self.matcher = matcher
        self.payload = payload
        self.timer: asyncio.TimerHandle | None = None

    @property
    def weight(self) -> int:
        """Its tags plus its expression, counted in tags, as if no other pull shared it."""
        return len(self.tags) + (0 if self.matcher is None else self.matcher.weight)


class _Queue(Generic[C, P]):
    """The pulls that wait for one queue.

    Dictionaries serve as ordered sets: a hundred thousand pulls may wait here, and taking one out
    must not look at the others.
    """

    __slots__ = ("_by_matcher", "_by_tag", "_count", "_greedy")

    def __init__(self) -> None:
        self._greedy: dict[Held[C, P], None] = {}
        self._by_tag: dict[int, dict[Held[C, P], None]] = {}
        self._by_matcher: dict[Matcher, dict[Held[C, P], None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, held: Held[C, P]) -> None:
        self._count += 1
        if held.matcher is not None:
            self._by_matcher.setdefault(held.matcher, {})[held] = None
        elif not held.tags:
            self._greedy[held] = None
        else:
            for tag in held.tags:
                self._by_tag.setdefault(tag, {})[held] = None

    def remove(self, held: Held[C, P]) -> bool:
        """Take a pull out; return whether it was there."""
        if held.matcher is not None:
            found = _discard(self._by_matcher, held.matcher, held)
        elif not held.tags:
            found = held in self._greedy
            self._greedy.pop(held, None)
        else:
            found = False
            for tag in held.tags:
                found = _discard(self._by_tag, tag, held)
        self._count -= found
        return found

    def everybody(self) -> list[Held[C, P]]:
        found = dict(self._greedy)
        for waiting in (*self._by_tag.values(), *self._by_matcher.values()):
            found.update(waiting)
        return list(found)

    def wanting(
        self, tags_codes: Iterable[int], records: Callable[[], Iterable[memoryview]]
    ) -> list[Held[C, P]]:
        """Return the pulls that want one of the arrived messages."""
        found = dict(self._greedy)
        for code in set(tags_codes):
            found.update(self._by_tag.get(code, {}))
        if self._by_matcher:
            arrived = list(records())
            spent = 0
            for matcher, waiting in self._by_matcher.items():
                for record in arrived:
                    # Too dear from here on: the pulls are run again, and match records themselves.
                    wanted, work = matcher.matches(record) if spent <= WORK_MAX else (True, 0)
                    spent += work
                    if wanted:
                        found.update(waiting)
                        break
        return list(found)


class LongPolls(Generic[C, P]):
    """The waiting pulls of a broker. Owned by the loop.

    Args:
        resume: Called with each pull that is to be run again; it is not held any more by then.
        turns: Where those that are to be run again wait for their turn.
    """

    def __init__(self, *, resume: Callable[[Held[C, P]], None], turns: Turns | None = None) -> None:
        self._resume = resume
        self._turns = Turns() if turns is None else turns
        self._loop = asyncio.get_running_loop()
        self._by_queue: dict[tuple[str, int], _Queue[C, P]] = {}
        self._by_connection: dict[C, set[Held[C, P]]] = {}
        self._woken: OrderedDict[C, deque[Held[C, P]]] = OrderedDict()
        self._weights: dict[C, int] = {}
        self._matchers: dict[Matcher, int] = {}
        self._count = 0
        self.tag_count = 0
        """Tags, and expressions in their measure, that are waited for: most of the memory."""

    def __len__(self) -> int:
        return self._count

    def count_of(self, connection: C) -> int:
        """Return how many pulls of one connection wait."""
        return len(self._by_connection.get(connection, ()))

    def weight_of(self, connection: C) -> int:
        """Return what the pulls of one connection weigh, by their tags and expressions."""
        return self._weights.get(connection, 0)

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
        matcher: Matcher | None = None,
    ) -> None:
        """Hold a pull on the queue ``key`` for ``seconds`` at most."""
        held = Held(connection, key, payload, tags=tags, matcher=matcher)
        held.timer = self._loop.call_later(seconds, self._time_over, held)
        self._by_queue.setdefault(key, _Queue()).add(held)
        self._by_connection.setdefault(connection, set()).add(held)
        self._count += 1
        self.tag_count += len(tags)
        if held.weight:
            self._weights[connection] = self._weights.get(connection, 0) + held.weight
        if matcher is not None:
            uses = self._matchers.get(matcher, 0)
            self._matchers[matcher] = uses + 1
            self.tag_count += 1 if uses else matcher.weight

    def arrived(
        self,
        key: tuple[str, int],
        tags_codes: Iterable[int],
        records: Callable[[], Iterable[memoryview]] = lambda: (),
    ) -> None:
        """Have those pulls on ``key`` run again that want one of the arrived messages.

        :meth:`go_on` runs them, when all arrivals are told.

        Args:
            key: The queue.
            tags_codes: The tags codes of the messages.
            records: Returns their records; called only if a pull waits with an expression.
        """
        queue = self._by_queue.get(key)
        if queue is None:
            return
        woken = queue.wanting(tags_codes, records)
        # All out before any runs: one that is parked again meanwhile waits for the next arrival.
        for held in woken:
            queue.remove(held)
        if not queue:
            del self._by_queue[key]
        self._line_up(woken)

    def wake(self, key: tuple[str, int]) -> None:
        """Run every pull on the queue ``key`` again."""
        queue = self._by_queue.pop(key, None)
        if queue is not None:
            self._line_up(queue.everybody())
            self.go_on()

    def wake_all(self) -> None:
        """Run every held pull again, now: the broker stops."""
        for mine in list(self._by_connection.values()):
            for held in list(mine):
                self._time_over(held)

    def go_on(self) -> None:
        """Run again what was woken, for a moment; what is left is run in later turns."""
        woken = self._woken
        deadline = monotonic() + BUDGET_SECONDS
        while woken:
            connection, mine = woken.popitem(last=False)
            held = mine.popleft()
            if mine:
                woken[connection] = mine
            self._release(held)
            if monotonic() > deadline:
                if woken:
                    self._turns.add(self)
                return

    def _line_up(self, woken: Iterable[Held[C, P]]) -> None:
        for held in woken:
            mine = self._woken.get(held.connection)
            if mine is None:
                mine = self._woken[held.connection] = deque()
            mine.append(held)

    def drop(self, connection: C) -> None:
        """Forget the pulls of a connection that is gone."""
        self._woken.pop(connection, None)
        for held in self._by_connection.pop(connection, ()):
            self._forget(held)
            self._remove_from_queue(held)

    def _release(self, held: Held[C, P]) -> None:
        mine = self._by_connection.get(held.connection)
        if mine is None or held not in mine:
            return  # its connection was lost while others ran
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
        if held.weight:
            self._weights[held.connection] -= held.weight
            if not self._weights[held.connection]:
                del self._weights[held.connection]
        if held.matcher is not None:
            uses = self._matchers.pop(held.matcher) - 1
            self.tag_count -= 1 if uses else held.matcher.weight
            if uses:
                self._matchers[held.matcher] = uses
        assert held.timer is not None
        held.timer.cancel()

    def _remove_from_queue(self, held: Held[C, P]) -> None:
        queue = self._by_queue.get(held.key)
        if queue is not None and queue.remove(held) and not queue:
            del self._by_queue[held.key]


K = TypeVar("K")


def _discard(table: dict[K, dict[Held[C, P], None]], key: K, held: Held[C, P]) -> bool:
    waiting = table.get(key)
    if waiting is None or held not in waiting:
        return False
    del waiting[held]
    if not waiting:
        del table[key]
    return True
