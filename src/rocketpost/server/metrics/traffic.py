"""The metric families of messages: stored, given to groups, not consumed, given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast

from rocketpost.broker.attributes import MESSAGE_TYPE
from rocketpost.broker.stats import SIZE_BOUNDS
from rocketpost.broker.topic import TopicTable
from rocketpost.model.names import RETRY_PREFIX, is_retry_or_dlq, is_system_group
from rocketpost.server.context import BrokerContext
from rocketpost.server.metrics.exposition import (
    Family,
    Labels,
    PairLabels,
    Sample,
    counter,
    flag,
    gauge,
    histogram,
    pause,
)
from rocketpost.server.metrics.group_lags import GroupLag, LagQueue, StoreTimes, group_lags

LAGS_AT_ONCE: Final = 50
"""Most groups whose lag is computed before the event loop serves requests again."""
READS_AT_ONCE: Final = 20
"""Most records that are read for it, perhaps from the disk, before the same."""

_IN: Final = Labels("topic", "message_type", "is_system")
_OUT: Final = PairLabels("topic", "consumer_group", "is_system")
_DEAD: Final = Labels("consumer_group", "topic", "is_system")
_LAG: Final = PairLabels("topic", "consumer_group", "is_retry", "is_system")


def traffic_families(context: BrokerContext) -> Iterator[Family]:
    """Return the messages and bytes that were stored, given to groups, and given up."""
    stats, topics, exist = context.stats, context.tables.topics, context.tables.exist
    stored = [
        (_in_labels(topics, topic), meter)
        for topic, meter in stats.topics()
        if not is_retry_or_dlq(topic) and topics.find(topic) is not None
    ]
    yield pause()
    yield counter(
        "rocketmq_messages_in_total",
        "Messages stored.",
        [Sample(labels, meter.count) for labels, meter in stored],
    )
    yield counter(
        "rocketmq_throughput_in_total",
        "Bytes of messages stored.",
        [Sample(labels, meter.size) for labels, meter in stored],
    )
    yield histogram(
        "rocketmq_message_size",
        "Sizes of messages; those that became visible together count with their mean size.",
        ((labels, meter.sizes) for labels, meter in stored),
        bounds=SIZE_BOUNDS,
    )
    taken = [
        (
            _OUT.get(topic, group) or _OUT.put(topic, group, _is_system(topics, topic, group)),
            meter,
        )
        for topic, group, meter in stats.groups()
        if exist(topic, group)
    ]
    yield pause()
    yield counter(
        "rocketmq_messages_out_total",
        "Messages given to consumers.",
        [Sample(labels, meter.count) for labels, meter in taken],
    )
    yield counter(
        "rocketmq_throughput_out_total",
        "Bytes of messages given to consumers.",
        [Sample(labels, meter.size) for labels, meter in taken],
    )
    yield counter(
        "rocketmq_send_to_dlq_messages_total",
        "Messages that became dead letters.",
        [
            Sample(_DEAD(group, topic, _is_system(topics, topic, group)), count)
            for (group, topic), count in stats.dead_letters.items()
        ],
    )


def lag_families(
    context: BrokerContext,
    popped_counts: Mapping[tuple[str, str, int], int],
    times: StoreTimes,
) -> Iterator[Family]:
    """Return the messages that groups have not consumed.

    Args:
        context: The state of the broker.
        popped_counts: The numbers of messages of a (topic, group, queue) that were popped and have
            not been acknowledged.
        times: The store times that are known from the scrape before.
    """
    topics, exist = context.tables.topics, context.tables.exist
    lags: list[tuple[str, GroupLag]] = []
    rows, reads = 0, times.reads
    for lag in group_lags(
        context.tables.offsets,
        cast(Callable[[str], Iterable[LagQueue]], context.store.queues.each_of),
        popped_counts,
        times,
        now_ms=context.clock.now_ms(),
    ):
        if not exist(lag.topic, lag.group):
            continue  # offsets may be kept when a group is deleted
        labels = _LAG.get(lag.topic, lag.group)
        if labels is None:
            is_retry = flag(lag.topic.startswith(RETRY_PREFIX))
            is_system = _is_system(topics, lag.topic, lag.group)
            labels = _LAG.put(lag.topic, lag.group, is_retry, is_system)
        lags.append((labels, lag))
        rows += 1
        if rows >= LAGS_AT_ONCE or times.reads - reads >= READS_AT_ONCE:
            rows, reads = 0, times.reads
            yield pause()

    def family(name: str, text: str, value: Callable[[GroupLag], int]) -> Family:
        samples = (Sample(labels, value(lag)) for labels, lag in lags)
        return gauge(f"rocketmq_consumer_{name}", text, samples)

    yield family("lag_messages", "Messages that are not consumed.", lambda each: each.lag)
    yield family(
        "inflight_messages",
        "Messages that a group was given and has not consumed.",
        lambda each: each.in_flight,
    )
    yield family(
        "ready_messages", "Messages that a group was not given yet.", lambda each: each.ready
    )
    yield family(
        "lag_latency_milliseconds",
        "Age of the oldest message that is not consumed.",
        lambda each: each.lag_ms,
    )
    yield family(
        "queueing_latency_milliseconds",
        "Age of the oldest message that a group was not given yet.",
        lambda each: each.queueing_ms,
    )


def _in_labels(topics: TopicTable, topic: str) -> str:
    config = topics.find(topic)
    kind = "" if config is None else config.attributes.get(MESSAGE_TYPE, "")
    return _IN(topic, kind.lower() or "normal", flag(topics.is_system(topic)))


def _is_system(topics: TopicTable, topic: str, group: str) -> str:
    return flag(topics.is_system(topic) or is_system_group(group))
