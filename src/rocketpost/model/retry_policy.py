"""The retry policy of a consumer group: the delay before each redelivery of a message.

As RocketMQ writes it in JSON, one of:

    {"type": "CUSTOMIZED"}
        the delay levels from the third on; the default
    {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, 60000]}}
        the first delay, the second, ...; the last one repeats
    {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7200000,
     "multiplier": 2}}
        each delay is a multiple of the one before, up to a bound; these are the defaults

Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rocketpost.errors import ConfigError

CUSTOMIZED: Final = "CUSTOMIZED"
EXPONENTIAL: Final = "EXPONENTIAL"
_STEPS: Final = "customizedRetryPolicy"
_GROWTH: Final = "exponentialRetryPolicy"
_MEMBERS: Final = {
    "": frozenset({"type", _STEPS, _GROWTH}),
    _STEPS: frozenset({"next"}),
    _GROWTH: frozenset({"initial", "max", "multiplier"}),
}
_DELAY_MS_MAX: Final = 366 * 86_400_000
_MULTIPLIER_MAX: Final = 1000
_ROUNDS_MAX: Final = 32
"""The retry from which an exponential delay stops growing, as in RocketMQ."""


class RetryPolicy(NamedTuple):
    """A sequence of delays: a list, or growing ones if there is no list."""

    steps: tuple[int, ...] = ()
    initial: int = 5_000
    most: int = 7_200_000
    multiplier: int = 2

    def delay_ms(self, times: int) -> int:
        """Return the delay of a message that was retried ``times`` times before."""
        if self.steps:
            return self.steps[min(times, len(self.steps) - 1)]
        grown: int = self.initial * self.multiplier ** min(times, _ROUNDS_MAX)
        return min(self.most, grown)


def read_retry_policy(policy: Mapping[str, Any]) -> RetryPolicy | None:
    """Return a policy; None for the one by delay levels.

    Raises:
        ConfigError: The policy is wrong; the text says what and where.
    """
    kind = policy.get("type", CUSTOMIZED)
    if kind not in (CUSTOMIZED, EXPONENTIAL):
        raise ConfigError(f"groupRetryPolicy type {kind!r} takes CUSTOMIZED or EXPONENTIAL")
    _refuse_others(policy, "")
    growth, steps = policy.get(_GROWTH), policy.get(_STEPS)
    if kind == EXPONENTIAL:
        if steps is not None:
            raise ConfigError(f"groupRetryPolicy: {_STEPS} has no effect with the type EXPONENTIAL")
        return _read_growth({} if growth is None else growth)
    if growth is not None:
        raise ConfigError(f"groupRetryPolicy: {_GROWTH} has no effect with the type CUSTOMIZED")
    return None if steps is None else _read_steps(steps)


def _read_steps(given: Any) -> RetryPolicy:
    _refuse_others(given, _STEPS)
    steps = given.get("next")
    if not isinstance(steps, list) or not steps:
        raise ConfigError('groupRetryPolicy: "next" takes a list of times in ms')
    for step in steps:
        _check_number("next", step, _DELAY_MS_MAX)
    return RetryPolicy(tuple(steps))


def _read_growth(given: Any) -> RetryPolicy:
    _refuse_others(given, _GROWTH)
    default = RetryPolicy()
    initial = given.get("initial", default.initial)
    most = given.get("max", default.most)
    multiplier = given.get("multiplier", default.multiplier)
    _check_number("initial", initial, _DELAY_MS_MAX)
    _check_number("max", most, _DELAY_MS_MAX)
    _check_number("multiplier", multiplier, _MULTIPLIER_MAX)
    if initial > most:
        raise ConfigError(f"groupRetryPolicy: initial={initial} is above max={most}")
    return RetryPolicy((), initial, most, multiplier)


def _check_number(name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise ConfigError(
            f'groupRetryPolicy: "{name}" takes whole numbers from 1 to {most}, not {value!r:.40}'
        )


def _refuse_others(given: Any, name: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"groupRetryPolicy: {name} takes a JSON object")
    if others := sorted(set(given) - _MEMBERS[name]):
        raise ConfigError(
            f"groupRetryPolicy: {others[0][:40]!r} is unknown; known are "
            f"{', '.join(sorted(_MEMBERS[name]))}"
        )
