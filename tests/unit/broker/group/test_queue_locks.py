from __future__ import annotations

from rocketpost.broker.group.queue_locks import LOCK_MS, HeldQueues, QueueLocks
from rocketpost.model.route import MessageQueue
from rocketpost.testing.clock import FakeClock

Q0, Q1 = (MessageQueue("broker-a", queue, "T") for queue in (0, 1))


def test_a_queue_is_held_by_one_client_of_a_group(clock: FakeClock) -> None:
    locks = QueueLocks(clock=clock)
    assert locks.lock("G", "a", [Q0]) == [Q0]
    assert locks.lock("G", "b", [Q0, Q1]) == [Q1]
    assert locks.lock("H", "b", [Q0]) == [Q0]


def test_a_lock_lives_a_minute_after_its_last_renewal(clock: FakeClock) -> None:
    locks = QueueLocks(clock=clock)
    locks.lock("G", "a", [Q0])
    clock.advance(LOCK_MS - 1)
    assert locks.lock("G", "a", [Q0]) == [Q0]
    clock.advance(LOCK_MS - 1)
    assert locks.lock("G", "b", [Q0]) == []
    assert locks.holds_locks("G")
    clock.advance(1)
    assert not locks.holds_locks("G")
    assert locks.lock("G", "b", [Q0]) == [Q0]


def test_only_the_owner_can_unlock(clock: FakeClock) -> None:
    locks = QueueLocks(clock=clock)
    locks.lock("G", "a", [Q0, Q1])
    locks.unlock("G", "b", [Q0])
    assert locks.lock("G", "b", [Q0]) == []
    locks.unlock("G", "a", [Q0])
    assert locks.lock("G", "b", [Q0]) == [Q0]
    locks.unlock("G", "b", [Q0])
    locks.unlock("G", "a", [Q1])
    assert not locks.holds_locks("G")
    locks.unlock("unknown", "a", [Q0])


def test_expired_locks_are_removed(clock: FakeClock) -> None:
    locks = QueueLocks(clock=clock)
    locks.lock("G", "a", [Q0])
    clock.advance(30_000)
    locks.lock("H", "a", [Q0])
    locks.lock("H", "a", [])
    clock.advance(30_000)
    locks.expire()
    assert not locks.holds_locks("G")
    assert locks.holds_locks("H")
    assert locks.lock("I", "a", []) == []


def test_the_duration_of_a_lock_is_a_setting(clock: FakeClock) -> None:
    locks = QueueLocks(clock=clock, lock_ms=100)
    locks.lock("G", "a", [Q0])
    clock.advance(99)
    assert locks.lock("G", "b", [Q0]) == []
    clock.advance(1)
    assert locks.lock("G", "b", [Q0]) == [Q0]


def test_changes_of_holders_are_noted_and_renewals_are_not(clock: FakeClock) -> None:
    locks = QueueLocks(clock=clock)
    locks.lock("ignored", "a", [Q0])
    assert locks.changed is None
    locks.changed = set()
    locks.lock("G", "a", [Q0])
    assert locks.changed == {"G"}
    locks.changed.clear()
    revision = locks.revision
    locks.lock("G", "a", [Q0])
    assert (locks.changed, locks.revision) == (set(), revision)
    locks.unlock("G", "a", [Q0])
    assert locks.changed == {"G"}
    assert locks.holders(["G"]) == {"G": []}
    locks.changed.clear()
    clock.advance(LOCK_MS)
    locks.expire()
    assert locks.changed == {"ignored"}


def test_a_new_leader_lets_holders_keep_their_queues_for_a_whole_period(clock: FakeClock) -> None:
    leader, member = QueueLocks(clock=clock), QueueLocks(clock=clock)
    leader.lock("G", "a", [Q0])
    leader.lock("G", "b", [Q1])
    leader.lock("H", "c", [Q1])
    member.follow(leader.holders(), is_whole=True)
    leader.unlock("H", "c", [Q1])
    member.follow(leader.holders(["H"]), is_whole=False)
    assert member.holders() == {}, "they hold nothing here yet"
    clock.advance(10 * LOCK_MS)  # renewed at the leader all the time
    member.expire()
    member.hold_followed()
    assert member.lock("G", "b", [Q0, Q1]) == [Q1]
    assert member.lock("H", "d", [Q1]) == [Q1]
    clock.advance(LOCK_MS - 1)
    assert member.lock("G", "b", [Q0]) == []
    clock.advance(1)
    assert member.lock("G", "b", [Q0]) == [Q0]


def test_a_whole_table_replaces_what_was_known(clock: FakeClock) -> None:
    locks = QueueLocks(clock=clock)
    locks.follow({"G": [HeldQueues("a", [Q0])], "H": [HeldQueues("b", [Q0])]}, is_whole=True)
    locks.follow({"H": [HeldQueues("c", [Q0])]}, is_whole=True)
    locks.hold_followed()
    assert locks.holders() == {"H": [HeldQueues("c", [Q0])]}
