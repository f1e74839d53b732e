"""The pace of a slave that is far behind, in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketpost.replication.pacing import (
    BEHIND_BYTES,
    BUSY_GROWTH,
    BUSY_RATE,
    GAIN_RATE,
    GROWTH_MS,
    MIB,
    PAUSE_MS_MIN,
    QUIET_RATE,
    TURN_BYTES,
    CatchUpPace,
)

FRAME = 2 * MIB
FAR = 4096 * MIB


class Stream:
    """A slave that takes whole frames as fast as the pace allows, and a log that grows."""

    def __init__(
        self,
        *,
        missing: int,
        growth: int = 0,
        frame: int = FRAME,
        make: Callable[..., CatchUpPace] = CatchUpPace,
    ) -> None:
        self.now_ms = 0
        self.end = missing
        self.sent = 0
        self.turns: list[int] = []
        """Bytes of each turn."""
        self.growth = growth
        self._frame = frame
        self._wake_ms = 0
        self.pace = make(end=self.end, now_ms=0)

    @property
    def missing(self) -> int:
        return self.end - self.sent

    def run(self, milliseconds: int) -> int:
        """Let time pass, in which the link takes a turn whenever it may; returns bytes sent."""
        before, until_ms = self.sent, self.now_ms + milliseconds
        while self.now_ms < until_ms:
            if self.now_ms >= self._wake_ms:
                self._wake_ms = self.now_ms + self.turn()
            self.now_ms += 1
            self.end += self.growth // 1000
        return self.sent - before

    def turn(self) -> int:
        """Send what is allowed, in whole frames; returns the pause."""
        allowed = left = self.pace.begin_turn(self.missing, self.end, self.now_ms)
        while left > 0 and self.missing:
            size = min(self._frame, self.missing)
            self.sent += size
            left -= size
        self.pace.end_turn(allowed - left)
        if allowed:
            self.turns.append(allowed - left)
        return self.pace.pause_ms if self.pace.is_far else 1


def check_rate(rate: int, *, growth: int = 0, frame: int = FRAME, **options: object) -> None:
    """Check what a slave gets in two seconds, the first measurement of growth not counted."""
    stream = Stream(missing=FAR, growth=growth, frame=frame, **options)  # type: ignore[arg-type]
    stream.run(2 * GROWTH_MS)
    sent = stream.run(2000)
    assert 2 * rate * 0.9 < sent <= 2 * rate * 1.02 + 2 * TURN_BYTES + frame


FRAMES = [1000, 32 * 1024, MIB, FRAME, 4 * MIB - 12]


@pytest.mark.parametrize("frame", FRAMES)
def test_a_slave_far_behind_gets_a_bounded_rate_while_others_send(frame: int) -> None:
    check_rate(BUSY_RATE, growth=BUSY_GROWTH + MIB, frame=frame)
    assert BUSY_RATE > 150_000_000


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("growth", [100 * MIB, 300 * MIB])
def test_it_always_gets_more_than_is_new(frame: int, growth: int) -> None:
    check_rate(max(BUSY_RATE, growth + GAIN_RATE), growth=growth, frame=frame)


@pytest.mark.parametrize("growth", [0, BUSY_GROWTH // 2])
def test_it_gets_more_while_nobody_sends_or_few(growth: int) -> None:
    check_rate(QUIET_RATE, growth=growth)


def test_the_pace_follows_the_load_within_two_measurements() -> None:
    stream = Stream(missing=FAR)
    stream.run(300)
    assert stream.pace.rate == QUIET_RATE
    stream.growth = 100 * MIB
    stream.run(2 * GROWTH_MS + 50)
    assert BUSY_RATE <= stream.pace.rate < QUIET_RATE
    stream.growth = 0
    stream.run(2 * GROWTH_MS + 50)
    assert stream.pace.rate == QUIET_RATE


def test_a_new_connection_begins_gently() -> None:
    sent = Stream(missing=FAR).run(GROWTH_MS // 2)
    assert sent <= BUSY_RATE * GROWTH_MS // 2000 + 2 * TURN_BYTES + FRAME


@pytest.mark.parametrize("missing", [0, 1, BEHIND_BYTES])
def test_a_slave_that_is_nearly_up_to_date_is_never_paced(missing: int) -> None:
    pace = CatchUpPace(end=FAR, now_ms=0)
    for _ in range(1000):  # in the same millisecond
        assert pace.begin_turn(missing, FAR, 0) == TURN_BYTES
        assert not pace.is_far
        pace.end_turn(FRAME)


def test_what_it_got_while_far_behind_costs_nothing_once_it_is_near() -> None:
    pace = CatchUpPace(end=FAR, now_ms=0)
    assert pace.begin_turn(BEHIND_BYTES + 1, FAR, 0)
    pace.end_turn(64 * MIB)
    assert not pace.begin_turn(BEHIND_BYTES + 1, FAR, 1)
    assert pace.begin_turn(BEHIND_BYTES, FAR, 1) == TURN_BYTES


def test_a_turn_that_comes_too_early_gets_nothing() -> None:
    pace = CatchUpPace(end=FAR, now_ms=0)
    assert pace.begin_turn(FAR, FAR, 0) == TURN_BYTES
    pace.end_turn(FRAME)
    pause_ms = pace.pause_ms
    assert (pause_ms - 1) * BUSY_RATE < FRAME * 1000 <= pause_ms * BUSY_RATE
    assert pace.begin_turn(FAR, FAR, pause_ms - 1) == 0
    assert pace.pause_ms == PAUSE_MS_MIN
    assert pace.begin_turn(FAR, FAR, pause_ms) >= TURN_BYTES


def test_a_long_rest_gives_no_right_to_more_than_a_turn() -> None:
    stream = Stream(missing=FAR)
    stream.run(200)
    stream.now_ms += 5000  # the slave read nothing
    stream.turns.clear()
    stream.run(1)
    assert stream.turns == [2 * TURN_BYTES]


class Forgets(CatchUpPace):
    """Bug: what exceeds a turn is not counted."""

    def end_turn(self, sent: int) -> None:
        super().end_turn(min(sent, TURN_BYTES))


class Starves(CatchUpPace):
    """Bug: the growth of the log does not count."""

    def begin_turn(self, missing: int, end: int, now_ms: int) -> int:
        return super().begin_turn(missing, min(end, FAR + now_ms * BUSY_GROWTH // 500), now_ms)


class Wastes(CatchUpPace):
    """Bug: a turn that comes late is not made up for."""

    def begin_turn(self, missing: int, end: int, now_ms: int) -> int:
        allowed = super().begin_turn(missing, end, now_ms)
        self._unpaid = max(self._unpaid, 0)
        return min(allowed, TURN_BYTES)


@pytest.mark.parametrize(
    ("bug", "rate", "growth", "frame"),
    [
        (Forgets, BUSY_RATE, BUSY_GROWTH + MIB, FRAME),
        (Starves, 300 * MIB + GAIN_RATE, 300 * MIB, FRAME),
        (Wastes, QUIET_RATE, 0, 1000),
    ],
)
def test_planted_bugs_are_found(bug: type[CatchUpPace], rate: int, growth: int, frame: int) -> None:
    check_rate(rate, growth=growth, frame=frame)
    with pytest.raises(AssertionError):
        check_rate(rate, growth=growth, frame=frame, make=bug)
