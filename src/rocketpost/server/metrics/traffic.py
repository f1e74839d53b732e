"""The metric families of messages: stored, given to groups, not consumed, given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, cast

from rocketpost.broker.attributes import MESSAGE_TYPE
from rocketpost.broker.stats import SIZE_BOUNDS
from rocketpost.broker.topic import TopicTable
from rocketpost.model.names import RETRY_PREFIX, is_retry_or_dlq, is_system_group
from rocketpost.model.topic import TopicConfig
from rocketpost.server.context import BrokerContext
from rocketpost.server.metrics.exposition import (
    Column,
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
    labels, meters = [], []
    for topic, meter in stats.topics():
        config = None if is_retry_or_dlq(topic) else topics.find(topic)
        if config is not None:
            labels.append(_in_labels(topics, config))
            meters.append(meter)
    yield pause()
    yield counter(
        "rocketmq_messages_in_total",
        "Messages stored.",
        Column(labels, [meter.count for meter in meters]),
    )
    yield counter(
        "rocketmq_throughput_in_total",
        "Bytes of messages stored.",
        Column(labels, [meter.size for meter in meters]),
    )
    yield histogram(
        "rocketmq_message_size",
        "Sizes of messages; those that became visible together count with their mean size.",
        ((text, meter.sizes) for text, meter in zip(labels, meters, strict=True)),
        bounds=SIZE_BOUNDS,
    )
    readers, reads = [], []
    for topic, group, meter_of_group in stats.groups():
        if exist(topic, group):
            text = _OUT.get(topic, group) or _OUT.put(
                topic, group, _is_system(topics, topic, group)
            )
            readers.append(text)
            reads.append(meter_of_group)
    yield pause()
    yield counter(
        "rocketmq_messages_out_total",
        "Messages given to consumers.",
        Column(readers, [meter.count for meter in reads]),
    )
    yield counter(
        "rocketmq_throughput_out_total",
        "Bytes of messages given to consumers.",
        Column(readers, [meter.size for meter in reads]),
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
    texts: list[str] = []
    lags: list[GroupLag] = []
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
        texts.append(labels)
        lags.append(lag)
        rows += 1
        if rows >= LAGS_AT_ONCE or times.reads - reads >= READS_AT_ONCE:
            rows, reads = 0, times.reads
            yield pause()

    def family(name: str, text: str, values: list[int]) -> Family:
        return gauge(f"rocketmq_consumer_{name}", text, Column(texts, values))

    yield family(
        "lag_messages",
        "Messages that are not consumed.",
        [each.ready + each.in_flight for each in lags],
    )
    yield family(
        "inflight_messages",
        "Messages that a group was given and has not consumed.",
        [each.in_flight for each in lags],
    )
    yield family(
        "ready_messages",
        "Messages that a group was not given yet.",
        [each.ready for each in lags],
    )
    yield family(
        "lag_latency_milliseconds",
        "Age of the oldest message that is not consumed.",
        [each.lag_ms for each in lags],
    )
    yield family(
        "queueing_latency_milliseconds",
        "Age of the oldest message that a group was not given yet.",
        [each.queueing_ms for each in lags],
    )


def _in_labels(topics: TopicTable, config: TopicConfig) -> str:
    topic, kind = config.topic_name, config.attributes.get(MESSAGE_TYPE, "")
    return _IN(topic, kind.lower() or "normal", flag(topics.is_system(topic)))


def _is_system(topics: TopicTable, topic: str, group: str) -> str:
    return flag(topics.is_system(topic) or is_system_group(group))
