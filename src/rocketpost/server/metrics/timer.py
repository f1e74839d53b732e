"""The metric families of timed messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from rocketpost.broker.timer.service import TimerService
from rocketpost.server.metrics.exposition import (
    Family,
    Sample,
    counter,
    gauge,
    label_text,
    single,
)

_STORAGE: Final = {"storage_type": "local", "storage_medium": "disk"}


def timer_families(
    service: TimerService, *, waiting: Counter[str], now_ms: int
) -> Iterator[Family]:
    """Return the metrics of the timer.

    Args:
        service: The timer.
        waiting: The number of messages that are not due yet, by topic.
        now_ms: The time.
    """
    yield gauge(
        "rocketmq_timing_messages",
        "Timed messages that are not due yet.",
        [
            Sample(label_text({"topic": topic, **_STORAGE}), count)
            for topic, count in (+waiting).items()
        ],
    )
    labels = label_text(_STORAGE)
    for name, text, value in (
        ("enqueue_lag", "Timed messages that are not in the wheel.", service.offset_behind()),
        ("dequeue_lag", "Timed messages that are due.", service.waiting_count),
        (
            "dequeue_latency_milliseconds",
            "Time by which deliveries are late.",
            service.behind_ms(now_ms),
        ),
    ):
        yield gauge(f"rocketmq_timer_{name}", text, [Sample(labels, value)])
    yield counter(
        "rocketpost_timer_delivered_total",
        "Timed messages that were delivered.",
        single(service.delivered),
    )
