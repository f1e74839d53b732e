"""Removes topics and groups that were created by use and then stayed unused.

A topic is removed if it never stored a message: all its sends were refused. A group is removed if
it has no member and no offset, its retry topic has no message, and no message ever waited to be
retried for it. Neither holds any data, and the next use creates it again, so nothing is lost.
Topics and groups that an administrator created or changed are never removed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import OffsetTable
from rocketpost.broker.group.table import GROUP_COUNT_MAX, GroupTable
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.topic import TOPIC_COUNT_MAX, TopicTable
from rocketpost.model.clock import Clock
from rocketpost.model.names import dlq_topic, retry_topic

logger = logging.getLogger(__name__)

_HOUR_MS: Final = 3_600_000
CROWDED_SHARE: Final = 0.5
CROWDED_AGE_MS: Final = 600_000
"""Age at which unused names are removed while a table is more than half full."""


class Store(Protocol):
    """The part of the store that this module uses."""

    def queue(self, topic: str, queue_id: int) -> object | None:
        """Return a queue, or None if it never had a message."""
        ...


class UnusedExpiry:
    """Finds and removes unused topics and groups. Owned by the event loop.

    Args:
        hours: Age at which they are removed; 0 for never.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        membership: Membership,
        store: Store,
        stats: BrokerStats,
        hours: int = 24,
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._membership = membership
        self._store = store
        self._stats = stats
        self._removed: set[str] = set()
        self.hours = hours

    def candidates(self) -> list[str]:
        """Return the names of topics and groups that are old enough, each once."""
        topics, groups = self._topics, self._groups
        old = [*_older(topics.auto.unused, self._oldest_ms(len(topics.configs), TOPIC_COUNT_MAX))]
        old += _older(groups.auto.unused, self._oldest_ms(len(groups.configs), GROUP_COUNT_MAX))
        return list(dict.fromkeys(old))

    def used_names(self) -> Collection[str]:
        """Return the topics and groups that have offsets."""
        return {name for row in self._offsets.rows for name in row}

    def remove(self, name: str, used: Collection[str]) -> None:
        """Remove the topic and the group of that name, if they are unused."""
        if name in used:
            return
        if name in self._topics.auto.unused and not self._has_queues(name):
            if name in self._topics.system_topics:
                self._topics.auto.remove(name)  # it stays
            else:
                self._topics.discard(name, by="expiry: it was created by a send that was refused")
        if name in self._groups.auto.unused and self._membership.consumer_group(name) is None:
            own = [retry_topic(name), dlq_topic(name)]
            if any(topic in used or self._has_queues(topic) for topic in own):
                return
            self._groups.discard(name, by="expiry: nobody consumes with it")
            self._removed.add(name)
            for topic in own:
                if self._topics.find(topic) is not None:
                    self._topics.discard(topic, by="expiry: its group is gone")

    def forget_counters(self) -> None:
        """Forget the counters of the groups removed so far; looks through all counters once."""
        if self._removed:
            self._offsets.forget_pulls(self._removed)
            self._stats.forget_groups(self._removed)
            self._removed.clear()

    def _has_queues(self, topic: str) -> bool:
        config = self._topics.find(topic)
        if config is None:
            return False
        count = max(config.read_queue_nums, config.write_queue_nums)
        return any(self._store.queue(topic, queue_id) is not None for queue_id in range(count))

    def _oldest_ms(self, count: int, count_max: int) -> int | None:
        if count > count_max * CROWDED_SHARE:
            return self._clock.now_ms() - CROWDED_AGE_MS
        return self._clock.now_ms() - self.hours * _HOUR_MS if self.hours else None


def _older(created: Mapping[str, int], oldest_ms: int | None) -> list[str]:
    return [name for name, ms in created.items() if oldest_ms is not None and ms < oldest_ms]
