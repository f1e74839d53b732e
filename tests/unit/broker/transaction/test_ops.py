"""When offsets that are done are worth an op message."""

from __future__ import annotations

from rocketpost.broker.transaction.ops import UnwrittenOps


def test_the_first_offset_sets_the_due_time() -> None:
    ops = UnwrittenOps()
    assert ops.due_ms(chars_max=10, interval_ms=3000) is None
    ops.add(12, now_ms=100)
    ops.add(13, now_ms=900)
    assert ops.due_ms(chars_max=10, interval_ms=3000) == 3100
    assert ops.due_ms(chars_max=6, interval_ms=3000) == 100  # "12,13," is that long
    assert (len(ops), ops.take(), len(ops)) == (2, [12, 13], 0)
    assert ops.due_ms(chars_max=6, interval_ms=3000) is None
    ops.add(1, now_ms=5000)
    assert ops.due_ms(chars_max=6, interval_ms=3000) == 8000
