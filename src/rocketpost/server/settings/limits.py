"""Broker settings in the form that its services take."""

from __future__ import annotations

import os
from typing import Final

from rocketpost.broker.pull.reader import PullLimits
from rocketpost.broker.topic import TopicRules
from rocketpost.server.settings.broker import BrokerConfig

_SLAVE_RATIO_LESS: Final = 10
"""Part of the memory, in percent, by which a slave counts less of it than a master."""


def topic_rules(config: BrokerConfig) -> TopicRules:
    """Return the rules for creating topics."""
    return TopicRules(
        auto_create=config.auto_create_topic,
        default_queue_count=config.default_topic_queue_nums,
        cluster_topic=config.cluster_topic,
        broker_topic=config.broker_topic,
        trace_topic=config.trace_topic if config.trace_topic_enable else None,
        mixed_types=config.mixed_topics,
    )


def pull_limits(config: BrokerConfig) -> PullLimits:
    """Return the limits of one pull; a slave counts less of its memory, as RocketMQ's does."""
    ratio = (
        max(0, config.memory_ratio - _SLAVE_RATIO_LESS) if config.is_slave else config.memory_ratio
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return PullLimits(
        memory_bytes=memory * ratio // 100,
        bytes_in_memory=config.pull_bytes_in_memory,
        count_in_memory=config.pull_count_in_memory,
        bytes_on_disk=config.pull_bytes_on_disk,
        count_on_disk=config.pull_count_on_disk,
        scan_bytes=config.scan_bytes_max,
        batch_max=config.pull_count_max,
    )


def share(taken: int, total_max: int, own_max: int) -> int:
    """Return the number of shared places that one connection may take.

    This is never more than the free places: one greedy connection leaves half, two leave a third,
    and a new one always finds some.
    """
    return min(own_max, total_max - taken)
