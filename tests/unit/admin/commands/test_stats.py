from __future__ import annotations

from rocketpost.admin.commands.stats import _STATS, day_count, progress_rows
from rocketpost.codec.bodies.offset import BrokerConsumeState, ConsumeState, QueueProgress
from rocketpost.codec.bodies.stats import StatsBody, WindowStats
from rocketpost.model.route import MessageQueue


def test_traffic_is_shown_as_by_the_original() -> None:
    rows = [
        ("Demo", "demo-group", 0, 0.1, 0.1, 3, 3),
        ("BenchmarkTest", "", 0, 0.0, None, 0, None),
    ]
    assert _STATS.text(rows).splitlines() == [
        "#Topic                                                            "
        "#Consumer Group                                                  #Accumulation"
        "      #InTPS     #OutTPS   #InMsg24Hour  #OutMsg24Hour",
        "Demo                                                              "
        "demo-group                                                                  0"
        "        0.10        0.10              3              3",
        "BenchmarkTest                                                     "
        "                                                                            0"
        "        0.00                          0    NO_CONSUMER",
    ]


def test_the_count_of_a_day_falls_back_to_shorter_spans() -> None:
    minute, hour, day = (WindowStats(sum=count) for count in (1, 2, 3))
    assert day_count(StatsBody(stats_minute=minute, stats_hour=hour, stats_day=day)) == 3
    assert day_count(StatsBody(stats_minute=minute, stats_hour=hour)) == 2
    assert day_count(StatsBody(stats_minute=minute)) == 1
    assert day_count(StatsBody()) == 0


def test_queues_that_are_not_far_enough_behind_are_left_out() -> None:
    near, far = (MessageQueue("broker-a", queue_id, "Demo") for queue_id in (0, 1))
    state = ConsumeState(
        queues={
            far: QueueProgress(broker_offset=9, consumer_offset=1),
            near: QueueProgress(broker_offset=9, consumer_offset=8),
        }
    )
    body = BrokerConsumeState(broker_addr="h:1", groups=[("g", [state])])
    assert [row[3] for row in progress_rows(body, level=0)] == [0, 1]
    assert progress_rows(body, level=2) == [("Demo", "g", "broker-a", 1, 9, 1, 8, 0)]
