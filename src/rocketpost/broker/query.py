"""Answers to administrators about queues and progress, from the store and the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import NO_OFFSET, OffsetTable
from rocketpost.broker.group.standstill import Cause
from rocketpost.broker.stats import BrokerStats
from rocketpost.broker.steps import QUEUES_AT_A_STEP, Steps
from rocketpost.broker.topic import TopicTable
from rocketpost.codec.bodies.offset import ConsumeState, QueueProgress, TimeSpan
from rocketpost.codec.bodies.topic import TopicQueueState, TopicState
from rocketpost.model.clock import Clock
from rocketpost.model.ids import QueueOffset
from rocketpost.model.route import MessageQueue
from rocketpost.model.shrinking import Behind
from rocketpost.model.topic import TopicConfig


class Queue(Protocol):
    """The part of a consume queue that queries use."""

    @property
    def first(self) -> QueueOffset:
        """Offset of the oldest readable message."""
        ...

    @property
    def end(self) -> QueueOffset:
        """Offset one past the newest readable message."""
        ...

    def store_time(self, offset: int) -> int:
        """Return when the message at ``offset`` was stored, -1 if there is none."""
        ...


class Queues(Protocol):
    """The part of the store that queries use."""

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue; None if it was never written."""
        ...


class ProgressQueries:
    """Answers questions about topics and groups.

    Args:
        broker_name: Part of the name of every queue in an answer.
        cause: Returns why a group makes no progress in a queue.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        broker_name: str,
        queues: Queues,
        topics: TopicTable,
        offsets: OffsetTable,
        membership: Membership,
        stats: BrokerStats,
        cause: Callable[[str, str, int], Cause | None] = lambda topic, group, queue_id: None,
    ) -> None:
        self._clock = clock
        self._broker_name = broker_name
        self._queues = queues
        self._topics = topics
        self._offsets = offsets
        self._membership = membership
        self._stats = stats
        self._cause = cause

    def topic_state(self, config: TopicConfig) -> Steps[TopicState]:
        """Return the first and end offset of every queue of a topic."""
        count = max(config.read_queue_nums, config.write_queue_nums)
        states = {}
        for queue_id in range(count):
            if queue_id and queue_id % QUEUES_AT_A_STEP == 0:
                yield
            queue = self._queues.queue(config.topic_name, queue_id)
            states[self._name(config, queue_id)] = (
                TopicQueueState()
                if queue is None
                else TopicQueueState(
                    min_offset=queue.first,
                    max_offset=queue.end,
                    last_update_timestamp=max(0, queue.store_time(queue.end - 1)),
                )
            )
        return TopicState(queues=states, put_tps=self._stats.topic_put_tps(config.topic_name))

    def consume_state(self, group: str, topics: Sequence[str] = ()) -> Steps[ConsumeState]:
        """Return the progress of a group in ``topics``, or in all its topics if none are given.

        While members are online, topics that they do not subscribe to are omitted.
        """
        members = self._membership.consumer_group(group)
        queues: dict[MessageQueue, QueueProgress] = {}
        tps = 0.0
        for topic in dict.fromkeys(topics or self._offsets.topics_of(group)):
            config = self._topics.find(topic)
            if config is None:
                continue
            if members is not None and topic not in members.subscriptions:
                continue
            for queue_id in range(config.read_queue_nums):
                queues[self._name(config, queue_id)] = self._progress(topic, group, queue_id)
                if len(queues) % QUEUES_AT_A_STEP == 0:
                    yield
            tps += self._stats.group_get_tps(topic, group)
        return ConsumeState(queues=queues, consume_tps=round(tps, 4))

    def time_spans(self, config: TopicConfig, group: str) -> list[TimeSpan]:
        """Return the time span of each queue's messages, and the group's place in it."""
        now_ms = self._clock.now_ms()
        spans = []
        for queue_id in range(config.write_queue_nums):
            queue = self._queues.queue(config.topic_name, queue_id)
            if queue is None:
                continue
            oldest_ms = queue.store_time(queue.first)
            offset = self._offsets.query(config.topic_name, group, queue_id)
            consumed_ms = queue.store_time(offset - 1) if offset > 0 else oldest_ms
            next_ms = queue.store_time(max(offset, queue.first))
            spans.append(
                TimeSpan(
                    message_queue=self._name(config, queue_id),
                    min_time_stamp=oldest_ms,
                    max_time_stamp=queue.store_time(queue.end - 1),
                    consume_time_stamp=consumed_ms,
                    delay_time=max(0, now_ms - next_ms) if next_ms > 0 else 0,
                )
            )
        return spans

    def readers(self, topic: str) -> list[str]:
        """Return the groups that read a topic, now or in the past."""
        groups = [*self._membership.subscribers(topic), *self._offsets.groups_of(topic)]
        return list(dict.fromkeys(groups))

    def behind(self, topic: str, queue_ids: Iterable[int]) -> list[Behind]:
        """Return the messages of some queues that the readers of a topic have not consumed.

        If no group reads the topic, all its messages count as not consumed.
        """
        found = []
        groups = self.readers(topic) or [""]
        for queue_id in queue_ids:
            queue = self._queues.queue(topic, queue_id)
            if queue is None:
                continue
            for group in groups:
                offset = self._offsets.query(topic, group, queue_id)
                count = queue.end - max(offset, queue.first)
                if count > 0:
                    found.append(Behind(queue_id, group, count))
        return found

    def _name(self, config: TopicConfig, queue_id: int) -> MessageQueue:
        return MessageQueue(self._broker_name, queue_id, config.topic_name)

    def _progress(self, topic: str, group: str, queue_id: int) -> QueueProgress:
        queue = self._queues.queue(topic, queue_id)
        offset = max(0, self._offsets.query(topic, group, queue_id))
        pulled = max(self._offsets.pulled_offset(topic, group, queue_id), offset)
        consumed_ms = queue.store_time(offset - 1) if queue and offset > 0 else NO_OFFSET
        cause = self._cause(topic, group, queue_id)
        return QueueProgress(
            standing=msgspec.UNSET if cause is None else cause.text,
            broker_offset=queue.end if queue else 0,
            consumer_offset=offset,
            pull_offset=pulled,
            last_timestamp=max(0, consumed_ms),
        )
