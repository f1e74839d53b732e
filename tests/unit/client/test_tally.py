from __future__ import annotations

from rocketpost.client.tally import Tally


def test_rates_cover_the_last_minute() -> None:
    tally = Tally()
    for second in range(60):
        tally.count(6, 0.012, now=1000 + second)
    assert tally.per_second(now=1059) == 6.0
    assert round(tally.mean_ms(now=1059), 6) == 2.0
    assert tally.per_second(now=1089) == 3.0
    assert tally.per_second(now=5000) == 0.0
    assert tally.mean_ms(now=5000) == 0.0
    assert tally.total == 360
