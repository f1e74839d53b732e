"""Known bugs of RocketMQ's timers, by number of the issue."""

from __future__ import annotations

import random

import pytest

from rocketpost.broker.timer.admission import TimedMessages
from rocketpost.broker.timer.steps import Due
from rocketpost.codec.faults import MessageIllegal
from rocketpost.codec.properties import PROPERTIES_BYTES_MAX, encode_properties
from rocketpost.store.config import FlushMode
from rocketpost.store.draft import Draft

from .world import BORN, HOST, World, timer_config

RNG = random.Random(1)


@pytest.fixture
def world() -> World:
    world = World()
    world.open()
    return world


def test_issue_3473_no_message_is_delivered_twice_after_a_restart(world: World) -> None:
    """RocketMQ delivers again what it delivered since its last checkpoint."""
    for _ in range(30):
        world.send(RNG, 15)
    world.serve()
    world.save()
    world.clock.ms += 20
    world.serve()
    assert len(world.delivered()) == 30
    world.kill()
    world.open()
    world.finish()
    world.judge(is_over=True)
    assert world.service.copies.found == 30


def test_issue_6984_one_failed_delivery_repeats_no_other(world: World) -> None:
    """RocketMQ sends a whole batch again when one message of it fails."""
    for _ in range(10):
        world.send(RNG, 5)
    world.clock.ms += 50
    while not isinstance(due := world.service.next(), Due):
        pass
    world.put(due.drafts[:4])  # the store is full then
    world.service.note_stored(4)
    world.finish()
    world.judge(is_over=True)


def test_issue_9654_a_message_of_the_largest_size_blocks_no_other(world: World) -> None:
    """RocketMQ adds properties on delivery; if they do not fit, nothing else is delivered."""

    def draft(room: int) -> tuple[Draft, dict[str, str]]:
        properties = {"UNIQ_KEY": "big", "TIMER_DELIVER_MS": str(world.clock.ms + 10), "p": ""}
        used = len(encode_properties(properties))
        properties["p"] = "x" * (PROPERTIES_BYTES_MAX - used - room)
        encoded = encode_properties(properties)
        big = Draft("T", 0, 0, 0, 0, BORN, HOST, 0, 0, b"b", encoded, 0, ("big",))
        return big, properties

    with pytest.raises(MessageIllegal, match="properties"):
        world.kind.prepare(*draft(room=100))
    stored = world.kind.prepare(*draft(room=300))
    assert stored is not None
    timed = world.send(RNG, 20)
    # Another broker may have left none of the room that we leave.
    stored.properties += b"q\x01" + b"y" * (PROPERTIES_BYTES_MAX - len(stored.properties) - 3)
    stored.properties += b"\x02"
    assert len(stored.properties) == PROPERTIES_BYTES_MAX
    world.put([stored])
    world.clock.ms += 100
    world.serve()
    assert [r.properties["UNIQ_KEY"] for r in world.delivered()] == ["big", timed.key]


def test_issue_10668_timers_continue_after_damage_to_the_log() -> None:
    """RocketMQ's wheel stops at units whose messages the commit log has lost."""
    world = World(config=timer_config(flush_mode=FlushMode.ASYNC_FLUSH))
    world.open()
    kept = [world.send(RNG, 300) for _ in range(5)]
    world.serve()
    world.save()
    end = int(world.running.end_position)
    lost = [world.send(RNG, 200) for _ in range(5)]
    world.serve()
    world.save()
    world.kill()
    name = "/store/commitlog/00000000000000000000"
    size = world.disk.stat(name)
    assert size is not None
    world.disk.write_bytes(name, bytes(size.size - end), at=end)  # as a damaged disk would
    for timed in lost:
        del world.sent[timed.key]
    world.open()
    more = [world.send(RNG, 250) for _ in range(8)]
    world.finish()
    world.judge(is_over=False)
    assert world.service.lost == len(lost)
    assert {r.properties["UNIQ_KEY"] for r in world.delivered()} == {
        timed.key for timed in (*kept, *more)
    }


@pytest.mark.parametrize("days", [24, 25, 30, 365])
def test_issue_5376_a_delay_of_many_days_does_not_overflow(world: World, days: int) -> None:
    """A unit has 31 bits for its delay in ms, which is 24.8 days."""
    kind: TimedMessages = world.kind
    properties = {"UNIQ_KEY": "far", "TIMER_DELAY_SEC": str(days * 86_400)}
    encoded = encode_properties(properties)
    plain = Draft("T", 0, 0, 0, 0, BORN, HOST, 0, 0, b"b", encoded, 0, ("far",))
    due_ms = world.clock.ms + days * 86_400_000
    stored = kind.prepare(plain, properties)
    assert stored is not None
    assert int(properties["TIMER_DELIVER_MS"]) == due_ms
    world.put([stored])
    world.serve()
    assert world.timers.log.end > 0
    assert not world.delivered()
    world.kill()  # and so long is nobody there
    world.clock.ms = due_ms - 1000
    world.open()
    world.serve()
    assert not world.delivered()
    world.clock.ms = due_ms
    world.serve()
    assert [r.properties["UNIQ_KEY"] for r in world.delivered()] == ["far"]
    assert world.service.rolled
