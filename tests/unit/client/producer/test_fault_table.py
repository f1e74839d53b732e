from __future__ import annotations

import pytest

from rocketpost.client.producer.fault_table import FaultTable


@pytest.mark.parametrize(
    ("latency_ms", "avoided_ms"),
    [(549, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10_000), (15_000, 30_000)],
)
def test_slow_brokers_are_avoided_for_a_while(latency_ms: float, avoided_ms: float) -> None:
    table = FaultTable()
    table.report("b", latency_ms, now_ms=100)
    assert table.is_available("b", now_ms=100 + avoided_ms)
    assert avoided_ms == 0 or not table.is_available("b", now_ms=99 + avoided_ms)


def test_the_time_of_avoidance_only_grows() -> None:
    table = FaultTable()
    table.report_failure("b", now_ms=0)
    table.report("b", 600, now_ms=10)
    table.report("b", 1, now_ms=20)
    assert not table.is_available("b", now_ms=9999)
    assert table.is_available("b", now_ms=10_000)
    assert table.is_available("unknown", now_ms=0)
