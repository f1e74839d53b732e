"""Whatever stops a broker: timed messages come once, not early, and not if they were recalled."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
from typing import Any

import msgspec
import pytest

from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, encode_properties
from rocketpost.errors import StoreError
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.store.config import FlushMode
from rocketpost.store.draft import Draft
from rocketpost.store.timer.checkpoint import CLEAN
from rocketpost.store.timer.log import DEFAULT
from rocketpost.store.timer.values import Item

from .world import BORN, HOST, PowerCut, Timed, World, timer_config


def work(world: World, rng: random.Random, rounds: int) -> None:
    """Do what a broker with a timer does all day, in an order that the seed chooses."""
    for _ in range(rounds):
        match rng.randrange(18):
            case 0 | 1 | 2 | 3 | 4:
                for _ in range(rng.choice([1, 1, 3, 10])):
                    world.send(rng, rng.choice([1, 3, 9, 10, 11, 50, 200, 900, 2500]))
            case 5 | 6 | 7 | 8:
                world.clock.ms += rng.choice([0, 1, 5, 10, 30, 100])
                world.serve(rng, rng.choice([1, 3, 100]))
            case 9 | 10 | 11:
                world.save()
            case 12 | 13:
                waiting = [each for each in world.sent.values() if each.handle]
                if waiting:
                    world.recall(rng.choice(waiting))
            case 14:
                world.clock.ms += rng.choice([100, 400, 1500, 7000])
            case 15:
                world.clock.ms -= rng.choice([1, 10, 100, 500])
            case 16 | 17:
                world.move_messages_before(rng, rng.randrange(int(world.running.end_position) + 1))


def stop(world: World, rng: random.Random) -> None:
    if rng.random() < 0.3:
        world.close()
    elif rng.random() < 0.5:
        world.kill()
    else:
        world.lose_power(rng)


def test_stops_between_calls(seed: int, rng: random.Random) -> None:
    world = World()
    for _ in range(6):
        world.open()
        work(world, rng, rng.randrange(25))
        world.judge(is_over=False)
        stop(world, rng)
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_waiting_messages_are_moved_and_delivered_once(rng: random.Random) -> None:
    world = World()
    world.open()
    timed = [world.send(rng, 50 + 7 * number) for number in range(40)]
    world.recall(timed[20])
    world.serve()
    world.clock.ms += 60
    world.serve()
    end = int(world.running.end_position)
    assert world.waits_before(end)
    while not world.move_messages_before(rng, end):
        world.clock.ms += 10
        world.serve()
    assert not world.waits_before(end)
    assert world.mover.moved > 20
    world.save()
    world.kill()
    world.open()
    assert not world.waits_before(end)
    world.finish()
    world.judge(is_over=True)


def test_messages_moved_before_are_not_counted_again(rng: random.Random) -> None:
    world = World()
    world.open()
    for number in range(10):
        world.send(rng, 100 + 7 * number)
    world.serve()
    end = int(world.running.end_position)
    assert world.move_messages_before(random.Random(1), end)
    world.serve()
    assert world.mover.moved == 10
    for found in world.mover.survey(end):
        assert not found
    # Else each round would find it harder to free a segment, and none would go in the end.
    world.mover.check(found, freed_bytes=0)


class FullLog:
    """Has the timer log of a world refuse units, until told otherwise."""

    def __init__(self, world: World) -> None:
        self.is_full = True
        append = world.timers.log.append

        def refuse(units: object) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "no space left")
            append(units)  # type: ignore[arg-type]

        world.timers.log.append = refuse  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_settled", [True, False])
def test_a_slot_that_could_not_be_chained_again(
    is_clean: bool, is_settled: bool, rng: random.Random
) -> None:
    world = World()
    world.open()
    for _ in range(3):
        world.send(rng, 200)
    world.serve()
    full = FullLog(world)
    with pytest.raises(OSError, match="no space"):
        world.move_messages_before(random.Random(1), int(world.running.end_position))
    full.is_full = False  # somebody else has made room, so nothing needs to be moved any more
    if is_settled:
        world.mover.rebuild_slots()
    world.serve()
    world.save()
    if is_clean:
        world.close()
    else:
        world.kill()
    world.open()
    world.finish()
    world.judge(is_over=True)


def claim(world: World, key: str, delay_ms: int, more: dict[str, str]) -> Draft:
    """Return a timed message with some properties more."""
    due_ms = world.clock.ms + delay_ms
    world.sent[key] = Timed(key, due_ms, is_acked=True)
    properties = {"UNIQ_KEY": key, "TIMER_DELIVER_MS": str(due_ms)} | more
    encoded = encode_properties(properties)
    plain = Draft("T", 0, 0, 0, world.clock.ms, BORN, HOST, 0, 0, b"x", encoded, 0, (key,))
    draft = world.kind.prepare(plain, properties)
    assert draft is not None
    return draft


@pytest.mark.parametrize("back_ms", [1, 69, 70, 500])
@pytest.mark.parametrize("is_served", [False, True])
@pytest.mark.parametrize("later_ms", [0, 600])
def test_a_clock_set_back_before_a_crash_and_an_orderly_stop(
    rng: random.Random, back_ms: int, is_served: bool, later_ms: int
) -> None:
    world = World()
    world.open()
    world.clock.ms -= back_ms  # the wheel is ahead now
    world.send(rng, 1)
    world.clock.ms += 1
    world.serve()
    world.kill()
    world.clock.ms += later_ms
    world.open()
    if is_served:
        world.step()  # takes the message into the wheel
    world.close()
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_a_copy_by_rocketmq_voids_no_other_message(rng: random.Random) -> None:
    world = World()
    world.open()
    world.send(rng, 300)  # it lies at 0, which is what RocketMQ's copies name
    world.serve()
    world.save()
    world.put([claim(world, "theirs", 300, {"TIMER_ROLL_TIMES": "1"})])
    world.kill()
    world.open()
    assert world.service.record(0, world.running.record_at(0).size)  # type: ignore[union-attr]
    world.finish()
    world.judge(is_over=True)


def test_a_start_ends_although_a_message_claims_to_be_a_copy() -> None:
    world = World()
    world.open()
    world.put([claim(world, "first", 300, {"TIMER_ROLL_TIMES": "1"})])
    world.kill()
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_a_copy_without_room_for_its_mark_is_found_after_a_crash(rng: random.Random) -> None:
    world = World()
    world.open()
    world.send(rng, 50)
    draft = claim(world, "K", 300, {})  # RocketMQ leaves no room for what is added later
    full = (draft.properties + b"P\x01").ljust(PROPERTIES_BYTES_MAX - 1, b"x") + b"\x02"
    world.put([msgspec.structs.replace(draft, properties=full)])
    world.serve()
    world.save()
    end = int(world.running.end_position)
    (slot_ms, *_) = sorted(list(world.mover.survey(end))[-1], reverse=True)
    departure = world.mover.begin(slot_ms, end)
    assert departure is not None
    world.put(world.mover.drafts(departure))
    world.kill()
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_messages_that_rocketmq_put_into_the_slot_being_read_are_needed(rng: random.Random) -> None:
    world = World()
    world.open()
    slot_ms = world.timers.slot_of(world.clock.ms) + 100
    queue_end = 0
    for late_ms in (3, 9):
        world.send(rng, slot_ms + late_ms - world.clock.ms)
        queue = world.running.queue(TIMER_TOPIC, 0)
        assert queue is not None
        entry = queue.entry(queue_end)
        assert entry is not None
        # Its units do not say when exactly they are due.
        world.timers.add([Item(slot_ms, 0, DEFAULT, *entry[:2], 0)], now_ms=world.clock.ms)
        queue_end = world.timers.queue_offset = int(queue.end)
        world.timers.waiting["T"] += 1
    world.clock.ms = slot_ms + 5
    world.serve()
    assert len(world.delivered()) == 1
    with pytest.raises(StoreError, match="due now"):
        world.mover.begin(slot_ms, int(world.running.end_position))
    world.finish()
    world.judge(is_over=True)


def test_messages_that_a_long_wake_up_stores_together(rng: random.Random) -> None:
    world = World()
    world.open()
    timed = world.send(rng, 15)
    world.serve()
    world.clock.ms += 14
    plain = Draft("T2", 0, 0, 0, world.clock.ms, BORN, HOST, 0, 0, b"", b"", 0, ())
    world.running.append(plain)  # all that is stored with this one has its store time
    world.clock.ms += 5
    world.serve()
    assert not world.delivered()
    world.running.commit()
    world.serve()
    [record] = world.delivered()
    assert record.store_ms >= timed.due_ms


def test_power_cuts_inside_calls(seed: int, rng: random.Random) -> None:
    world = World()
    for _ in range(8):
        call = world.disk.calls + rng.randrange(1, 700)

        def fault(number: int, _name: str, _path: str, call: int = call) -> None:
            if number >= call:
                raise PowerCut

        world.disk.fault = fault
        try:
            world.open()
            work(world, rng, 60)
            world.close()
        except PowerCut:
            world.disk.fault = None
        world.lose_power(rng)
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_kills_of_a_broker_that_does_not_wait_for_the_disk(seed: int, rng: random.Random) -> None:
    world = World(config=timer_config(flush_mode=FlushMode.ASYNC_FLUSH))
    for _ in range(8):
        world.open()
        work(world, rng, rng.randrange(30))
        world.kill()
    world.open()
    world.finish()
    world.judge(is_over=True)


def test_the_precision_may_change_between_starts(seed: int, rng: random.Random) -> None:
    world = World()
    for precision_ms in (10, 25, 1, 10):
        world.config = timer_config(timer_precision_ms=precision_ms)
        world.open()
        work(world, rng, 20)
        stop(world, rng)
    world.open()
    world.finish()
    world.judge(is_over=True)


@pytest.mark.parametrize("at", range(1, 16))
@pytest.mark.parametrize("what", ["unit", "record"])
def test_a_reading_that_fails_loses_nothing(
    what: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reading may fail when descriptors have run out."""
    world, rng = World(), random.Random(1)
    world.open()
    waiting = [world.send(rng, 61) for _ in range(5)]
    world.recall(waiting[2])
    world.serve()
    owner: Any = world.timers.log if what == "unit" else world.service
    read, calls = getattr(owner, what), itertools.count(1)

    def fail_once(*arguments: Any) -> Any:
        if next(calls) == at:
            raise OSError(errno.EMFILE, "too many open files")
        return read(*arguments)

    monkeypatch.setattr(owner, what, fail_once)
    for _ in range(12):
        world.clock.ms += 10
        try:
            world.serve()
        except OSError:
            world.service.note_failed()  # as the loop that asks the service does
    world.finish()
    world.judge(is_over=True)


