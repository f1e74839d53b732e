"""Limit of failed logins, by account and by address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FREE: Final = 5
"""Failures before waiting begins."""
WAIT_SECONDS_MAX: Final = 300.0
FORGET_SECONDS: Final = 900.0
_KEYS_MAX: Final = 10_000


class LoginThrottle:
    """Failed logins, and the time until the next attempt. Belongs to the event loop.

    Args:
        clock: The time in seconds, which never goes back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}

    def wait_seconds(self, *keys: str) -> float:
        """Return how long to wait until the next attempt; 0 if it is allowed now."""
        return max(0.0, *(self._wait_of(key) for key in keys))

    def fail(self, *keys: str) -> None:
        """Record a failed login."""
        now = self._clock()
        if len(self._failures) > _KEYS_MAX:
            self._failures = {
                key: each for key, each in self._failures.items() if now - each[1] < FORGET_SECONDS
            }
            if len(self._failures) > _KEYS_MAX:  # an attack from many addresses
                self._failures.clear()
        for key in keys:
            count, at = self._failures.get(key, (0, now))
            count = 0 if now - at > FORGET_SECONDS else count
            self._failures[key] = (count + 1, now)

    def forget_failures(self, *keys: str) -> None:
        """Forget the failures of keys."""
        for key in keys:
            self._failures.pop(key, None)

    def _wait_of(self, key: str) -> float:
        count, at = self._failures.get(key, (0, 0.0))
        if count < FREE:
            return 0.0
        wait: float = min(WAIT_SECONDS_MAX, 2.0 ** (count - FREE))
        return at + wait - self._clock()
