from __future__ import annotations

from rocketpost.broker.group.queue_locks import LOCK_MS, QueueLocks
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
