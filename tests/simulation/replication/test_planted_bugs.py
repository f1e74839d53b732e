"""The checks find bugs: each of these, planted, makes a simulation fail; without it none does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from rocketpost.errors import CorruptRecord, ReplicationError
from rocketpost.kernel import record_scan
from rocketpost.replication import acks as acks_module
from rocketpost.replication.acks import ReplicaAcks
from rocketpost.replication.receiver import LogReceiver
from rocketpost.replication.reports import ReportSchedule
from rocketpost.replication.sender import Frame, LogSender
from rocketpost.store.config import FlushMode
from rocketpost.store.message_store import MessageStore
from rocketpost.store.replica import raw_append

from . import nodes
from .group import run_group
from .nodes import Slave
from .test_cuts import cut_once
from .test_group import run_ahead, run_half_open

SEEDS = range(40)


def one_slave(seed: int) -> None:
    run_group(seed)


def many(seed: int) -> None:
    run_group(seed, slaves=2, java=True)


def kills(seed: int) -> None:
    run_group(seed, slaves=2, java=True, flush_mode=FlushMode.ASYNC_FLUSH, sends_flushed=False)


def damage(seed: int) -> None:
    mode = FlushMode.ASYNC_FLUSH
    cut_once("down", seed * 131 + 40, batch_bytes=5000, flips=True, flush_mode=mode)


RUNS = [one_slave, many, kills, damage, run_ahead, run_half_open]


def is_caught(*runs: Callable[[int], None]) -> bool:
    for seed in SEEDS:
        for run in runs:
            try:
                run(seed)
            except (AssertionError, ReplicationError):
                return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_nothing_is_found_where_nothing_is_planted(run: Callable[[int], None]) -> None:
    for seed in SEEDS[:12]:
        run(seed)


# -- the slave


def test_acknowledging_before_the_append(monkeypatch: pytest.MonkeyPatch) -> None:
    append = LogReceiver._append_checked

    def eager(machine: LogReceiver, begin: int, run: memoryview) -> None:
        machine.end = begin + len(run)
        append(machine, begin, run)

    def swallow(slave: Slave, position: int, data: memoryview) -> int:
        # The write comes with the next piece of the stream.
        late: list[tuple[int, bytes]] = slave.__dict__.setdefault("late", [])
        for old_position, old in late:
            slave.running.append_raw(old_position, old)  # type: ignore[arg-type]
        late[:] = [(position, bytes(data))]
        return position + len(data)

    monkeypatch.setattr(LogReceiver, "_append_checked", eager)
    monkeypatch.setattr(Slave, "_append", swallow)
    assert is_caught(kills)


def test_acknowledging_a_part_of_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def reportable(slave: Slave, machine: LogReceiver) -> int:
        return max(machine.end + machine.held, slave._schedule.reported)

    monkeypatch.setattr(Slave, "_reportable", reportable)
    assert is_caught(kills)


def test_acknowledging_what_is_not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slave, "_reportable", lambda _slave, machine: machine.end)
    assert is_caught(one_slave)


def test_requesting_before_the_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first report promises as much as any other."""
    flush = MessageStore.flush_blocking
    connect = Slave.connect

    def hasty(slave: Slave, *args: Any) -> None:
        monkeypatch.setattr(MessageStore, "flush_blocking", lambda _store: None)
        try:
            connect(slave, *args)
        finally:
            monkeypatch.setattr(MessageStore, "flush_blocking", flush)

    monkeypatch.setattr(Slave, "connect", hasty)
    assert is_caught(one_slave)


