"""Whether a group of consumers did what it promises, judged from its journal.

- Every message that was acknowledged to its producer is handled at least once.
- What is handled more than once is bounded by what was in flight, for each member and queue from
  the moment the queue became its own. It goes on where its group's offset is stored, and that is at
  most a window behind what was begun: fetching rests at ``cached_span_max`` (in order:
  ``cached_count_max``), each pull brings ``pull_count_max`` more and stores the offset on its way.
  So it may repeat one window, and another when it was frozen and goes on. Members that both believe
  that a queue is theirs may each repeat what the other begins meanwhile. A broker that dies forgets
  the offsets that it had not saved: what was begun beyond the saved one may come again.
- In an orderly group no message is begun before all that lie before it in its queue were, nor one
  of a sharding key before an older one; and nobody begins with a queue's message while another
  member that is neither dead nor frozen is at work on that queue. One begin is excused: a member
  may be frozen after it looked at its lock and before its handler wrote its line. Then that line is
  the next that it writes; if its handlers run in threads, the next of that queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rocketpost.model.names import RETRY_PREFIX
from rocketpost.testing import journal as words
from rocketpost.testing.journal import Entry, Handled, Share


@dataclass(slots=True)
class _Account:
    """What one member repeated of a queue since it got it, and what may be."""

    allowed: int
    repeats: int = 0


@dataclass(slots=True)
class _Queue:
    """What is known of one queue."""

    begun: set[int] = field(default_factory=set)
    top: int = -1
    """The highest offset that was begun."""
    failed: set[int] = field(default_factory=set)
    """Offsets whose last call raised: they come again by right."""
    owners: dict[str, _Account] = field(default_factory=dict)
    """Members that believe it is theirs."""
    forgotten: int = 0
    """Messages begun beyond the offset that a dead broker had saved, until somebody goes on."""
    busy: dict[str, int] = field(default_factory=dict)
    """Members at work on it, by offset."""
    begins: int = 0
    repeats: int = 0
    changes: int = 0


class Handling:
    """Follows a journal. A violation is kept in :attr:`violations` when it is noticed.

    Args:
        orderly: Whether the group handles its queues in order.
        window: Messages of a queue that may be begun beyond the group's stored offset.
    """

    def __init__(self, *, orderly: bool, window: int) -> None:
        self._orderly = orderly
        self._window = window
        self._queues: dict[str, _Queue] = {}
        self._shares: dict[tuple[str, str], Share] = {}
        self._absent: set[str] = set()
        self._threaded: set[str] = set()
        self._late: dict[str, set[str]] = {}
        """Queues of which a member that goes on may have been about to begin a message."""
        self._keys: dict[str, int] = {}
        self.done: Counter[int] = Counter()
        """How often each message was handled to its end."""
        self.failures = 0
        self.most_repeated = 0
        """Most repeats of one member in one queue between two changes of hands."""
        self.violations: list[str] = []
        self.entries: list[Entry] = []

    # What the journal says.

    def take(self, entries: Iterable[Entry]) -> None:
        """Follow some more lines."""
        for entry in entries:
            self.entries.append(entry)
            match entry.what:
                case words.BEGIN:
                    self._begin(entry.who, Handled.of(entry))
                case words.JOINED if words.THREADS in entry.words:
                    self._threaded.add(entry.who)
                case words.DONE | words.FAIL:
                    self._end(entry.who, Handled.of(entry), failed=entry.what == words.FAIL)
                case words.SHARE:
                    self._share(entry.who, Share.of(entry))
                case words.KILLED | words.LEFT:
                    self._gone(entry.who)
                case words.FROZEN:
                    self._absent.add(entry.who)
                case words.THAWED:
                    self._back(entry.who)
            self._wrote(entry)

    def broker_died(self, saved: Mapping[str, int]) -> None:
        """Note that a broker is dead and has these offsets on disk."""
        for name, queue in self._queues.items():
            queue.forgotten = max(0, queue.top + 1 - saved.get(name, 0))
            for account in queue.owners.values():
                account.allowed += queue.forgotten + self._window

    # What follows from it.

    @property
    def begins(self) -> int:
        """How often a handler was called."""
        return sum(queue.begins for queue in self._queues.values())

    @property
    def repeats(self) -> int:
        """How often it was called with a message that had been begun before, failures apart."""
        return sum(queue.repeats for queue in self._queues.values())

    @property
    def changes(self) -> int:
        """How often a queue changed hands."""
        return sum(queue.changes for queue in self._queues.values())

    def owned(self, topic: str) -> dict[str, frozenset[str]]:
        """Return the last share of each member that is neither dead nor frozen."""
        return {
            who: share.queues
            for (who, each), share in self._shares.items()
            if each == topic and who not in self._absent
        }

    def believed(self, who: str, topic: str) -> Share | None:
        """Return the last share of a member, whatever became of it."""
        return self._shares.get((who, topic))

    def begun_since(self, start: int, *, but: str = "") -> set[str]:
        """Return the queues with which somebody (but one) began after the entry ``start``."""
        return {
            entry.words[0]
            for entry in self.entries[start:]
            if entry.what == words.BEGIN and entry.who != but
        }

    def check(self, acknowledged: Iterable[int]) -> None:
        """Check that everything acknowledged was handled, and no queue repeated too much."""
        if missing := sorted(set(acknowledged) - self.done.keys()):
            self.violations.append(
                f"{len(missing)} acknowledged messages were not handled: {missing[:10]}"
            )
        for name, queue in self._queues.items():
            for who, account in queue.owners.items():
                self._close(who, name, account)

    # Inside.

    def _queue(self, name: str) -> _Queue:
        return self._queues.setdefault(name, _Queue())

    def _begin(self, who: str, handled: Handled) -> None:
        name, offset, number, key = handled
        queue = self._queue(name)
        queue.begins += 1
        if offset not in queue.begun:
            self._went_on(who, queue, offset)
        elif offset in queue.failed:
            queue.failed.discard(offset)
        else:
            queue.repeats += 1
            if who in queue.owners:
                queue.owners[who].repeats += 1
        if self._orderly:
            self._check_order(who, queue, handled)
            if offset > queue.top and not name.startswith(RETRY_PREFIX):
                before = self._keys.get(key, 0)
                if key != "-" and number < before:
                    self.violations.append(f"{key}: message {number} was begun after {before}")
                self._keys[key] = max(number, before)
        queue.begun.add(offset)
        queue.top = max(queue.top, offset)
        if not self._is_late(who, name):
            queue.busy[who] = offset

    def _went_on(self, who: str, queue: _Queue, offset: int) -> None:
        if offset > queue.top:
            queue.forgotten = 0
        for other, account in queue.owners.items():
            if other != who and other not in self._absent:
                account.allowed += 1

    def _check_order(self, who: str, queue: _Queue, handled: Handled) -> None:
        name, offset, _, _ = handled
        if offset > queue.top + 1:
            self.violations.append(f"{name}: {who} began {offset} when {queue.top} was the last")
        met = [each for each in queue.busy if each != who and each not in self._absent]
        if met and not self._is_late(who, name):
            self.violations.append(
                f"{name}: {who} began {offset} while {met[0]} was at {queue.busy[met[0]]}"
            )

    def _end(self, who: str, handled: Handled, *, failed: bool) -> None:
        queue = self._queue(handled.queue)
        queue.busy.pop(who, None)
        if not failed:
            self.done[handled.number] += 1
            return
        self.failures += 1
        if self._orderly:
            queue.failed.add(handled.offset)

    def _share(self, who: str, share: Share) -> None:
        known = self._shares.get((who, share.topic))
        before = known.queues if known is not None else frozenset()
        self._shares[who, share.topic] = share
        for name in share.queues - before:
            self._gained(who, name)
        for name in before - share.queues:
            self._lost(who, name)

    def _gained(self, who: str, name: str) -> None:
        queue = self._queue(name)
        allowed = self._window + queue.forgotten if queue.begins else 0
        queue.changes += bool(queue.begins)
        queue.owners[who] = _Account(allowed)

    def _lost(self, who: str, name: str) -> None:
        account = self._queue(name).owners.pop(who, None)
        if account is not None:
            self._close(who, name, account)

    def _close(self, who: str, name: str, account: _Account) -> None:
        self.most_repeated = max(self.most_repeated, account.repeats)
        if account.repeats > account.allowed:
            self.violations.append(
                f"{name}: {who} repeated {account.repeats} messages since it got the queue, "
                f"but only {account.allowed} were in flight"
            )

    def _gone(self, who: str) -> None:
        self._absent.add(who)
        for name, queue in self._queues.items():
            queue.busy.pop(who, None)
            self._lost(who, name)

    def _is_late(self, who: str, name: str) -> bool:
        """Tell whether a member may have looked at the lock of a queue before it was frozen."""
        return name in self._late.get(who, ())

    def _wrote(self, entry: Entry) -> None:
        late = self._late.get(entry.who)
        if late is None or entry.what == words.THAWED:
            return
        if entry.who not in self._threaded:
            late.clear()  # it was at one place of its program, and that is behind it
        elif entry.what in (words.BEGIN, words.DONE, words.FAIL):
            late.discard(entry.words[0])

    def _back(self, who: str) -> None:
        self._absent.discard(who)
        self._late[who] = {
            name
            for name, queue in self._queues.items()
            if who in queue.owners and who not in queue.busy
        }
        for name, queue in self._queues.items():
            queue.busy.pop(who, None)  # what it was at when it froze may have been begun by others
            account = queue.owners.get(who)
            if account is not None:
                self._close(who, name, account)
                queue.owners[who] = _Account(self._window + queue.forgotten)
                queue.changes += 1
