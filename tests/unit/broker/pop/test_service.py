"""Popped messages: handed out once, back when nobody acknowledged them, gone when somebody did."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketpost.broker.pop import scan as pop_scan
from rocketpost.broker.pop import service as pop
from rocketpost.broker.pop.progress import APPLIED_GROUP, REVIVE_GROUP
from rocketpost.broker.pop.targets import RetryRules
from rocketpost.broker.pull.reader import PullLimits
from rocketpost.broker.steps import finish
from rocketpost.codec.faults import NoMessage, SystemBusy
from rocketpost.codec.headers.pop import pop_retry_topic
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, encode_properties
from rocketpost.codec.record import Record
from rocketpost.errors import StoreFull
from rocketpost.kernel.hashing import string_hash
from rocketpost.model.topic import TopicConfig
from rocketpost.store.draft import Draft

from ..pop_world import BORN, HOST, REVIVE_TOPIC, World

RETRY = pop_retry_topic("g", "T")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "store")
    yield world
    world.close()


def test_messages_of_all_queues_are_handed_out_once(world: World) -> None:
    sent = [world.send(0), world.send(1), world.send(0)]
    assert sorted(world.pop_names()) == sorted(sent)
    assert world.pop_names() == []


def test_more_consumers_than_queues_all_get_work_before_anything_is_stored(world: World) -> None:
    sent = [world.send(0) for _ in range(6)]
    popped = [world.start_pop(world.request(count_max=2)) for _ in range(3)]
    world.commit()
    assert [each.name for one in popped for each in world.delivered(one)] == sent


def test_groups_pop_independently(world: World) -> None:
    name = world.send()
    assert world.pop_names() == [name]
    assert world.pop_names(world.request(group="h")) == [name]


def test_one_queue_can_be_popped(world: World) -> None:
    world.send(0)
    second = world.send(1)
    assert world.pop_names(world.request(1)) == [second]


def test_unacknowledged_messages_are_redelivered_when_due(world: World) -> None:
    world.send()
    [first] = world.pop(world.request(invisible_ms=5000))
    world.clock.advance(4999)
    world.revive()
    assert world.pop() == []
    world.clock.advance(1)
    world.revive()
    [again] = world.pop()
    assert again.name == first.name
    assert again.key.topic == RETRY
    assert again.record.reconsume_times == 1
    assert again.record.properties["1ST_POP_TIME"] == str(first.key.pop_ms)
    world.clock.advance(60_000)
    world.revive()
    [third] = world.pop()
    assert third.record.reconsume_times == 2
    assert third.record.properties["1ST_POP_TIME"] == str(first.key.pop_ms)


def test_acknowledged_messages_are_not_redelivered(world: World) -> None:
    for _ in range(3):
        world.send()
    first, second, third = world.pop()
    world.ack(second)
    world.receipts.ack(first.key, [first.offset, third.offset])
    world.commit()
    world.clock.advance(10**9)
    world.revive()
    assert world.pop() == []
    assert world.in_flight.count == 0


def test_an_ack_counts_only_when_it_is_stored(world: World) -> None:
    world.send()
    [one] = world.pop()
    change = world.receipts.ack(one.key, [one.offset])
    assert change is not None
    assert not change.is_settled
    twice = world.receipts.ack(one.key, [one.offset])
    assert twice is change
    world.commit()
    assert change.is_stored
    assert world.receipts.ack(one.key, [one.offset]) is None


def test_an_ack_being_stored_prevents_redelivery(world: World) -> None:
    world.send()
    [one] = world.pop(world.request(invisible_ms=10))
    world.receipts.ack(one.key, [one.offset])
    world.clock.advance(10)
    assert world.receipts.revive() == []
    world.commit()
    assert world.pop() == []


def test_a_lost_ack_leads_to_redelivery(world: World) -> None:
    name = world.send()
    [one] = world.pop(world.request(invisible_ms=10))
    change = world.receipts.ack(one.key, [one.offset])
    world.fail()
    assert change is not None
    assert not change.is_stored
    world.clock.advance(10)
    world.revive()
    assert world.pop_names() == [name]


def test_a_message_can_be_given_more_time(world: World) -> None:
    name = world.send()
    [one] = world.pop(world.request(invisible_ms=1000))
    world.clock.advance(900)
    later = world.change(one, 5000)
    world.clock.advance(4999)
    world.revive()
    assert world.pop() == []
    world.clock.advance(1)
    world.revive()
    assert world.pop_names() == [name]
    with pytest.raises(NoMessage):
        world.receipts.change_invisible_time(later.key, later.offset, 1)


def test_a_message_can_be_released_at_once(world: World) -> None:
    name = world.send()
    [one] = world.pop()
    world.clock.advance(1)
    world.change(one, 0)
    world.revive()
    assert world.pop_names() == [name]


def test_the_receipt_before_a_change_is_no_longer_valid(world: World) -> None:
    world.send()
    [one] = world.pop()
    changed = world.change(one, 1000)
    with pytest.raises(NoMessage):
        world.receipts.change_invisible_time(one.key, one.offset, 1)
    assert world.receipts.ack(one.key, [one.offset]) is None
    assert world.change(changed, 1000).key != changed.key  # in the same millisecond


def test_receipts_changed_within_one_millisecond_are_distinct(world: World) -> None:
    name = world.send()
    [one] = world.pop(world.request(invisible_ms=0))
    second = world.change(one, 0)
    third = world.change(second, 10)
    assert len({one.key, second.key, third.key}) == 3
    world.clock.advance(5)
    world.revive()
    assert world.pop_names() == []  # it is not due before the third says so
    world.clock.advance(10)
    world.revive()
    assert world.pop_names() == [name]


def test_unwanted_tags_are_skipped(world: World) -> None:
    world.send(tag="B")
    wanted = world.send(tag="A")
    world.send(tag="B")
    request = world.request(tags=frozenset({string_hash("A")}))
    assert world.pop_names(request) == [wanted]
    assert world.offsets.query("T", "g", 0) == 3
    world.send(tag="B")
    assert world.pop_names(request) == []
    assert world.offsets.query("T", "g", 0) == 4


def test_a_long_run_of_unwanted_tags_is_skipped_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_scan, "SCAN_MAX", 3)
    for _ in range(4):
        world.send(tag="B")
    wanted = world.send(tag="A")
    request = world.request(tags=frozenset({string_hash("A")}))
    assert world.start_pop(request).is_cut
    assert world.pop_names(request) == [wanted]


def test_a_pop_whose_checkpoint_is_refused_takes_nothing(world: World) -> None:
    name = world.send()
    world.full = True
    with pytest.raises(StoreFull):
        world.start_pop()
    world.full = False
    assert world.pop_names() == [name]


def test_pops_whose_checkpoints_fail_have_no_effect(world: World) -> None:
    names = [world.send(), world.send()]
    for _ in names:
        world.start_pop(world.request(count_max=1))
    world.fail()
    assert world.in_flight.count == 0
    assert world.pop_names() == names


def test_a_reset_overrides_pops_that_are_being_stored(world: World) -> None:
    names = [world.send(), world.send()]
    popped = world.start_pop()
    world.offsets.reset("T", "g", 0, 1)
    again = world.start_pop()
    world.commit()
    assert [each.name for each in world.delivered(popped)] == names
    assert [each.name for each in world.delivered(again)] == names[1:]
    assert world.in_flight.count == 3


def test_a_reset_survives_a_crash_that_reads_old_checkpoints_again(world: World) -> None:
    names = [world.send(), world.send()]
    [first, _] = world.pop()
    world.offsets.reset("T", "g", 0, 0)
    world.save()
    world.change(first, 60_000)
    world.crash()
    assert world.offsets.query("T", "g", 0) == 0
    assert world.start_pop().is_cut  # a receipt would name two deliveries in this millisecond
    world.clock.advance(2)
    assert world.pop_names() == names


def test_a_new_group_may_start_at_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [world.send(), world.send()]
    assert world.pop_names(world.request(group="young", from_end=True)) == names
    world.limits = PullLimits(memory_bytes=0)
    assert world.pop_names(world.request(group="h", from_end=True)) == names[1:]


@pytest.mark.parametrize("in_order", [False, True])
def test_a_new_group_at_an_empty_queue_gets_its_first_message_later(
    world: World, in_order: bool
) -> None:
    request = world.request(from_end=True, in_order=in_order)
    assert world.pop_names(request) == []
    names = [world.send(), world.send()]
    world.limits = PullLimits(memory_bytes=0)  # the queue is not young any more
    assert world.pop_names(request) == names


def test_a_pop_stores_no_offsets_for_very_many_empty_queues(world: World) -> None:
    world.topics.update(
        TopicConfig(topic_name="Wide", read_queue_nums=65_536, write_queue_nums=65_536)
    )
    wide = world.topics.require("Wide")
    world.start_pop(world.request(from_end=True)._replace(topic=wide))
    assert world.offsets.rows == []


def test_peeking_takes_nothing(world: World) -> None:
    names = [world.send(), world.send()]
    views, rest = finish(world.service.peek(world.request(count_max=1)))
    assert len(views) == 1
    assert rest == 1
    assert finish(world.service.has_message(world.request()))
    assert world.pop_names() == names
    assert not finish(world.service.has_message(world.request()))
    assert finish(world.service.peek(world.request())) == ([], 0)


def test_there_is_a_bound_on_messages_in_flight(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop, "FLIGHT_MAX", 1)
    world.send()
    world.send()
    world.pop(world.request(count_max=1))
    with pytest.raises(SystemBusy):
        world.pop()


def test_messages_of_a_deleted_group_are_dropped(world: World) -> None:
    world.send()
    world.pop(world.request(invisible_ms=1))
    world.groups.gone.add("g")
    world.clock.advance(1)
    world.revive()
    assert world.in_flight.count == 0
    assert world.topics.find(RETRY) is None


def test_a_redelivery_without_room_is_tried_again(world: World) -> None:
    name = world.send()
    world.pop(world.request(invisible_ms=1))
    world.clock.advance(1)
    world.full = True
    assert world.receipts.revive() == []
    world.full = False
    world.revive()
    assert world.pop() == []
    world.clock.advance(1000)
    world.revive()
    assert world.pop_names() == [name]


def test_a_partly_stored_redelivery_is_completed(world: World) -> None:
    names = [world.send(), world.send()]
    world.pop(world.request(invisible_ms=1))
    world.clock.advance(1)
    world.receipts.revive()
    world.commit(1)
    assert world.pop_names() == names  # both copies are there, only the first is known to be
    world.clock.advance(1000)
    world.revive()
    assert world.pop_names() == names[1:]


def test_a_message_without_room_for_more_properties_is_redelivered_unchanged(world: World) -> None:
    longest = PROPERTIES_BYTES_MAX - len(encode_properties({"UNIQ_KEY": "m1", "TAGS": "."})) + 1
    name = world.send(tag="x" * longest)
    [first] = world.pop(world.request(invisible_ms=1))
    assert len(first.record.properties_bytes) == PROPERTIES_BYTES_MAX
    world.clock.advance(1)
    world.revive()
    [again] = world.pop()
    assert again.name == name
    assert again.record.properties == first.record.properties
    assert again.record.reconsume_times == 1


# After a crash.


def test_messages_in_flight_survive_a_crash_without_saved_tables(world: World) -> None:
    names = [world.send() for _ in range(3)]
    first, _, _ = world.pop(world.request(invisible_ms=1000))
    world.ack(first)
    world.crash()
    assert world.pop() == []
    world.clock.advance(1000)
    world.revive()
    assert world.pop_names() == names[1:]


def test_receipts_are_valid_after_a_crash(world: World) -> None:
    names = [world.send(), world.send()]
    first, second = world.pop()
    world.crash()
    world.ack(first)
    later = world.change(second, 1000)
    world.crash()
    world.ack(later)
    world.crash()
    world.clock.advance(10**9)
    world.revive()
    assert world.pop() == []
    assert names


def test_a_redelivery_before_a_crash_is_not_repeated(world: World) -> None:
    name = world.send()
    world.pop(world.request(invisible_ms=1))
    world.clock.advance(1)
    world.revive()
    world.crash()
    world.revive()
    assert world.pop_names() == [name]
    assert world.pop() == []


def test_saved_progress_bounds_what_a_start_reads(world: World) -> None:
    for _ in range(10):
        world.send()
        [one] = world.pop()
        world.ack(one)
    ends = [int(queue.end) for queue in world.store.queues_of(REVIVE_TOPIC)]
    reached = [world.offsets.query(REVIVE_TOPIC, REVIVE_GROUP, each) for each in range(2)]
    assert ends == [10, 10]
    assert reached == [8, 8]
    world.save()
    world.crash()
    assert world.offsets.query(REVIVE_TOPIC, APPLIED_GROUP, 0) == 10
    assert world.in_flight.count == 0


def test_offsets_beyond_a_cut_log_are_corrected(world: World) -> None:
    world.send()
    world.offsets.commit(REVIVE_TOPIC, REVIVE_GROUP, 1, 500)
    world.offsets.commit(REVIVE_TOPIC, APPLIED_GROUP, 1, 500)
    world.save()
    world.pop()  # in revive queue 1, at offset 0
    world.saved, before = world.saved, world.in_flight.count
    world.crash()
    assert before == 1
    assert world.offsets.query(REVIVE_TOPIC, REVIVE_GROUP, 1) <= 0


def test_forged_and_broken_records_are_skipped(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"c":"g","it":1,"n":1,"pt":1,"q":0,"so":0,"t":"T"}'
    for host, text in ((BORN, body), (HOST, b"no json"), (HOST, b"{}")):
        for tag in ("ck", "ack", "other"):
            properties = b"TAGS\x01" + tag.encode() + b"\x02"
            draft = Draft(REVIVE_TOPIC, 0, 0, 0, 5, host, HOST, 0, 0, text, properties)
            world.store.append(draft)
    world.crash()
    assert world.in_flight.count == 0
    assert world.offsets.query("T", "g", 0) == -1
    assert caplog.text.count("revive record skipped") == 4


def test_a_checkpoint_of_rocketmq_is_understood(world: World) -> None:
    names = [world.send() for _ in range(3)]
    body = (
        b'{"bm":2,"bn":"b","c":"g","d":[0,1,2],"it":1000,"n":3,"pt":1,"q":0,"reviveTime":1001,'
        b'"ro":0,"so":0,"t":"T"}'
    )
    draft = Draft(REVIVE_TOPIC, 0, 0, 0, 5, HOST, HOST, 0, 0, body, b"TAGS\x01ck\x02")
    world.store.append(draft)
    world.crash()
    world.revive()
    assert world.pop_names() == [names[0], names[2]]


def test_the_newer_form_of_retry_topic_is_written_and_both_are_read(world: World) -> None:
    older, newer = world.send(), world.send()
    world.pop(world.request(count_max=1, invisible_ms=10))
    world.clock.advance(10)
    world.revive()
    world.targets.rules = RetryRules(newer_form=True)
    world.targets.rules = world.targets.rules._replace(first_percent=0)
    world.pop(world.request(count_max=1, invisible_ms=10))
    world.clock.advance(10)
    world.revive()
    found = {each.name: each.key.topic for each in world.pop()}
    assert found == {older: RETRY, newer: "%RETRY%g+T"}


def test_the_older_form_is_not_read_if_switched_off(world: World) -> None:
    world.send()
    world.pop(world.request(invisible_ms=10))
    world.clock.advance(10)
    world.revive()
    world.targets.rules = RetryRules(newer_form=True, older_form_read=False)
    assert world.pop_names() == []


def test_a_queue_with_too_many_unacknowledged_messages_hands_out_no_more(world: World) -> None:
    for _ in range(4):
        world.send(0)
    other = world.send(1)
    world.service.unacked_max = 1
    held = world.pop(world.request(0, count_max=2))
    assert world.pop_names(world.request(0)) == []
    assert world.pop_names() == [other]
    assert len(world.pop_names(world.request(group="h"))) == 5
    world.ack(held[0])
    assert len(world.pop_names(world.request(0))) == 2


def test_messages_that_cannot_be_read_for_a_moment_are_redelivered_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [world.send(queue_id) for queue_id in (0, 1)]
    assert sorted(world.pop_names(world.request(invisible_ms=1000))) == sent
    world.clock.advance(1000)
    calls = iter([True, False])
    record_of = world.store.record_of

    def fail_second(*arguments: Any) -> Record | None:
        if not next(calls, True):
            raise OSError(errno.EMFILE, "too many open files")
        return record_of(*arguments)

    monkeypatch.setattr(world.store, "record_of", fail_second)
    world.revive()
    assert len(world.in_flight) == 1
    world.clock.advance(1000)
    world.revive()
    assert sorted(world.pop_names()) == sent
    assert world.in_flight.count == 2
