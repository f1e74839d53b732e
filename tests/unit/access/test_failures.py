"""Failed logins: a few are free, then answers are late, and few may be pending."""

from __future__ import annotations

from rocketpost.access.failures import BURST, DELAY_SECONDS, PENDING_MAX, Failures


def test_an_address_that_fails_often_is_slowed_down_and_then_cut_off() -> None:
    failures = Failures()
    assert [failures.note("a", 0.0) for _ in range(BURST)] == [0.0] * BURST
    assert [failures.note("a", 0.0) for _ in range(PENDING_MAX)] == [DELAY_SECONDS] * PENDING_MAX
    assert failures.note("a", 0.0) is None
    failures.note_answer("a")
    assert failures.note("a", 0.0) == DELAY_SECONDS
    assert failures.note("b", 0.0) == 0.0, "another address is not affected"
    assert failures.total == BURST + PENDING_MAX + 3


def test_failures_are_forgiven_with_time() -> None:
    failures = Failures()
    for _ in range(100):
        failures.note("a", 0.0)
        failures.note_answer("a")
    assert failures.note("a", 1.0) == DELAY_SECONDS
    failures.note_answer("a")
    assert failures.note("a", 3600.0) == 0.0


def test_few_addresses_are_remembered() -> None:
    failures = Failures()
    for number in range(20_000):
        failures.note(str(number), 0.0)
    assert len(failures) == 10_000
    failures.note_answer("0")