def test_acknowledging_a_damaged_record(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(machine: LogReceiver, begin: int, run: memoryview) -> None:
        with contextlib.suppress(CorruptRecord):
            machine._append(begin, run)
        machine.end = begin + len(run)

    monkeypatch.setattr(LogReceiver, "_append_checked", trusting)
    assert is_caught(damage)


def test_appending_without_the_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = record_scan.scan_records

    def careless(*args: Any, **kwargs: Any) -> Any:
        return scan(*args, **(kwargs | {"verify_crc": False}))

    monkeypatch.setattr(raw_append, "scan_records", careless)
    assert is_caught(damage)


def test_keeping_the_part_of_a_record_for_the_next_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = Slave.connect

    def keeping(slave: Slave, *args: Any) -> None:
        held = slave._receiver._held if slave._receiver is not None else bytearray()
        connect(slave, *args)
        if slave._receiver is not None and slave._receiver.end:
            slave._receiver._held = held

    monkeypatch.setattr(Slave, "connect", keeping)
    assert is_caught(one_slave)


def test_requesting_the_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Slave._report

    def durable_only(slave: Slave, position: int, now_ms: int) -> None:
        if slave._schedule.reported < 0:
            position -= position % slave.config.segment_bytes
        report(slave, position, now_ms)

    monkeypatch.setattr(Slave, "_report", durable_only)
    assert is_caught(one_slave)


def test_taking_a_frame_with_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a master that skips bytes after a full window."""
    frame = LogSender._frame

    def skipping(machine: LogSender, size: int, now_ms: int) -> Frame:
        found = frame(machine, size, now_ms)
        if machine.next % 7 == 3 and machine.next < machine._end:
            machine.next += 1
        return found

    def accepting(machine: LogReceiver, head: Any) -> None:
        machine._next = head.position
        machine._begin = head.position - len(machine._held)

    monkeypatch.setattr(LogSender, "_frame", skipping)
    monkeypatch.setattr(LogReceiver, "_check_head", accepting)
    assert is_caught(one_slave)


def test_never_reporting_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master that hears nothing closes the connection; here it happens for ever."""

    def once(schedule: ReportSchedule, position: int, _now_ms: int) -> bool:
        is_first = schedule.reported < 0
        schedule.reported = position
        return is_first

    monkeypatch.setattr(ReportSchedule, "is_due", once)
    assert is_caught(one_slave)


# -- the master


def test_resuming_at_a_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = LogSender._begin

    def rounding(machine: LogSender, requested: int, first: int, end: int) -> None:
        begin(machine, requested, first, end)
        if machine._has_started:
            machine.next -= machine.next % machine._segment_bytes

    monkeypatch.setattr(LogSender, "_begin", rounding)
    assert is_caught(one_slave)


def test_a_window_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    size_of_next = LogSender._size_of_next

    def unbounded(machine: LogSender, end: int) -> int:
        machine._window_bytes = 2**60
        return size_of_next(machine, end)

    monkeypatch.setattr(LogSender, "_size_of_next", unbounded)
    assert is_caught(one_slave)


def test_a_window_smaller_than_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    size_of_next = LogSender._size_of_next

    def strict(machine: LogSender, end: int) -> int:
        machine._record_bytes = None
        return size_of_next(machine, end)

    monkeypatch.setattr(LogSender, "_size_of_next", strict)
    assert is_caught(one_slave)


def test_a_heartbeat_with_a_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = LogSender._frame

    def wrong(machine: LogSender, size: int, now_ms: int) -> Frame:
        found = frame(machine, size, now_ms)
        return found if size else Frame(machine.acked, 0)

    monkeypatch.setattr(LogSender, "_frame", wrong)
    assert is_caught(many)


def test_a_frame_across_the_end_of_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(machine: LogSender, end: int) -> int:
        return max(min(end - machine.next, machine._batch_bytes), 0)

    def unasserted(machine: LogSender, size: int, now_ms: int) -> Frame:
        found = Frame(machine.next, size)
        machine.next += size
        machine._sent_ms = now_ms
        return found

    monkeypatch.setattr(LogSender, "_size_of_next", wide)
    monkeypatch.setattr(LogSender, "_frame", unasserted)
    monkeypatch.setattr(nodes.Master, "_check_window", lambda *_: None)
    assert is_caught(many)


def test_counting_a_slave_that_is_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    def trusting(machine: LogSender, requested: int, first: int, end: int) -> None:
        machine._has_started = True
        machine.next = machine._start = requested or first
        machine.acked = requested
        if requested > end:
            machine.stuck = "it is ahead"

    monkeypatch.setattr(LogSender, "_begin", trusting)
    assert is_caught(run_ahead)


def test_going_on_when_the_log_has_passed_a_slave_that_was_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    next_frame = LogSender.next_frame

    def patient(machine: LogSender, first: int, end: int, now_ms: int) -> Frame | None:
        machine.stuck = ""
        return next_frame(machine, first, end, now_ms)

    monkeypatch.setattr(LogSender, "next_frame", patient)
    assert is_caught(run_ahead)


def test_following_a_log_that_has_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "why_not_follow", lambda *_, **__: "")
    assert is_caught(run_ahead)


# -- the count of replicas


def test_counting_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks_module, "_may_be_same", lambda *_: False)
    monkeypatch.setattr(ReplicaAcks, "_count", count_all)
    assert is_caught(many)


def count_all(acks: ReplicaAcks) -> None:
    acks._positions = sorted(
        (each.position for each in acks._connections.values() if each.counts), reverse=True
    )


def test_counting_an_old_connection_beside_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for slaves without a name, and only until the old one is closed."""
    same = acks_module._may_be_same

    def named(one: Any, other: Any) -> bool:
        return one.broker_id is not None and same(one, other)

    monkeypatch.setattr(acks_module, "_may_be_same", named)
    assert is_caught(many)


def test_counting_a_dead_connection_by_a_report_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaAcks.__init__, "__kwdefaults__", {"settle_ms": 0})
    assert is_caught(run_half_open)


def test_counting_connections_that_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaAcks, "remove", lambda _acks, _connection: None)
    monkeypatch.setattr(ReplicaAcks, "silent", lambda *_: [])
    assert is_caught(many)
