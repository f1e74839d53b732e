"""The delay of each delay level, from the setting ``messageDelayLevel``."""

from __future__ import annotations

from typing import Final

from rocketpost.errors import ConfigError

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Read ``messageDelayLevel``: the delays of level 1, 2, ... in milliseconds.

    Raises:
        ConfigError: A part is not a number with one of the units s, m, h, d.
    """
    delays = []
    for part in text.split():
        number, unit = part[:-1], part[-1]
        if unit not in _UNITS_MS or not number.isdecimal():
            raise ConfigError(f"messageDelayLevel={text!r} must be delays like 1s 5m 2h 1d")
        delays.append(int(number) * _UNITS_MS[unit])
    if not delays:
        raise ConfigError("messageDelayLevel needs at least one delay")
    return tuple(delays)
