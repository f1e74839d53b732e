"""The metric families of timed messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from rocketpost.broker.timer.service import TimerService
from rocketpost.broker.timer.steps import DELAY_BOUNDS_S
from rocketpost.broker.topic import TopicTable
from rocketpost.server.metrics.exposition import (
    Family,
    Labels,
    Sample,
    counter,
    gauge,
    histogram,
    label_text,
    single,
)

_STORAGE: Final = ("local", "disk")
_PLACE: Final = label_text({"storage_type": "local", "storage_medium": "disk"})
_TOPIC_THERE: Final = Labels("topic", "storage_type", "storage_medium")


def timer_families(
    service: TimerService, *, waiting: Counter[str], topics: TopicTable, now_ms: int
) -> Iterator[Family]:
    """Return the metrics of the timer.

    Args:
        service: The timer.
        waiting: The number of messages that are not due yet, by topic.
        topics: The topics; the counts of others are left out.
        now_ms: The time.
    """
    yield gauge(
        "rocketmq_timing_messages",
        "Timed messages that are not due yet.",
        _counts(+waiting, topics),
    )
    for name, text, value in (
        ("enqueue_lag", "Timed messages that are not in the wheel.", service.offset_behind()),
        (
            "enqueue_latency_milliseconds",
            "Time since which a timed message is not in the wheel.",
            service.intake_behind_ms(now_ms),
        ),
        ("dequeue_lag", "Timed messages that are due.", service.waiting_count),
        (
            "dequeue_latency_milliseconds",
            "Time by which deliveries are late.",
            service.behind_ms(now_ms),
        ),
    ):
        yield gauge(f"rocketmq_timer_{name}", text, [Sample(_PLACE, value)])
    tally = service.tally
    for name, text, counts in (
        ("enqueue", "Timed messages that entered the wheel.", tally.entered),
        ("dequeue", "Timed messages that were delivered.", tally.left),
    ):
        yield counter(f"rocketmq_timer_{name}_total", text, _counts(counts, topics))
    yield histogram(
        "rocketmq_delay_message_latency_seconds",
        "Time by which messages were put off.",
        [
            (_TOPIC_THERE(topic, *_STORAGE), delays)
            for topic, delays in tally.delays.items()
            if topics.find(topic) is not None
        ],
        bounds=DELAY_BOUNDS_S,
    )
    yield counter(
        "rocketpost_timer_delivered_total",
        "Timed messages that were delivered.",
        single(service.delivered),
    )
    yield counter(
        "rocketpost_timer_lost_total", "Timed messages that are gone.", single(service.lost)
    )


def _counts(counts: Counter[str], topics: TopicTable) -> list[Sample]:
    return [
        Sample(_TOPIC_THERE(topic, *_STORAGE), count)
        for topic, count in counts.items()
        if topics.find(topic) is not None
    ]
