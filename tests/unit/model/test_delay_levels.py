from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.model.delay_levels import parse_delay_levels


def test_levels_are_delays_in_their_order() -> None:
    assert parse_delay_levels("1s 2m 1h 1d") == (1000, 120_000, 3_600_000, 86_400_000)


@pytest.mark.parametrize("text", ["", "  ", "1x", "s", "-1s"])
def test_invalid_delays_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        parse_delay_levels(text)
