"""The metric families of messages: stored, given to groups, not consumed, given up."""

from __future__ import annotations

import operator
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
from rocketpost.server.metrics.group_lags import GroupLags, LagQueue, StoreTimes, collect_lags

_IN: Final = PairLabels("topic", "message_type", "is_system")
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
    for reader in stats.readers():
        pair = reader.reader
        if exist(*pair):
            text = _OUT.find(pair) or _OUT.make(pair, *pair, _is_system(topics, *pair))
            readers.append(text)
            reads.append(reader)
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
    lags = GroupLags()
    for _ in collect_lags(
        lags,
        context.tables.offsets,
        cast(Callable[[str], Iterable[LagQueue]], context.store.queues.each_of),
        popped_counts,
        times,
        exist=context.tables.exist,
        now_ms=context.clock.now_ms(),
    ):
        yield pause()
    topics = context.tables.topics
    texts = [_LAG.find(pair) or _lag_labels(topics, pair) for pair in lags.readers]

    def family(name: str, text: str, values: list[int]) -> Family:
        return gauge(f"rocketmq_consumer_{name}", text, Column(texts, values))

    yield family(
        "lag_messages",
        "Messages that are not consumed.",
        list(map(operator.add, lags.ready, lags.in_flight)),
    )
    yield family(
        "inflight_messages",
        "Messages that a group was given and has not consumed.",
        lags.in_flight,
    )
    yield family("ready_messages", "Messages that a group was not given yet.", lags.ready)
    yield family(
        "lag_latency_milliseconds",
        "Age of the oldest message that is not consumed.",
        lags.lag_ms,
    )
    yield family(
        "queueing_latency_milliseconds",
        "Age of the oldest message that a group was not given yet.",
        lags.queueing_ms,
    )


def _in_labels(topics: TopicTable, config: TopicConfig) -> str:
    topic = config.topic_name
    pair = topic, config.attributes.get(MESSAGE_TYPE, "")
    return _IN.find(pair) or _IN.make(
        pair, topic, pair[1].lower() or "normal", flag(topics.is_system(topic))
    )


def _lag_labels(topics: TopicTable, pair: tuple[str, str]) -> str:
    is_retry = flag(pair[0].startswith(RETRY_PREFIX))
    return _LAG.make(pair, *pair, is_retry, _is_system(topics, *pair))


def _is_system(topics: TopicTable, topic: str, group: str) -> str:
    return flag(topics.is_system(topic) or is_system_group(group))
