"""Any mixture of what consumers ask of a broker, against small models of what may happen.

The models are what a reader of RocketMQ's manual would write down: lists of messages, numbers of
offsets, who holds which lock until when. Locks and pending resets die with the process; offsets go
back to what was saved; messages stay. Offsets, locks and messages do not meet in the broker, so
each has a machine of its own, whose rules meet the more often.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketpost.broker.group.offsets import NO_OFFSET, OffsetTable
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.model.route import MessageQueue
from rocketpost.testing.clock import FakeClock

from .consume_world import (
    DEAD,
    DELAYS_MS,
    GROUP,
    LOCK_MS,
    OTHER,
    QUEUES,
    RETRY,
    RETRY_QUEUES,
    TOPIC,
    Copy,
    Place,
    World,
    copy_of,
)

pytestmark = pytest.mark.slow

PLACES = [
    *(Place(TOPIC, queue_id) for queue_id in range(QUEUES)),
    *(Place(RETRY, queue_id) for queue_id in range(RETRY_QUEUES)),
    Place(DEAD, 0),
]
MEMBERS = ["a", "b"]
LEVEL_MAX = len(DELAYS_MS)

some_place = st.sampled_from(PLACES)
FEW = PLACES[:QUEUES]
few_places = st.sampled_from(FEW)
some_member = st.sampled_from(MEMBERS)
some_group = st.sampled_from([GROUP, OTHER])


class Waiting(NamedTuple):
    """A message on its way to the retry topic."""

    due_ms: int
    level: int
    place: Place
    copy: Copy


class Holder(NamedTuple):
    """The owner of a lock. The epoch counts its changes of owner."""

    member: str
    until_ms: int
    epoch: int


class OffsetMachine(RuleBasedStateMachine):
    """Two groups that commit and are reset, on a broker that saves and dies."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.table = OffsetTable(clock=self.clock)
        self.offsets: dict[tuple[str, Place], int] = {}
        self.resets: dict[tuple[str, Place], int] = {}
        self.saved: dict[tuple[str, Place], int] = {}
        self.saved_resets: dict[tuple[str, Place], int] = {}
        self.text = self.table.to_json()

    @rule(place=few_places, group=some_group)
    def pull(self, place: Place, group: str) -> None:
        """A pending reset comes instead of messages, once."""
        reset = self.table.take_reset(place.topic, group, place.queue_id)
        assert reset == self.resets.pop((group, place), None)

    @rule(place=few_places, group=some_group, offset=st.integers(0, 6))
    def commit(self, place: Place, group: str, offset: int) -> None:
        taken = self.table.commit(place.topic, group, place.queue_id, offset)
        assert taken == ((group, place) not in self.resets)
        if taken:
            self.offsets[group, place] = offset

    @rule(place=few_places, group=some_group, offset=st.integers(0, 6))
    def reset(self, place: Place, group: str, offset: int) -> None:
        self.table.reset(place.topic, group, place.queue_id, offset)
        self.offsets[group, place] = self.resets[group, place] = offset

    @rule()
    def clone(self) -> None:
        """Let the other group go on where this one is. A pending reset of it is dropped."""
        self.table.clone(GROUP, OTHER, TOPIC)
        row = {p: n for (g, p), n in self.offsets.items() if g == GROUP and p.topic == TOPIC}
        if row:
            for place in FEW:
                if place.topic == TOPIC:
                    self.offsets.pop((OTHER, place), None)
                    self.resets.pop((OTHER, place), None)
            self.offsets.update({(OTHER, place): offset for place, offset in row.items()})

    @rule(group=some_group)
    def forget_group(self, group: str) -> None:
        self.table.forget_group(group)
        for table in (self.offsets, self.resets):
            for key in [key for key in table if key[0] == group]:
                del table[key]

    @rule()
    def save(self) -> None:
        self.text = self.table.to_json()
        self.saved, self.saved_resets = dict(self.offsets), dict(self.resets)

    @rule()
    def crash(self) -> None:
        self.table = OffsetTable(clock=self.clock)
        self.table.load(self.text)
        self.offsets, self.resets = dict(self.saved), dict(self.saved_resets)

    @invariant()
    def offsets_are_right(self) -> None:
        for group in (GROUP, OTHER):
            for place in FEW:
                offset = self.table.query(place.topic, group, place.queue_id)
                assert offset == self.offsets.get((group, place), NO_OFFSET)


