from __future__ import annotations

from rocketpost.server.writer.write_times import WriteTimes

# The text of Apache's broker 5.3.3 (tests/golden/exchanges), with the counts of this test.
NOTHING = (
    "[<=0ms]:0 [0~10ms]:0 [10~50ms]:0 [50~100ms]:0 [100~200ms]:0 [200~500ms]:0 [500ms~1s]:0 "
    "[1~2s]:0 [2~3s]:0 [3~4s]:0 [4~5s]:0 [5~10s]:0 [10s~]:0"
)


def test_the_form_is_that_of_rocketmq() -> None:
    assert WriteTimes().text(0) == NOTHING


def test_sends_are_counted_by_the_time_of_their_write() -> None:
    times = WriteTimes()
    times.count(0.002, 3)
    times.count(0.75, 1)
    times.count(12.3456, 2)
    expected = NOTHING.replace("[<=0ms]:0", "[<=0ms]:94").replace("[0~10ms]:0", "[0~10ms]:3")
    expected = expected.replace("[500ms~1s]:0", "[500ms~1s]:1").replace("[10s~]:0", "[10s~]:2")
    assert times.text(100) == expected
    assert times.longest_ms == 12_345


def test_sends_that_are_not_visible_yet_are_not_counted_below_zero() -> None:
    times = WriteTimes()
    times.count(0.002, 3)
    assert times.text(1).startswith("[<=0ms]:0 [0~10ms]:3 ")
