"""Failed logins make the next ones wait, by name and by address."""

from __future__ import annotations

from rocketpost.console.access.throttle import FORGET_SECONDS, FREE, WAIT_SECONDS_MAX, LoginThrottle


def test_waits_grow_with_the_failures() -> None:
    now = [0.0]
    throttle = LoginThrottle(lambda: now[0])
    for _ in range(FREE - 1):
        throttle.fail("ada")
    assert throttle.wait_seconds("ada") == 0
    throttle.fail("ada")
    assert throttle.wait_seconds("ada", "elsewhere") == 1
    assert throttle.wait_seconds("bob") == 0
    for _ in range(20):
        throttle.fail("ada")
    assert throttle.wait_seconds("ada") == WAIT_SECONDS_MAX
    now[0] += WAIT_SECONDS_MAX
    assert throttle.wait_seconds("ada") == 0


def test_a_success_or_time_forgets_failures() -> None:
    now = [0.0]
    throttle = LoginThrottle(lambda: now[0])
    for _ in range(FREE):
        throttle.fail("ada", "address")
    throttle.forget_failures("ada")
    assert throttle.wait_seconds("ada") == 0
    assert throttle.wait_seconds("address") > 0
    now[0] += FORGET_SECONDS + 1
    throttle.fail("address")
    assert throttle.wait_seconds("address") == 0


def test_an_attack_from_many_addresses_takes_bounded_memory() -> None:
    throttle = LoginThrottle(lambda: 0.0)
    for number in range(10_100):
        throttle.fail(f"address {number}")
    assert len(throttle._failures) <= 10_001
