"""Destinations of timed messages, and the handling of messages whose topic is gone."""

from __future__ import annotations

import logging
from typing import Final

from rocketpost.broker.delivery import Groups, Topics
from rocketpost.model import properties as names
from rocketpost.model.names import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC

logger = logging.getLogger(__name__)

MISSING_MS_MAX: Final = 60_000
"""Time that a message waits for a topic that does not exist."""
MISSING_RETRY_MS: Final = 1000
_QUEUE_DIGITS_MAX: Final = 9


class Targets:
    """The topics that messages are delivered to. Owned by the event loop."""

    def __init__(self, *, topics: Topics, groups: Groups) -> None:
        self._topics = topics
        self._groups = groups
        self._missing_since: dict[str, int] = {}

    def find(self, topic: str, properties: dict[str, str]) -> tuple[str, int] | None:
        """Return topic and queue; None if a message names none, or may not be delivered there."""
        text = properties.get(names.REAL_QUEUE_ID, "")
        if topic in ("", HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
            return None
        if not (text.isascii() and text.isdecimal() and len(text) <= _QUEUE_DIGITS_MAX):
            return None
        queue_id, config = int(text), self._topics.find(topic)
        if config is not None and queue_id >= max(config.write_queue_nums, config.read_queue_nums):
            queue_id %= max(1, config.write_queue_nums)  # the topic has fewer queues now
        return topic, queue_id

    def is_missing(self, topic: str, now_ms: int) -> bool:
        """Tell whether a topic is missing; the retry topic of a group is created again."""
        if self._topics.find(topic) is None:
            group = topic.removeprefix(RETRY_PREFIX)
            if not topic.startswith(RETRY_PREFIX) or self._groups.find(group) is None:
                if topic not in self._missing_since:
                    logger.warning("timed message waits for a missing topic: topic=%s", topic)
                self._missing_since.setdefault(topic, now_ms)
                return True
            self._topics.create_internal(topic, queue_nums=1)
        self._missing_since.pop(topic, None)
        return False

    def has_given_up(self, topic: str, now_ms: int) -> bool:
        """Tell whether a missing topic has been awaited for long enough."""
        since_ms = self._missing_since[topic] = min(self._missing_since[topic], now_ms)
        if now_ms - since_ms < MISSING_MS_MAX:
            return False
        logger.error("timed message discarded, its topic was deleted: topic=%s", topic)
        return True
