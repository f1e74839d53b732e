"""Causes of a stopped queue: the reasons that a broker can see for a group's lack of progress.

The members know more, such as which handler is busy with which message; ``mqadmin consumerStatus``
asks them. This module finds the causes that are visible from outside. Its watch logs the cause as
soon as a group has made no progress for a minute, once per cause, so that an administrator need not
guess.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.group.membership import Membership
from rocketpost.broker.group.offsets import NO_OFFSET, OffsetTable
from rocketpost.broker.group.queue_locks import QueueLocks
from rocketpost.broker.group.table import GroupTable
from rocketpost.broker.topic import TopicTable
from rocketpost.model.clock import Clock
from rocketpost.model.ids import QueueOffset
from rocketpost.model.names import SYSTEM_GROUP_PREFIX
from rocketpost.model.route import MessageQueue
from rocketpost.model.topic import PERM_READ

logger = logging.getLogger(__name__)

STILL_MS: Final = 60_000
"""Time without progress after which an offset is worth a log line."""
LINES_MAX: Final = 100
"""Lines in the log for one round of the watch."""


class Queue(Protocol):
    """The part of a consume queue that this module uses."""

    @property
    def end(self) -> QueueOffset:
        """Offset one past the newest readable message."""
        ...


class Queues(Protocol):
    """The part of the store that this module uses."""

    def queue(self, topic: str, queue_id: int) -> Queue | None:
        """Return a queue; None if it was never written."""
        ...


class Cause(NamedTuple):
    """Possible cause of a stopped queue. ``kind`` stays the same while details change."""

    kind: str
    text: str


class Standstill:
    """Finds causes. Owned by the event loop.

    Args:
        broker_name: Part of the name of every locked queue.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        broker_name: str,
        queues: Queues,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        membership: Membership,
        locks: QueueLocks,
    ) -> None:
        self._clock = clock
        self._broker_name = broker_name
        self._queues = queues
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._membership = membership
        self._locks = locks

    def lag(self, topic: str, queue_id: int, offset: int) -> int:
        """Return the number of messages from an offset on; negative if it is beyond the end."""
        queue = self._queues.queue(topic, queue_id)
        return (0 if queue is None else queue.end) - offset

    def cause(self, topic: str, group: str, queue_id: int) -> Cause | None:
        """Return why a group makes no progress in a queue; None if there is nothing to consume."""
        offset = max(0, self._offsets.query(topic, group, queue_id))
        lag = self.lag(topic, queue_id, offset)
        if lag == 0:
            return None
        if lag < 0:
            return Cause(
                "offset", f"its offset {offset} is beyond the end of the queue at {offset + lag}"
            )
        return self._blocking_cause(topic, group) or self._member_cause(
            topic, group, queue_id, offset
        )

    def _blocking_cause(self, topic: str, group: str) -> Cause | None:
        members = self._membership.consumer_group(group)
        if members is None:
            return Cause("offline", "no member is online")
        if topic not in members.subscriptions:
            return Cause("unsubscribed", "no member subscribes to the topic")
        config = self._groups.find(group)
        if config is not None and not config.consume_enable:
            return Cause("disabled", "the group may not consume: consumeEnable=false")
        topic_config = self._topics.find(topic)
        if topic_config is not None and not topic_config.perm & PERM_READ:
            return Cause("forbidden", f"the topic may not be read: perm={topic_config.perm}")
        return None

    def _member_cause(self, topic: str, group: str, queue_id: int, offset: int) -> Cause:
        lock = self._locks.holder(group, MessageQueue(self._broker_name, queue_id, topic))
        owner = ""
        if lock is not None:
            left = max(0, lock.expires_ms - self._clock.now_ms()) / 1000
            owner = f", locked by {lock.client_id} for {left:.0f} s more"
        pulled = self._offsets.pulled_offset(topic, group, queue_id)
        if pulled > offset:
            text = f"a member was given messages up to {pulled} and has not finished {offset}"
            return Cause("busy", text + owner)
        text = "no member takes messages: the queue has no owner, is paused, or its owner is busy"
        wanted = self._membership.subscription(group, topic)
        if wanted is not None and not wanted.takes_all:
            text += f", or none of them matches {wanted.sub_string}"
        return Cause("untaken", text + owner)


class _Seen(NamedTuple):
    offset: int
    since_ms: int
    reported: str | None


class StandstillWatch:
    """Tracks how long offsets have not moved, and logs it. Owned by the event loop."""

    def __init__(self, *, clock: Clock, offsets: OffsetTable, standstill: Standstill) -> None:
        self._clock = clock
        self._offsets = offsets
        self._standstill = standstill
        self._seen: dict[tuple[str, str], dict[int, _Seen]] = {}
        self._lines = 0

    def begin_round(self) -> list[tuple[str, str]]:
        """Return the topics and groups to check, and forget those that are gone."""
        if self._lines > LINES_MAX:
            logger.warning("more queues stand still: lines_left_out=%s", self._lines - LINES_MAX)
        self._lines = 0
        # The broker's own groups have no members, and move only when there is a reason.
        rows = [row for row in self._offsets.rows if not row[1].startswith(SYSTEM_GROUP_PREFIX)]
        for gone in self._seen.keys() - set(rows):
            del self._seen[gone]
        return rows

    def look(self, topic: str, group: str) -> None:
        """Compare offsets with the previous round; log those that have stopped for long enough."""
        before = self._seen.get((topic, group), {})
        now, causes = self._compare(topic, group, before)
        for kind, (text, queue_ids) in causes.items():
            self._log_line(
                "queues stand still: group=%s topic=%s queues=%s lag=%s cause=%s reason=%s",
                group,
                topic,
                ",".join(map(str, queue_ids)),
                sum(self._lag(topic, group, queue_id) for queue_id in queue_ids),
                kind,
                text,
            )
        moving = [
            queue_id
            for queue_id, seen in before.items()
            if seen.reported is not None and (queue_id not in now or now[queue_id].reported is None)
        ]
        if moving:
            ids = ",".join(map(str, moving))
            self._log_line("queues move again: group=%s topic=%s queues=%s", group, topic, ids)
        if now:
            self._seen[topic, group] = now
        else:
            self._seen.pop((topic, group), None)

    def _compare(
        self, topic: str, group: str, before: Mapping[int, _Seen]
    ) -> tuple[dict[int, _Seen], dict[str, tuple[str, list[int]]]]:
        now_ms = self._clock.now_ms()
        now: dict[int, _Seen] = {}
        causes: dict[str, tuple[str, list[int]]] = {}
        for queue_id, offset in self._offsets.row(topic, group).items():
            if self._standstill.lag(topic, queue_id, offset) == 0:
                continue
            seen = before.get(queue_id)
            if seen is None or seen.offset != offset:
                now[queue_id] = _Seen(offset, now_ms, None)
                continue
            now[queue_id] = seen
            cause = self._standstill.cause(topic, group, queue_id)
            if cause is None or now_ms - seen.since_ms < STILL_MS or seen.reported == cause.kind:
                continue
            now[queue_id] = seen._replace(reported=cause.kind)
            causes.setdefault(cause.kind, (cause.text, []))[1].append(queue_id)
        return now, causes

    def _lag(self, topic: str, group: str, queue_id: int) -> int:
        offset = self._offsets.query(topic, group, queue_id)
        return 0 if offset == NO_OFFSET else max(0, self._standstill.lag(topic, queue_id, offset))

    def _log_line(self, text: str, *values: object) -> None:
        self._lines += 1
        if self._lines <= LINES_MAX:
            logger.warning(text, *values)