@pytest.mark.parametrize("at", range(1, 30))
@pytest.mark.parametrize("what", ["unit", "record"])
@pytest.mark.parametrize("is_stop", [True, False])
def test_a_reading_that_fails_while_a_slot_is_put_back_loses_and_repeats_nothing(
    is_stop: bool, what: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the open slot is put back at a stop, and if the clock was set back."""
    world, rng = World(), random.Random(1)
    world.open()
    for delay_ms in (51, 52, 56, 57, 58):
        world.send(rng, delay_ms)
    world.serve()
    world.clock.ms += 55
    world.serve()
    owner: Any = world.timers.log if what == "unit" else world.service
    read, calls = getattr(owner, what), itertools.count(1)

    def fail_once(*arguments: Any) -> Any:
        if next(calls) == at:
            raise OSError(errno.EMFILE, "too many open files")
        return read(*arguments)

    if is_stop:
        monkeypatch.setattr(owner, what, fail_once)
        with contextlib.suppress(OSError):  # as the feature does
            world.service.return_open_slot()
        monkeypatch.undo()
        world.save(CLEAN)
        world.kill()
        world.open()
    else:
        world.clock.ms -= 3000
        monkeypatch.setattr(owner, what, fail_once)
        for _ in range(2):
            try:
                world.serve()
            except OSError:
                world.service.note_failed()
        monkeypatch.undo()
    world.finish()
    world.judge(is_over=True)


@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize("what", ["unit", "record"])
def test_a_reading_that_fails_at_the_end_of_a_move_repeats_nothing_after_a_crash(
    what: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, rng = World(), random.Random(1)
    world.open()
    for _ in range(3):
        world.send(rng, 200)
    world.serve()
    world.save()
    end = int(world.running.end_position)
    [slot_ms] = list(world.mover.survey(end))[-1]
    departure = world.mover.begin(slot_ms, end)
    assert departure is not None
    drafts = world.mover.drafts(departure)
    world.put(drafts)
    world.mover.note_stored(departure, len(drafts))
    owner: Any = world.timers.log if what == "unit" else world.service
    read, calls = getattr(owner, what), itertools.count(1)

    def fail_once(*arguments: Any) -> Any:
        if next(calls) == at:
            raise OSError(errno.EMFILE, "too many open files")
        return read(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(owner, what, fail_once)
        with contextlib.suppress(OSError):
            world.mover.end(departure)
    world.serve()
    world.mover.rebuild_slots()
    world.serve()
    assert world.timers.waiting["T"] == 3
    world.save()
    world.kill()
    world.open()
    world.finish()
    world.judge(is_over=True)