class LockMachine(RuleBasedStateMachine):
    """Two members that want the same queues."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.table = QueueLocks(clock=self.clock, lock_ms=LOCK_MS)
        self.locks: dict[Place, Holder] = {}
        self.epochs: dict[Place, int] = {}

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    @rule(member=some_member, places=st.sets(few_places, min_size=1))
    def lock(self, member: str, places: set[Place]) -> None:
        queues = [_queue(place) for place in sorted(places)]
        held = self.table.lock(GROUP, member, queues)
        expected = []
        for place in sorted(places):
            holder = self.holder(place)
            if holder is not None and holder.member != member:
                continue
            if holder is None:
                self.epochs[place] = self.epochs.get(place, 0) + 1
            self.locks[place] = Holder(member, self.now_ms + LOCK_MS, self.epochs[place])
            expected.append(_queue(place))
        assert held == expected

    @rule(member=some_member, places=st.sets(few_places, min_size=1))
    def unlock(self, member: str, places: set[Place]) -> None:
        self.table.unlock(GROUP, member, [_queue(place) for place in places])
        for place in places:
            holder = self.locks.get(place)
            if holder is not None and holder.member == member:
                del self.locks[place]

    @rule()
    def expire(self) -> None:
        self.table.expire()

    def holder(self, place: Place) -> Holder | None:
        holder = self.locks.get(place)
        return holder if holder is not None and holder.until_ms > self.now_ms else None

    @rule(data=st.data(), late_ms=st.sampled_from([-1, 0, 1]))
    def wait(self, data: st.DataObject, late_ms: int) -> None:
        """Let time pass until about when a lock runs out."""
        moments = [*(each.until_ms for each in self.locks.values()), self.now_ms + LOCK_MS // 2]
        until_ms = data.draw(st.sampled_from(moments)) + late_ms
        self.clock.advance(max(0, until_ms - self.now_ms))

    @invariant()
    def locks_are_right(self) -> None:
        locks = self.table
        for place in FEW:
            found, holder = locks.holder(GROUP, _queue(place)), self.holder(place)
            assert (found.client_id if found else None) == (holder.member if holder else None)
            assert locks.holder(OTHER, _queue(place)) is None
        assert locks.holds_locks(GROUP) == any(self.holder(place) for place in FEW)


class MessageMachine(RuleBasedStateMachine):
    """Messages that are pulled, sent back, delayed and given up, on a broker that dies."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.world = World(self.root / "store")
        self.queues: dict[Place, list[Copy]] = {place: [] for place in PLACES}
        self.tags: dict[str, str] = {}
        self.waiting: list[Waiting] = []

    def teardown(self) -> None:
        try:
            self.world.clock.advance(10 * max(DELAYS_MS))
            self.deliver()
            self.contents_are_right()
            assert not self.waiting
        finally:
            self.world.close()
            shutil.rmtree(self.root)

    @property
    def now_ms(self) -> int:
        return self.world.clock.now_ms()

    @property
    def messages(self) -> list[tuple[Place, int]]:
        """The topics of messages, those sent back last first."""
        return [
            (place, offset)
            for place in reversed(PLACES)
            for offset in reversed(range(len(self.queues[place])))
        ]

    # Messages.

    @initialize(tags=st.lists(st.sampled_from("AB"), min_size=2, max_size=6))
    def send_some(self, tags: list[str]) -> None:
        for number, tag in enumerate(tags):
            self.send(number % QUEUES, tag)

    @rule(queue_id=st.integers(0, QUEUES - 1), tag=st.sampled_from("AB"))
    def send(self, queue_id: int, tag: str) -> None:
        name = self.world.send(queue_id, tag)
        self.tags[name] = tag
        self.queues[Place(TOPIC, queue_id)].append(Copy(name, 0))

    @rule(
        place=some_place,
        offset=st.integers(0, 6),
        count=st.integers(1, 4),
        tags=st.sampled_from([frozenset(), frozenset("A"), frozenset("AB")]),
    )
    def pull(self, place: Place, offset: int, count: int, tags: frozenset[str]) -> None:
        have = self.queues[place]
        if offset > len(have):
            return
        pulled = self.world.pull(place, offset, count, tags)
        wanted = [
            (at, copy)
            for at, copy in enumerate(have)
            if at >= offset and (not tags or self.tags[copy.name] in tags)
        ]
        got, left = wanted[:count], wanted[count:]
        assert [copy_of(record) for record in pulled.records] == [copy for _, copy in got]
        # What does not match may be passed over, nothing else; what was given is not given again.
        assert max([offset, *(at + 1 for at, _ in got)]) <= pulled.next_offset
        assert pulled.next_offset <= min([len(have), *(at for at, _ in left)])

    @precondition(lambda self: self.messages)
    @rule(
        data=st.data(),
        level=st.sampled_from([0, 0, -1, 1, LEVEL_MAX + 1]),
        limit=st.sampled_from([None, 0, 1, 16]),
    )
    def send_back(self, data: st.DataObject, level: int, limit: int | None) -> None:
        world = self.world
        place, offset = data.draw(st.sampled_from(self.messages))
        name, times = self.queues[place][offset]
        world.turn += 1
        world.send_back(world.position(place, offset), level, limit)
        copy = Copy(name, times + 1)
        if level < 0 or times >= (2 if limit is None else limit):
            self.queues[Place(DEAD, 0)].append(copy)
            return
        level = min(level or 3 + times, LEVEL_MAX)
        retry = Place(RETRY, world.turn % RETRY_QUEUES)
        self.waiting.append(Waiting(self.now_ms + DELAYS_MS[level - 1], level, retry, copy))

    @rule()
    def deliver(self) -> None:
        self.world.deliver()
        for each in sorted(self.waiting, key=lambda each: each.level):
            if each.due_ms <= self.now_ms:
                self.waiting.remove(each)
                self.queues[each.place].append(each.copy)

    # Time and death.

    @rule(data=st.data(), late_ms=st.sampled_from([-1, 0, 500]))
    def wait(self, data: st.DataObject, late_ms: int) -> None:
        """Let time pass until about when a message is due."""
        moments = [
            *(each.due_ms for each in self.waiting),
            self.now_ms + 1000,
        ]
        until_ms = data.draw(st.sampled_from(moments)) + late_ms
        self.world.clock.advance(max(0, until_ms - self.now_ms))

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule()
    def crash(self) -> None:
        self.world.crash()

    # What is always true.

    @invariant()
    def contents_are_right(self) -> None:
        for place, copies in self.queues.items():
            assert self.world.contents(place) == copies


def _queue(place: Place) -> MessageQueue:
    return MessageQueue("b", place.queue_id, place.topic)


TestOffsets = OffsetMachine.TestCase
TestOffsets.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLocks = LockMachine.TestCase
TestLocks.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestMessages = MessageMachine.TestCase
TestMessages.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
