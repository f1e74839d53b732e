"""Long polling: pulls that found nothing wait here for the next message or their time.

Waiting pulls lie under their queue by what they want: everything, some tags, or what an expression
lets through. An arrival looks at those that want it, and at each distinct expression once, however
many pulls wait with it; nothing scans. Each pull is run again at most once more: by an arrival that
it wants, or when its time is over.

**Who resumes whom when a message arrives.** The store tells of messages that became visible while a
commit is under way. Nothing is resumed there: this table, and that of pops
(``server.popping.holds``), only note who is woken, and ask ``transport.turns`` to be called in
the next iteration of the loop, when the commit is over and its sends are answered. Pulls go first,
then pops. A hundred thousand may want the same message: each table works for a moment per iteration
and lets others in between. Of pulls, the connections take turns, so that whoever waits with one
pull is not behind somebody's thousands; the pulls of one connection are answered in the order in
which they were woken.

A waiter is whoever wants the answer of a held pull: a connection, or a caller in this process.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from time import monotonic
from typing import Final, NamedTuple, Protocol, TypeVar

from rocketpost.broker.filter.matching import WORK_MAX, Matcher
from rocketpost.broker.pull.service import PullAnswer, PullHold
from rocketpost.codec.faults import SystemBusy
from rocketpost.model.ids import Position
from rocketpost.server.settings.limits import share
from rocketpost.store.draft import Appended
from rocketpost.transport.turns import BUDGET_SECONDS, Turns

HELD_TAGS_MAX: Final = 1_000_000
"""Tags, and expressions counted in tags, of all pulls that wait."""

Queue = tuple[str, int]
"""Topic and number of a queue."""


class HeldLimits(NamedTuple):
    """Bounds on pulls that wait."""

    count_max: int
    of_one_max: int = 16_384
    """Pulls that one owner may have waiting."""


class Waiter(Protocol):
    """Whoever wants the answer of a held pull."""

    @property
    def owner(self) -> Hashable:
        """Whose share of the waiting pulls it counts against: a connection, or another client."""
        ...

    def resume(self, answer: PullAnswer, /) -> None:
        """Take the answer."""
        ...

    def refuse(self, error: Exception, /) -> None:
        """Take the reason why there is no answer."""
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

    Dictionaries serve as ordered sets: a hundred thousand pulls may wait here, and taking one out
    must not look at the others.
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
        """Take a pull out; return whether it was there."""
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

    def wanting(
        self, tags_codes: Iterable[int], records: Callable[[], Iterable[memoryview]]
    ) -> list[Held]:
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


class LongPolls:
    """The waiting pulls of a broker. Owned by the loop.

    Args:
        resume: Runs a pull again; it is not held any more by then.
        view: Returns a record of the log, None if it is gone.
        limits: Returns the bounds in force.
        turns: Where those that are to be run again wait for their turn.
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
        self._by_owner: dict[Hashable, set[Held]] = {}
        self._woken: OrderedDict[Hashable, deque[Held]] = OrderedDict()
        self._weights: dict[Hashable, int] = {}
        self._matchers: dict[Matcher, int] = {}
        self._count = 0
        self.tag_count = 0
        """Tags, and expressions in their measure, that are waited for: most of the memory."""

    def __len__(self) -> int:
        return self._count

    def count_of(self, owner: Hashable) -> int:
        """Return how many pulls of one owner wait."""
        return len(self._by_owner.get(owner, ()))

    def weight_of(self, owner: Hashable) -> int:
        """Return what the pulls of one owner weigh, by their tags and expressions."""
        return self._weights.get(owner, 0)

    def park(self, waiter: Waiter, hold: PullHold) -> Held:
        """Hold a pull until its queue has something for it, or its time is over.

        Raises:
            SystemBusy: Too many wait already.
        """
        owner = waiter.owner
        weight = hold.weight
        self._check_room(owner, weight)
        hold.request.subscription = hold.request.expression_type = None  # may be long; read by now
        held = Held(waiter, owner, hold, weight)
        held.timer = self._loop.call_later(hold.seconds, self._time_over, held)
        queue = self._by_queue.get(held.queue)
        if queue is None:
            queue = self._by_queue[held.queue] = _QueuePolls()
        queue.add(held)
        mine = self._by_owner.get(owner)
        if mine is None:
            mine = self._by_owner[owner] = set()
        mine.add(held)
        self._count += 1
        self.tag_count += len(hold.tags)
        if weight:
            self._weights[owner] = self._weights.get(owner, 0) + weight
        if hold.matcher is not None:
            uses = self._matchers.get(hold.matcher, 0)
            self._matchers[hold.matcher] = uses + 1
            self.tag_count += 1 if uses else hold.matcher.weight
        return held

    def arrived(self, messages: Sequence[Appended]) -> None:
        """Have those pulls run again, soon, that want any of these messages."""
        queues = self._by_queue
        if not queues:
            return
        arrivals: dict[Queue, list[Appended]] = {}
        for message in messages:
            key = (message.topic, message.queue_id)
            if key in queues:
                arrivals.setdefault(key, []).append(message)
        for key, fresh in arrivals.items():
            self._wake_wanting(key, fresh)

    def wake(self, topic: str, queue_id: int) -> None:
        """Run every pull on a queue again, soon: its consumers are to go on elsewhere."""
        queue = self._by_queue.pop((topic, queue_id), None)
        if queue is not None:
            self._line_up(queue.everybody())

    def close(self) -> None:
        """Run every held pull again, now: the broker stops."""
        for mine in list(self._by_owner.values()):
            for held in list(mine):
                self._time_over(held)

    def go_on(self) -> None:
        """Run again what was woken, for a moment; what is left is run in later turns."""
        woken = self._woken
        deadline = monotonic() + BUDGET_SECONDS
        while woken:
            owner, mine = woken.popitem(last=False)
            held = mine.popleft()
            if mine:
                woken[owner] = mine
            self._release(held)
            if monotonic() > deadline:
                if woken:
                    self._turns.add(self)
                return

    def drop(self, owner: Hashable) -> None:
        """Forget the pulls of an owner that is gone."""
        self._woken.pop(owner, None)
        for held in self._by_owner.pop(owner, ()):
            self._forget(held)
            self._remove_from_queue(held)

    def cancel(self, held: Held) -> None:
        """Forget one pull, if it still waits: nobody wants its answer any more."""
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

    def _wake_wanting(self, key: Queue, messages: list[Appended]) -> None:
        def records() -> list[memoryview]:
            views = (self._view(message.position, message.size) for message in messages)
            return [view for view in views if view is not None]

        queue = self._by_queue[key]
        woken = queue.wanting({message.tags_code for message in messages}, records)
        # All out before any runs: one that is parked again meanwhile waits for the next arrival.
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
            # One pull that fails must not keep the others from their answers.
            held.waiter.refuse(error)

    def _time_over(self, held: Held) -> None:
        self._remove_from_queue(held)
        self._release(held)

    def _take_out(self, held: Held) -> bool:
        """Forget a pull; return whether it still waited."""
        mine = self._by_owner.get(held.owner)
        if mine is None or held not in mine:
            return False
        mine.discard(held)
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
