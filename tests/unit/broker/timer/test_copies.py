"""Deliveries before a crash are found by the contents of their copies."""

from __future__ import annotations

from rocketpost.broker.timer.copies import Copies
from rocketpost.codec.properties import encode_properties
from rocketpost.codec.record import Record, pack_host
from rocketpost.model.ids import Position
from rocketpost.model.names import TIMER_TOPIC
from rocketpost.store.queue.consume_queue import ConsumeQueue

HOST = pack_host("127.0.0.1", 10911)
WAITING = {"UNIQ_KEY": "U", "REAL_TOPIC": "T", "TIMER_OUT_MS": "5000"}
TIMES = {"TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "2"}


def record(position: int, topic: str, prepared: int = 0, crc: int = 7, **more: str) -> Record:
    return Record(
        size=1, magic=0, body_crc=crc, queue_id=0, flag=0, queue_offset=0, position=position,
        sys_flag=0, born_ms=3, born_host_bytes=HOST, store_ms=0, store_host_bytes=HOST,
        reconsume_times=0, prepared_position=prepared, body=b"", topic=topic,
        properties_bytes=encode_properties({**WAITING, **more}),
    )  # fmt: skip


class Store:
    def __init__(self, *records: Record) -> None:
        self._records = {each.position: each for each in records}

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return None

    def record_at(self, position: int) -> Record | None:
        return self._records.get(position)

    def find(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> list[Position]:
        return [Position(at) for at, each in self._records.items() if each.topic == topic]


def exists(*copies: Record, position: int = 100, crash_ms: int = 9000) -> bool:
    found = Copies(store=Store(*copies), crash_end=1000, crash_ms=crash_ms, read_ms=8000)
    waiting = record(position, TIMER_TOPIC)
    return found.exists(waiting, waiting.properties, "T")


def test_a_copy_names_its_original() -> None:
    assert exists(record(500, "T", prepared=100))
    assert exists(record(500, TIMER_TOPIC, prepared=100))  # it was stored again, to wait on
    assert not exists(record(500, "T", prepared=99))
    assert not exists(record(500, "U", prepared=100))


def test_a_copy_of_rocketmq_has_the_same_contents() -> None:
    assert exists(record(500, "T", **TIMES))
    assert not exists(record(500, "T"))  # nothing says that it came out of a wheel
    assert not exists(record(500, "T", crc=8, **TIMES))
    assert not exists(record(500, "T", **{**TIMES, "TIMER_OUT_MS": "6000"}))


def test_nothing_is_looked_up_without_a_crash_or_for_later_messages() -> None:
    assert not exists(record(500, "T", prepared=100), crash_ms=-1)
    assert not exists(record(5000, "T", prepared=2000), position=2000)


def test_each_copy_of_rocketmq_counts_for_one_message() -> None:
    found = Copies(
        store=Store(record(500, "T", **TIMES)), crash_end=1000, crash_ms=9000, read_ms=8000
    )
    first, second = record(100, TIMER_TOPIC), record(200, TIMER_TOPIC)
    assert found.exists(first, first.properties, "T")
    assert not found.exists(second, second.properties, "T")
    assert found.found == 1


def test_only_messages_due_before_the_crash_are_looked_up() -> None:
    found = Copies(store=Store(), crash_end=1000, crash_ms=9000, read_ms=8000)
    assert found.is_needed(9000)
    assert not found.is_needed(9001)


def test_delivered_messages_may_wait_until_the_wheel_has_passed_the_crash() -> None:
    found = Copies(store=Store(), crash_end=1000, crash_ms=9000, read_ms=8000)
    assert found.may_wait(read_ms=9000, queue_offset=0)
    assert not found.may_wait(read_ms=9010, queue_offset=0)
    ahead = Copies(store=Store(), crash_end=1000, crash_ms=9000, read_ms=9500)
    assert ahead.may_wait(read_ms=9500, queue_offset=0)  # the clock was set back before the crash
    assert not ahead.may_wait(read_ms=9510, queue_offset=0)
    clean = Copies(store=Store(), crash_end=1000, crash_ms=-1, read_ms=8000)
    assert not clean.may_wait(read_ms=8000, queue_offset=0)
