"""Settings of the broker as its services take them."""

from __future__ import annotations

import os

from rocketpost.broker.pull.reader import PullLimits
from rocketpost.broker.topic import TopicRules
from rocketpost.server.settings.broker import BrokerConfig


def topic_rules(config: BrokerConfig) -> TopicRules:
    """Return how topics are made."""
    return TopicRules(
        auto_create=config.auto_create_topic,
        default_queue_count=config.default_topic_queue_nums,
        cluster_topic=config.cluster_topic,
        broker_topic=config.broker_topic,
        trace_topic=config.trace_topic if config.trace_topic_enable else None,
        mixed_types=config.mixed_topics,
    )


def pull_limits(config: BrokerConfig) -> PullLimits:
    """Return what one pull may take."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return PullLimits(
        memory_bytes=memory * config.memory_ratio // 100,
        bytes_in_memory=config.pull_bytes_in_memory,
        count_in_memory=config.pull_count_in_memory,
        bytes_on_disk=config.pull_bytes_on_disk,
        count_on_disk=config.pull_count_on_disk,
        scan_bytes=config.scan_bytes_max,
        batch_max=config.pull_count_max,
    )


def share(taken: int, total_max: int, own_max: int) -> int:
    """Return how many places one connection may have of those that all share.

    Never more than are still free, so that one that takes all it can get leaves half, two leave a
    third, and whoever comes always finds some.
    """
    return min(own_max, total_max - taken)
