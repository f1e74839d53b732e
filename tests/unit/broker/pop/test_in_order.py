"""Popping in order: one batch at a time, what is left first, nothing acknowledged again."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketpost.broker.pop import in_order as pop_in_order
from rocketpost.broker.pop.batch import FORGOTTEN_AFTER_MS
from rocketpost.broker.pop.targets import Cursor, PopRequest
from rocketpost.broker.steps import finish
from rocketpost.codec.faults import MessageIllegal, NoMessage, SystemBusy
from rocketpost.errors import StoreFull
from rocketpost.kernel.hashing import string_hash

from ..pop_world import Delivery, World

CURSOR = Cursor("T", "g", 0)


class OrderWorld(World):
    def order_request(self, count: int = 32, *, attempt: str = "", **more: object) -> PopRequest:
        return self.request(0, count_max=count, in_order=True, attempt_id=attempt, **more)

    def take(self, count: int = 32, *, attempt: str = "", **more: object) -> list[Delivery]:
        return self.pop(self.order_request(count, attempt=attempt, **more))

    def names(self, count: int = 32, *, attempt: str = "", **more: object) -> list[str]:
        return [each.name for each in self.take(count, attempt=attempt, **more)]

    def finish(self, delivery: Delivery) -> None:
        self.ordered.ack(CURSOR, delivery.key.pop_ms, delivery.offset)
        self.commit()

    def delay(self, delivery: Delivery, invisible_ms: int) -> int:
        changed = self.ordered.change_invisible_time(
            CURSOR, delivery.key.pop_ms, delivery.offset, invisible_ms
        )
        self.commit()
        return changed.invisible_ms


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OrderWorld]:
    world = OrderWorld(tmp_path / "store")
    yield world
    world.close()


def test_a_queue_waits_until_its_batch_is_finished(world: OrderWorld) -> None:
    sent = [world.send() for _ in range(4)]
    first, second = world.take(2)
    assert [first.name, second.name] == sent[:2]
    assert world.names() == []
    world.finish(second)
    assert world.names() == []
    assert world.released == []
    world.finish(first)
    assert world.released == ["T"]
    assert world.names() == sent[2:]
    assert world.offsets.query(*CURSOR) == 2


def test_other_groups_and_queues_do_not_wait(world: OrderWorld) -> None:
    world.send(0)
    other = world.send(1)
    assert len(world.take()) == 1
    assert world.pop_names(world.request(-1, in_order=True)) == [other]
    assert len(world.pop_names(world.request(-1, in_order=True, group="h"))) == 2


def test_unacknowledged_messages_are_redelivered_first(
    world: OrderWorld,
) -> None:
    sent = [world.send() for _ in range(4)]
    first, second, third = world.take(3, invisible_ms=100)
    world.finish(second)
    world.clock.advance(100)
    popped = world.start_pop(world.order_request(3, invisible_ms=100))
    world.commit()
    again = world.delivered(popped)
    assert [each.name for each in again] == [sent[0], sent[2], sent[3]]
    assert dict(popped.parts[0].counts) == {first.offset: 1, third.offset: 1}
    # Round after round: the one in the middle stays away.
    world.clock.advance(100)
    assert world.names(invisible_ms=100) == [sent[0], sent[2], sent[3]]
    world.clock.advance(100)
    [alone] = world.take(1)
    assert alone.name == sent[0]
    world.finish(alone)
    assert world.names(1) == [sent[2]]


def test_acknowledgements_behind_a_smaller_batch_are_remembered(world: OrderWorld) -> None:
    sent = [world.send() for _ in range(3)]
    deliveries = world.take(invisible_ms=100)
    world.finish(deliveries[2])
    world.clock.advance(100)
    [alone] = world.take(1)
    world.finish(alone)
    world.crash()
    [second] = world.take(1)
    assert second.name == sent[1]
    world.finish(second)
    assert world.names() == []
    assert world.offsets.query(*CURSOR) == 3
    assert len(world.batches) == 0


def test_a_repeated_attempt_gets_the_same_messages_at_once(world: OrderWorld) -> None:
    sent = [world.send() for _ in range(2)]
    assert world.names(attempt="a") == sent
    assert world.names(attempt="b") == []
    popped = world.start_pop(world.order_request(attempt="a"))
    world.commit()
    assert [each.name for each in world.delivered(popped)] == sent
    assert not popped.parts[0].counts


def test_receipts_of_an_earlier_delivery_are_ignored(world: OrderWorld) -> None:
    world.send()
    [first] = world.take(invisible_ms=0)
    [second] = world.take()
    assert second.key.pop_ms > first.key.pop_ms
    world.finish(first)
    assert world.offsets.query(*CURSOR) == 0
    with pytest.raises(NoMessage):
        world.delay(first, 5)
    world.finish(second)
    assert world.offsets.query(*CURSOR) == 1
    world.finish(second)
    with pytest.raises(NoMessage):
        world.delay(second, 5)


def test_a_message_that_was_not_handed_out_cannot_be_acknowledged(world: OrderWorld) -> None:
    world.send()
    with pytest.raises(MessageIllegal):
        world.ordered.ack(CURSOR, 1, 0)
    [one] = world.take()
    with pytest.raises(MessageIllegal):
        world.ordered.ack(CURSOR, one.key.pop_ms, 7)


def test_the_invisible_time_can_be_extended_and_shortened(world: OrderWorld) -> None:
    name = world.send()
    [one] = world.take(invisible_ms=100)
    world.clock.advance(50)
    assert world.delay(one, 200) == 250
    world.clock.advance(199)
    assert world.names() == []
    world.clock.advance(1)
    assert world.ordered.next_due_ms() == world.clock.now_ms()
    assert world.ordered.revive() == []
    assert world.released == ["T"]
    [again] = world.take()
    assert again.name == name
    world.delay(again, 0)
    assert world.names() == [name]


def test_everything_survives_a_crash(world: OrderWorld) -> None:
    sent = [world.send() for _ in range(3)]
    first, second, third = world.take(attempt="a")
    world.finish(second)
    world.delay(third, 500_000)
    world.save()
    world.crash()
    assert world.names() == []
    assert world.ordered.next_due_ms() == world.clock.now_ms() + 500_000
    world.finish(first)
    world.crash()
    assert world.offsets.query(*CURSOR) == 2
    world.clock.advance(500_000)
    assert world.names() == [sent[2]]


def test_a_finished_batch_is_no_longer_needed(world: OrderWorld) -> None:
    for _ in range(50):
        world.send()
        [one] = world.take()
        world.finish(one)
    world.save()
    queue = world.ordered._revive_queue(CURSOR)
    assert world.watermark.offset(queue) == 99
    world.crash()
    assert len(world.batches) == 0
    assert world.offsets.query(*CURSOR) == 50


def test_a_refused_change_has_no_effect(world: OrderWorld) -> None:
    sent = [world.send() for _ in range(2)]
    world.full = True
    with pytest.raises(StoreFull):
        world.take()
    world.full = False
    first, _ = world.take()
    world.full = True
    with pytest.raises(StoreFull):
        world.finish(first)
    with pytest.raises(StoreFull):
        world.delay(first, 0)
    world.full = False
    assert world.names() == []
    world.clock.advance(60_000)
    assert world.names() == sent


def test_a_change_that_fails_later_has_no_effect(world: OrderWorld) -> None:
    sent = [world.send() for _ in range(2)]
    world.start_pop(world.order_request())
    world.fail()
    first, _ = world.take()
    assert first.name == sent[0]
    world.ordered.ack(CURSOR, first.key.pop_ms, first.offset)
    assert world.offsets.query(*CURSOR) == 1
    world.fail()
    assert world.offsets.query(*CURSOR) == 0
    world.ordered.change_invisible_time(CURSOR, first.key.pop_ms, first.offset, 0)
    world.fail()
    assert world.names() == []
    world.finish(first)
    assert world.offsets.query(*CURSOR) == 1


def test_changes_that_fail_one_after_the_other_leave_the_last_stored_record(
    world: OrderWorld,
) -> None:
    sent = [world.send() for _ in range(2)]
    first, second = world.take()
    batch = world.batches.newest(CURSOR)
    assert batch is not None
    stored = batch.revive_offset
    world.ordered.ack(CURSOR, first.key.pop_ms, first.offset)
    world.ordered.ack(CURSOR, second.key.pop_ms, second.offset)
    assert batch.revive_offset == stored + 2
    world.fail()
    assert batch.revive_offset == stored
    assert batch.left == [0, 1]
    world.clock.advance(60_000)
    assert world.names() == sent


def test_a_reset_ends_the_wait(world: OrderWorld) -> None:
    sent = [world.send() for _ in range(3)]
    world.take()
    world.offsets.reset(*CURSOR, 1)
    assert world.names() == sent[1:]
    world.offsets.commit(*CURSOR, 0)
    assert world.names() == sent


def test_unwanted_messages_are_skipped(world: OrderWorld) -> None:
    world.send(tag="A")
    assert world.names(tags=frozenset({1})) == []
    assert world.offsets.query(*CURSOR) == 1


def test_notifications_report_only_messages_that_can_be_popped(world: OrderWorld) -> None:
    assert not finish(world.ordered.has_message(world.order_request()))
    world.send()
    assert finish(world.ordered.has_message(world.order_request()))
    assert world.offsets.query(*CURSOR) == -1
    world.take()
    assert not finish(world.ordered.has_message(world.order_request()))


def test_several_are_acknowledged_together(world: OrderWorld) -> None:
    for _ in range(3):
        world.send()
    deliveries = world.take()
    pop_ms = deliveries[0].key.pop_ms
    world.ordered.ack_all(CURSOR, pop_ms, {0, 1})
    world.ordered.ack_all(CURSOR, pop_ms + 1, {2})
    world.commit()
    assert world.offsets.query(*CURSOR) == 2


def test_batches_have_a_bound_and_old_ones_are_forgotten(
    world: OrderWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send()
    world.send(1)
    world.take()
    monkeypatch.setattr(pop_in_order, "BATCHES_MAX", 1)
    with pytest.raises(SystemBusy):
        world.pop(world.request(1, in_order=True))
    world.clock.advance(FORGOTTEN_AFTER_MS + 1)
    world.ordered.clean()
    assert len(world.batches) == 0
    assert len(world.pop(world.request(1, in_order=True))) == 1
    world.offsets.commit("T", "g", 1, 1)
    world.ordered.clean()
    assert len(world.batches) == 0


def test_unwanted_messages_before_a_batch_do_not_end_its_wait(world: OrderWorld) -> None:
    wanted = frozenset({string_hash("A")})
    world.send(tag="B")
    first, second = world.send(tag="A"), world.send(tag="A")
    world.send(tag="B")
    third = world.send(tag="A")
    [delivery] = world.take(1, tags=wanted)
    assert delivery.name == first
    assert world.names(tags=wanted) == []
    world.finish(delivery)
    [delivery] = world.take(1, tags=wanted)
    assert delivery.name == second
    world.crash()
    assert world.names(tags=wanted) == []
    world.finish(delivery)
    [delivery] = world.take(tags=wanted)
    assert delivery.name == third
    world.finish(delivery)
    assert world.names(tags=wanted) == []
    assert world.offsets.query(*CURSOR) == 5


def test_a_batch_that_is_not_stored_leaves_the_batch_before_it(world: OrderWorld) -> None:
    world.send(tag="B")
    sent = [world.send(tag="A") for _ in range(2)]
    other, _, second = world.take(invisible_ms=100)
    world.finish(second)
    world.clock.advance(100)
    wanted = frozenset({string_hash("A")})  # the group has another subscription by now
    world.start_pop(world.order_request(tags=wanted))
    world.fail()
    assert world.offsets.query(*CURSOR) == other.offset
    [delivery] = world.take(tags=wanted)
    assert delivery.name == sent[0]
    world.finish(delivery)
    assert world.offsets.query(*CURSOR) == 3


def test_finished_batches_are_forgotten_although_an_earlier_one_waits(world: OrderWorld) -> None:
    world.send(1)
    assert world.pop_names(world.request(1, in_order=True))
    for _ in range(1500):
        world.send()
        [delivery] = world.take(1)
        world.finish(delivery)
        assert world.ordered.next_due_ms() is not None
    assert world.ordered.release_count < 1100


def test_a_queue_is_released_in_time_although_an_acknowledgement_failed(world: OrderWorld) -> None:
    world.send()
    [delivery] = world.take(invisible_ms=100)
    world.ordered.ack(CURSOR, delivery.key.pop_ms, delivery.offset)
    assert world.ordered.next_due_ms() is None
    world.fail()
    assert world.ordered.next_due_ms() == delivery.due_ms
    world.clock.advance(100)
    world.ordered.revive()
    assert world.released == ["T"]


def test_a_reset_to_the_first_unfinished_message_delivers_all_from_there(
    world: OrderWorld,
) -> None:
    sent = [world.send() for _ in range(3)]
    deliveries = world.take()
    for delivery in deliveries[1:]:
        world.finish(delivery)
    assert not finish(world.ordered.has_message(world.order_request()))
    world.offsets.reset(*CURSOR, 0)
    assert finish(world.ordered.has_message(world.order_request()))
    assert world.names() == sent
    world.crash()
    assert world.names() == []
    world.clock.advance(60_001)
    assert world.names() == sent


def test_a_reset_takes_effect_although_the_first_pop_after_it_is_not_stored(
    world: OrderWorld,
) -> None:
    sent = [world.send() for _ in range(2)]
    world.finish(world.take()[1])
    world.offsets.reset(*CURSOR, 0)
    world.start_pop(world.order_request())
    world.fail()
    assert world.names() == sent


def test_a_reset_takes_effect_although_the_queue_cannot_be_read_at_once(
    world: OrderWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    sent = [world.send() for _ in range(2)]
    world.finish(world.take()[1])
    world.offsets.reset(*CURSOR, 0)
    with monkeypatch.context() as patch:
        patch.setattr(world.ordered._scan, "find", fail)
        with pytest.raises(OSError, match="too many"):
            world.start_pop(world.order_request())
    assert world.names() == sent


def test_a_reset_behind_the_end_skips_no_later_message(world: OrderWorld) -> None:
    world.send()
    world.take()
    world.offsets.reset(*CURSOR, 100)
    assert world.names() == []
    later = world.send()
    assert world.names() == [later]


def test_a_queue_is_released_in_time_although_a_repeated_pop_failed(world: OrderWorld) -> None:
    world.send()
    [delivery] = world.take(attempt="a", invisible_ms=100)
    world.start_pop(world.order_request(attempt="a", invisible_ms=100))
    assert world.ordered.next_due_ms() is None
    world.fail()
    assert world.ordered.next_due_ms() == delivery.due_ms
