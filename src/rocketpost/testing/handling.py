"""Checks of the promises of a consumer group, by its journal.

- Every message that was acknowledged to its producer is handled at least once.
- Repeated handling is bounded by the messages in flight, per member and queue from the moment the
  member gets the queue. It continues from the group's stored offset, which is at most one window
  behind the messages begun: fetching pauses at ``cached_span_max`` (orderly groups:
  ``cached_count_max``), and each pull brings ``pull_count_max`` more and stores the offset. So a
  member may repeat one window, and another one after it was frozen. Two members that both believe
  they own a queue may each repeat what the other begins meanwhile. A broker that dies loses the
  offsets that it had not saved: messages begun beyond the saved offset may be repeated.
- In an orderly group no message is begun before all earlier ones in its queue, nor before an older
  one of its sharding key; and no member begins a message of a queue while another member, neither
  dead nor frozen, is at work on that queue. One begin is excused: a member may be frozen after it
  checked its lock and before its handler wrote its line. Then that line is the next one that it
  writes; if its handlers run in threads, the next one of that queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rocketpost.model.names import RETRY_PREFIX
from rocketpost.testing import journal as words
from rocketpost.testing.journal import Entry, HandlerEntry, ShareEntry


@dataclass(slots=True)
class _Account:
    """The repeats of one member in a queue since it got it, and their bound."""

    allowed: int
    repeats: int = 0


@dataclass(slots=True)
class _Queue:
    """The state of one queue."""

    begun: set[int] = field(default_factory=set)
    top: int = -1
    """The highest offset begun."""
    failed: set[int] = field(default_factory=set)
    """Offsets whose last call raised: their repetition is allowed."""
    owners: dict[str, _Account] = field(default_factory=dict)
    """Members that believe they own it."""
    forgotten: int = 0
    """Messages begun beyond the saved offset of a dead broker, until a member continues."""
    busy: dict[str, int] = field(default_factory=dict)
    """Members at work on it, by offset."""
    begins: int = 0
    repeats: int = 0
    changes: int = 0


class HandlingCheck:
    """Follows a journal and collects :attr:`violations`.

    Args:
        orderly: Whether the group handles its queues in order.
        window: Maximum of messages begun beyond the group's stored offset, per queue.
    """

    def __init__(self, *, orderly: bool, window: int) -> None:
        self._orderly = orderly
        self._window = window
        self._queues: dict[str, _Queue] = {}
        self._shares: dict[tuple[str, str], ShareEntry] = {}
        self._absent: set[str] = set()
        self._threaded: set[str] = set()
        self._late: dict[str, set[str]] = {}
        """Queues of which a resumed member may have been about to begin a message."""
        self._keys: dict[str, int] = {}
        self.done: Counter[int] = Counter()
        """Number of completed calls per message."""
        self.failures = 0
        self.most_repeated = 0
        """Maximum of repeats by one member in one queue between two changes of its owner."""
        self.violations: list[str] = []
        self.entries: list[Entry] = []

    # Input.

    def take(self, entries: Iterable[Entry]) -> None:
        """Process further lines."""
        for entry in entries:
            self.entries.append(entry)
            match entry.what:
                case words.BEGIN:
                    self._begin(entry.who, HandlerEntry.of(entry))
                case words.JOINED if words.THREADS in entry.words:
                    self._threaded.add(entry.who)
                case words.DONE | words.FAIL:
                    self._end(entry.who, HandlerEntry.of(entry), failed=entry.what == words.FAIL)
                case words.SHARE:
                    self._share(entry.who, ShareEntry.of(entry))
                case words.KILLED | words.LEFT:
                    self._remove_member(entry.who)
                case words.FROZEN:
                    self._absent.add(entry.who)
                case words.THAWED:
                    self._resume_member(entry.who)
            self._note_write(entry)

    def note_broker_death(self, saved: Mapping[str, int]) -> None:
        """Record that a broker died with these offsets on disk."""
        for name, queue in self._queues.items():
            queue.forgotten = max(0, queue.top + 1 - saved.get(name, 0))
            for account in queue.owners.values():
                account.allowed += queue.forgotten + self._window

    # Results.

    @property
    def begins(self) -> int:
        """The number of handler calls."""
        return sum(queue.begins for queue in self._queues.values())

    @property
    def repeats(self) -> int:
        """The number of calls with a message begun before, apart from failures."""
        return sum(queue.repeats for queue in self._queues.values())

    @property
    def changes(self) -> int:
        """The number of changes of queue owners."""
        return sum(queue.changes for queue in self._queues.values())

    def current_shares(self, topic: str) -> dict[str, frozenset[str]]:
        """Return the last share of each member that is neither dead nor frozen."""
        return {
            who: share.queues
            for (who, each), share in self._shares.items()
            if each == topic and who not in self._absent
        }

    def last_share(self, who: str, topic: str) -> ShareEntry | None:
        """Return the last share of a member, even of a dead or frozen one."""
        return self._shares.get((who, topic))

    def find_begun(self, start: int, *, but: str = "") -> set[str]:
        """Return the queues that a member other than ``but`` began after the entry ``start``."""
        return {
            entry.words[0]
            for entry in self.entries[start:]
            if entry.what == words.BEGIN and entry.who != but
        }

    def check(self, acknowledged: Iterable[int]) -> None:
        """Check that all acknowledged messages were handled, and none repeated too often."""
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

    def _begin(self, who: str, handled: HandlerEntry) -> None:
        name, offset, number, key = handled
        queue = self._queue(name)
        queue.begins += 1
        if offset not in queue.begun:
            self._continue_at(who, queue, offset)
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

    def _continue_at(self, who: str, queue: _Queue, offset: int) -> None:
        if offset > queue.top:
            queue.forgotten = 0
        for other, account in queue.owners.items():
            if other != who and other not in self._absent:
                account.allowed += 1

    def _check_order(self, who: str, queue: _Queue, handled: HandlerEntry) -> None:
        name, offset, _, _ = handled
        if offset > queue.top + 1:
            self.violations.append(f"{name}: {who} began {offset} when {queue.top} was the last")
        met = [each for each in queue.busy if each != who and each not in self._absent]
        if met and not self._is_late(who, name):
            self.violations.append(
                f"{name}: {who} began {offset} while {met[0]} was at {queue.busy[met[0]]}"
            )

    def _end(self, who: str, handled: HandlerEntry, *, failed: bool) -> None:
        queue = self._queue(handled.queue)
        queue.busy.pop(who, None)
        if not failed:
            self.done[handled.number] += 1
            return
        self.failures += 1
        if self._orderly:
            queue.failed.add(handled.offset)

    def _share(self, who: str, share: ShareEntry) -> None:
        known = self._shares.get((who, share.topic))
        before = known.queues if known is not None else frozenset()
        self._shares[who, share.topic] = share
        for name in share.queues - before:
            self._gain(who, name)
        for name in before - share.queues:
            self._lose(who, name)

    def _gain(self, who: str, name: str) -> None:
        queue = self._queue(name)
        allowed = self._window + queue.forgotten if queue.begins else 0
        queue.changes += bool(queue.begins)
        queue.owners[who] = _Account(allowed)

    def _lose(self, who: str, name: str) -> None:
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

    def _remove_member(self, who: str) -> None:
        self._absent.add(who)
        for name, queue in self._queues.items():
            queue.busy.pop(who, None)
            self._lose(who, name)

    def _is_late(self, who: str, name: str) -> bool:
        """Tell whether a member may have checked the lock of a queue before it was frozen."""
        return name in self._late.get(who, ())

    def _note_write(self, entry: Entry) -> None:
        late = self._late.get(entry.who)
        if late is None or entry.what == words.THAWED:
            return
        if entry.who not in self._threaded:
            late.clear()  # it was at one point of its program, which is past now
        elif entry.what in (words.BEGIN, words.DONE, words.FAIL):
            late.discard(entry.words[0])

    def _resume_member(self, who: str) -> None:
        self._absent.discard(who)
        self._late[who] = {
            name
            for name, queue in self._queues.items()
            if who in queue.owners and who not in queue.busy
        }
        for name, queue in self._queues.items():
            queue.busy.pop(who, None)  # others may have begun what it was handling when it froze
            account = queue.owners.get(who)
            if account is not None:
                self._close(who, name, account)
                queue.owners[who] = _Account(self._window + queue.forgotten)
                queue.changes += 1
