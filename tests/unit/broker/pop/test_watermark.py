"""Records that are needed after a crash: reading starts before the oldest of them."""

from __future__ import annotations

from rocketpost.broker.pop.watermark import BEFORE_FIRST, ReviveWatermark


def test_the_oldest_needed_record_bounds_the_watermark() -> None:
    watermark = ReviveWatermark()
    assert watermark.offset(0) == BEFORE_FIRST
    watermark.add(0, 5, "a")
    watermark.add(0, 7, "b")
    assert watermark.offset(0) == 4
    watermark.end(0, 7, "b")
    assert watermark.offset(0) == 4
    watermark.end(0, 5, "a")
    assert watermark.offset(0) == 7
    assert watermark.offset(1) == BEFORE_FIRST


def test_discarding_a_record_keeps_another_at_the_same_offset() -> None:
    watermark = ReviveWatermark()
    watermark.add(0, 5, "lost")
    watermark.add(0, 5, "stored")
    watermark.discard(0, 5, "lost")
    assert watermark.offset(0) == 4
    watermark.discard(0, 5, "stored")
    assert watermark.offset(0) == BEFORE_FIRST


def test_ended_entries_do_not_pile_up_behind_an_open_one() -> None:
    watermark = ReviveWatermark()
    watermark.add(0, 0, "long")
    for offset in range(1, 5000):
        watermark.add(0, offset, offset)
        watermark.end(0, offset, offset)
    assert watermark.offset(0) == -1
    assert len(watermark._oldest[0]) < 2000
