from __future__ import annotations

import threading

import pytest

from rocketpost.server.clock import BrokerClock

MS = 1_000_000
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


class Machine:
    """A machine whose wall clock can be set."""

    def __init__(self) -> None:
        self.wall_ms, self.monotonic_ms = START_MS, 500
        self.clock = BrokerClock(lambda: self.wall_ms * MS, lambda: self.monotonic_ms * MS)

    def wait(self, ms: int) -> None:
        self.wall_ms += ms
        self.monotonic_ms += ms

    def passed_ms(self) -> int:
        return self.clock.now_ms() - START_MS


def test_it_follows_the_wall_clock_forward() -> None:
    machine = Machine()
    machine.wait(5)
    assert machine.passed_ms() == 5
    machine.wall_ms += HOUR_MS
    assert machine.passed_ms() == 5 + HOUR_MS


def test_it_continues_when_the_wall_clock_is_set_back(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.wall_ms -= HOUR_MS
    before = machine.passed_ms()
    assert before == 0
    for _ in range(100):
        machine.wait(100)
        assert machine.passed_ms() > before
        before = machine.passed_ms()
    assert 9_000 <= before <= 10_000
    assert machine.clock.wall_ms() == START_MS + 10_000 - HOUR_MS
    [record] = caplog.records
    assert "set back" in record.message


def test_the_wall_clock_catches_up() -> None:
    machine = Machine()
    machine.wall_ms -= HOUR_MS
    assert machine.passed_ms() == 0
    for hours in range(1, 10):
        machine.wait(HOUR_MS)
        assert machine.passed_ms() == hours * HOUR_MS * 9 // 10
    machine.wait(2 * HOUR_MS)
    assert machine.clock.now_ms() == machine.wall_ms == START_MS + 10 * HOUR_MS


def test_small_corrections_are_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    machine.wall_ms -= 20
    assert machine.passed_ms() == 0
    machine.wait(10)
    assert machine.passed_ms() == 9
    machine.wait(200)
    assert machine.passed_ms() == 190  # the wall clock has caught up
    assert not caplog.records


def test_threads_may_ask_while_the_wall_clock_catches_up() -> None:
    machine = Machine()
    machine.wall_ms -= HOUR_MS
    machine.passed_ms()
    other = threading.Thread(target=machine.passed_ms)

    def monotonic_ns() -> int:
        machine.clock._monotonic_ns = lambda: machine.monotonic_ms * MS
        machine.wall_ms += 2 * HOUR_MS
        other.start()
        other.join(0.1)  # it has to wait until this one is done
        return machine.monotonic_ms * MS

    machine.clock._monotonic_ns = monotonic_ns
    assert machine.passed_ms() == 0
    other.join()
    assert machine.passed_ms() == HOUR_MS
