"""Long polling: pulls that found no message wait here until one arrives or their time is over.

Each queue keeps its waiting pulls by filter: every message, some tags, or an expression. An arrival
wakes only the pulls that want it, and evaluates each distinct expression once, however many pulls
wait with it. The waiting pulls are never scanned. A held pull is run again at most once: after an
arrival that it wants, or when its time is over.

**Order of resumed pulls.** The log writer reports messages that became visible while it still works
on a commit. Nothing is resumed at that point: this table, and that of pops
(``server.popping.holds``), only record the woken requests. They ask ``transport.turns`` to be
called in the next iteration of the loop, when the commit is over and its sends are answered. Pulls
go first, then pops. A hundred thousand pulls may want the same message, so each table works for a
moment in each iteration and lets other work run in between. Connections take turns, so that a
connection with one pull does not wait for the thousands of another. The pulls of one connection are
answered in the order in which they were woken.

A waiter is the receiver of the answer to a held pull: a connection, or a caller in this process.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

from rocketpost.broker.filter.matching import WORK_MAX, Matcher
from rocketpost.broker.pull.service import PullAnswer, PullHold
from rocketpost.codec.faults import SystemBusy
from rocketpost.model.ids import Position
from rocketpost.server.access.gate import Gate
from rocketpost.server.settings.limits import share
from rocketpost.store.dispatch.arrival import Arrival
from rocketpost.transport.turns import BUDGET_SECONDS, Turns

HELD_TAGS_MAX: Final = 1_000_000
"""Most tags, and expressions counted as tags, of all waiting pulls."""

Queue = tuple[str, int]
"""Topic and number of a queue."""


class HeldLimits(NamedTuple):
    """Limits on waiting pulls."""

    count_max: int
    of_one_max: int = 16_384
    """Most waiting pulls of one owner."""


class Waiter(Protocol):
    """The receiver of the answer to a held pull."""

    @property
    def owner(self) -> Hashable:
        """The connection or other client in whose share of waiting pulls it counts."""
        ...

    def resume(self, answer: PullAnswer, /) -> None:
        """Receive the answer."""
        ...

    def refuse(self, error: Exception, /) -> None:
        """Receive the reason why there is no answer."""
        ...

    def lost_right(self, gate: Gate, /) -> Exception | None:
        """Return the reason if the client has lost the right to wait."""
        ...


class Held:
    """One waiting pull."""

    __slots__ = ("hold", "owner", "queue", "timer", "waiter", "weight")

    def __init__(self, waiter: Waiter, owner: Hashable, hold: PullHold, weight: int) -> None:
        self.waiter = waiter
        self.owner = owner
        self.hold = hold
        self.queue = hold.queue
        self.weight = weight
        self.timer: asyncio.TimerHandle | None = None


class _QueuePolls:
    """The pulls that wait for one queue.

    Dictionaries serve as ordered sets: a hundred thousand pulls may wait here, and removing one
    must not search the others.
    """

    __slots__ = ("_by_matcher", "_by_tag", "_count", "_greedy")

    def __init__(self) -> None:
        self._greedy: dict[Held, None] = {}
        self._by_tag: dict[int, dict[Held, None]] = {}
        self._by_matcher: dict[Matcher, dict[Held, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, held: Held) -> None:
        self._count += 1
        hold = held.hold
        if hold.matcher is not None:
            self._by_matcher.setdefault(hold.matcher, {})[held] = None
        elif not hold.tags:
            self._greedy[held] = None
        else:
            for tag in hold.tags:
                self._by_tag.setdefault(tag, {})[held] = None

    def remove(self, held: Held) -> bool:
        """Remove a pull; return whether it was there."""
        hold = held.hold
        if hold.matcher is not None:
            found = _discard(self._by_matcher, hold.matcher, held)
        elif not hold.tags:
            found = held in self._greedy
            self._greedy.pop(held, None)
        else:
            found = False
            for tag in hold.tags:
                found = _discard(self._by_tag, tag, held)
        self._count -= found
        return found

    def everybody(self) -> list[Held]:
        found = dict(self._greedy)
        for waiting in (*self._by_tag.values(), *self._by_matcher.values()):
            found.update(waiting)
        return list(found)

    def wanting(self, arrival: Arrival, records: Callable[[], Iterable[memoryview]]) -> list[Held]:
        """Return the pulls that want one of the arrived messages."""
        found = dict(self._greedy)
        if self._by_tag:
            for code in {tags_code for _, _, tags_code in arrival.messages()}:
                found.update(self._by_tag.get(code, {}))
        if self._by_matcher:
            arrived = list(records())
            spent = 0
            for matcher, waiting in self._by_matcher.items():
                for record in arrived:
                    # Too expensive from here on: run the pulls again, which match records too.
                    wanted, work = matcher.matches(record) if spent <= WORK_MAX else (True, 0)
                    spent += work
                    if wanted:
                        found.update(waiting)
                        break
        return list(found)


class LongPolls:
    """The waiting pulls of a broker. Owned by the loop.

    Args:
        resume: Runs a pull again; it is no longer held by then.
        view: Returns a record of the log, None if it was deleted.
        limits: Returns the limits in force.
        turns: The queue in which woken pulls wait for their turn.
    """

    def __init__(
        self,
        *,
        resume: Callable[[PullHold], PullAnswer],
        view: Callable[[Position, int], memoryview | None],
        limits: Callable[[], HeldLimits],
        turns: Turns | None = None,
    ) -> None:
        self._resume = resume
        self._view = view
        self._limits = limits
        self._turns = Turns() if turns is None else turns
        self._loop = asyncio.get_running_loop()
        self._by_queue: dict[Queue, _QueuePolls] = {}
        self._by_owner: dict[Hashable, dict[Held, None]] = {}
        self._woken: OrderedDict[Hashable, deque[Held]] = OrderedDict()
        self._weights: dict[Hashable, int] = {}
        self._matchers: dict[Matcher, int] = {}
        self._count = 0
        self.tag_count = 0
        """Tags, and expressions counted as tags, of all waiting pulls: most of the memory."""

    def __len__(self) -> int:
        return self._count

    def count_of(self, owner: Hashable) -> int:
        """Return the number of waiting pulls of one owner."""
        return len(self._by_owner.get(owner, ()))

    def weight_of(self, owner: Hashable) -> int:
        """Return the weight of one owner's pulls: their tags and expressions."""
        return self._weights.get(owner, 0)

    def park(self, waiter: Waiter, hold: PullHold) -> Held:
        """Hold a pull until its queue has a message for it, or its time is over.

        Raises:
            SystemBusy: Too many pulls wait already.
        """
        owner = waiter.owner
        weight = hold.weight
        self._check_room(owner, weight)
        hold.request.subscription = hold.request.expression_type = None  # may be long; unneeded now
        held = Held(waiter, owner, hold, weight)
        held.timer = self._loop.call_later(hold.seconds, self._time_over, held)
        queue = self._by_queue.get(held.queue)
        if queue is None:
            queue = self._by_queue[held.queue] = _QueuePolls()
        queue.add(held)
        mine = self._by_owner.get(owner)
        if mine is None:
            mine = self._by_owner[owner] = {}
        mine[held] = None
        self._count += 1
        self.tag_count += len(hold.tags)
        if weight:
            self._weights[owner] = self._weights.get(owner, 0) + weight
        if hold.matcher is not None:
            uses = self._matchers.get(hold.matcher, 0)
            self._matchers[hold.matcher] = uses + 1
            self.tag_count += 1 if uses else hold.matcher.weight
        return held

    def note_arrivals(self, arrivals: Iterable[Arrival]) -> None:
        """Wake the pulls that want one of these messages; they run again soon."""
        queues = self._by_queue
        if not queues:
            return
        for arrival in arrivals:
            if (arrival.topic, arrival.queue_id) in queues:
                self._wake_wanting(arrival)

    def wake(self, topic: str, queue_id: int) -> None:
        """Wake every pull on a queue: its consumers get another offset."""
        queue = self._by_queue.pop((topic, queue_id), None)
        if queue is not None:
            self._line_up(queue.everybody())

    def wake_all(self) -> None:
        """Wake every pull: the master of this slave is back."""
        woken = [held for queue in self._by_queue.values() for held in queue.everybody()]
        self._by_queue.clear()
        self._line_up(woken)

    def end_denied(self, gate: Gate) -> None:
        """Refuse the pulls whose users have lost their rights."""
        for held in [held for mine in self._by_owner.values() for held in mine]:
            problem = held.waiter.lost_right(gate)
            if problem is not None:
                self.cancel(held)
                held.waiter.refuse(problem)

    def close(self) -> None:
        """Run every held pull again now, the oldest of a connection first: the broker stops."""
        for mine in list(self._by_owner.values()):
            for held in list(mine):
                self._time_over(held)

    def go_on(self) -> None:
        """Run woken pulls again for a moment; run the others in later loop iterations."""
        woken = self._woken
        deadline = time.monotonic() + BUDGET_SECONDS
        while woken:
            owner, mine = woken.popitem(last=False)
            held = mine.popleft()
            if mine:
                woken[owner] = mine
            self._release(held)
            if time.monotonic() > deadline:
                if woken:
                    self._turns.add(self)
                return

    def drop(self, owner: Hashable) -> None:
        """Drop the pulls of a lost owner."""
        self._woken.pop(owner, None)
        for held in self._by_owner.pop(owner, ()):
            self._forget(held)
            self._remove_from_queue(held)

    def cancel(self, held: Held) -> None:
        """Drop one pull, if it still waits, without an answer."""
        self._remove_from_queue(held)
        self._take_out(held)

    def _check_room(self, owner: Hashable, weight: int) -> None:
        limits = self._limits()
        if self._count >= limits.count_max or self.tag_count + weight > HELD_TAGS_MAX:
            raise SystemBusy(f"[OVERLOAD]{self._count} pulls wait already; try again later")
        mine = self.count_of(owner)
        is_greedy = mine >= share(self._count, limits.count_max, limits.of_one_max)
        if weight and not is_greedy:
            most = share(self.tag_count, HELD_TAGS_MAX, HELD_TAGS_MAX)
            is_greedy = self.weight_of(owner) + weight > most
        if is_greedy:
            raise SystemBusy(
                f"[OVERLOAD]{mine} pulls of this connection wait already; try again later, or "
                "spread them over more connections"
            )

    def _wake_wanting(self, arrival: Arrival) -> None:
        def records() -> list[memoryview]:
            views = [self._view(Position(at), size) for at, size, _ in arrival.messages()]
            return [view for view in views if view is not None]

        key = (arrival.topic, arrival.queue_id)
        queue = self._by_queue[key]
        woken = queue.wanting(arrival, records)
        # Remove all before any runs: a pull that is parked again waits for the next arrival.
        for held in woken:
            queue.remove(held)
        if not queue:
            del self._by_queue[key]
        self._line_up(woken)

    def _line_up(self, woken: list[Held]) -> None:
        for held in woken:
            mine = self._woken.get(held.owner)
            if mine is None:
                mine = self._woken[held.owner] = deque()
            mine.append(held)
        if woken:
            self._turns.wake(self)

    def _release(self, held: Held) -> None:
        if not self._take_out(held):
            return  # its connection was lost while others ran, or its time ended
        try:
            held.waiter.resume(self._resume(held.hold))
        except Exception as error:
            # One failed pull must not stop the answers to the others.
            held.waiter.refuse(error)

    def _time_over(self, held: Held) -> None:
        self._remove_from_queue(held)
        self._release(held)

    def _take_out(self, held: Held) -> bool:
        """Remove a pull; return whether it still waited."""
        mine = self._by_owner.get(held.owner)
        if mine is None or held not in mine:
            return False
        del mine[held]
        if not mine:
            del self._by_owner[held.owner]
        self._forget(held)
        return True

    def _forget(self, held: Held) -> None:
        hold = held.hold
        self._count -= 1
        self.tag_count -= len(hold.tags)
        if held.weight:
            self._weights[held.owner] -= held.weight
            if not self._weights[held.owner]:
                del self._weights[held.owner]
        if hold.matcher is not None:
            uses = self._matchers.pop(hold.matcher) - 1
            self.tag_count -= 1 if uses else hold.matcher.weight
            if uses:
                self._matchers[hold.matcher] = uses
        assert held.timer is not None
        held.timer.cancel()

    def _remove_from_queue(self, held: Held) -> None:
        queue = self._by_queue.get(held.queue)
        if queue is not None and queue.remove(held) and not queue:
            del self._by_queue[held.queue]


K = TypeVar("K")


def _discard(table: dict[K, dict[Held, None]], key: K, held: Held) -> bool:
    waiting = table.get(key)
    if waiting is None or held not in waiting:
        return False
    del waiting[held]
    if not waiting:
        del table[key]
    return True
