"""Figures of a broker and of groups, computed from the answers of brokers. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from rocketpost.codec.bodies.offset import BrokerConsumeState
from rocketpost.console.collect.snapshot import BrokerView, GroupView, TopicView, topic_kind
from rocketpost.diagnosis.lag import queue_lag
from rocketpost.model.group import GroupConfig
from rocketpost.model.names import RETRY_PREFIX, dlq_topic, is_system_group, reply_topic
from rocketpost.model.topic import TopicConfig

_BYTES: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


STILL_SECONDS: Final = 30.0
"""Time without progress after which a queue stands still.

Members commit every five seconds, and a pull whose messages do not match returns after fifteen.
"""


class StillQueue(NamedTuple):
    """An offset of a group in a queue where messages wait."""

    offset: int
    reason: str
    since: float
    """When a round first found the offset there."""


StillQueues = dict[tuple[str, str, str, int], StillQueue]
"""By group, topic, broker name and queue id."""


def describe_broker(view: BrokerView, runtime: Mapping[str, str]) -> BrokerView:
    """Return a broker with the figures of its runtime values."""
    begin, end = (
        _whole(runtime.get("commitLogMinOffset")),
        _whole(runtime.get("commitLogMaxOffset")),
    )
    return msgspec.structs.replace(
        view,
        version=runtime.get("brokerVersionDesc"),
        in_tps=_first(runtime.get("putTps")),
        out_tps=_first(runtime.get("getTransferredTps") or runtime.get("getTransferedTps")),
        in_today=_today(runtime, "msgPutTotalTodayNow", "msgPutTotalTodayMorning"),
        out_today=_today(runtime, "msgGetTotalTodayNow", "msgGetTotalTodayMorning"),
        disk_ratio=_first(runtime.get("commitLogDiskRatio")),
        oldest_ms=_whole(runtime.get("earliestMessageTimeStamp")),
        flush_behind_bytes=_bytes(runtime.get("remainHowManyDataToFlush")),
        dispatch_behind_bytes=_whole(runtime.get("dispatchBehindBytes")),
        started_ms=_whole(runtime.get("bootTimestamp")),
        log_bytes=end - begin if begin is not None and end is not None else None,
        runtime=dict(runtime),
    )


def add_byte_rates(views: Iterable[BrokerView], before: Mapping[str, BrokerView]) -> None:
    """Set the bytes that brokers stored per second, given their state in the round before.

    Brokers tell their rate of messages over ten seconds, and no rate of bytes. It is that rate
    times the mean size of the messages since the round before, or of all if there were none: two
    figures of different times would contradict each other whenever traffic begins or ends.
    """
    for view in views:
        size, count = _stored(view)
        then = before.get(view.address)
        if then is not None and then.started_ms == view.started_ms:
            size_then, count_then = _stored(then)
            if count > count_then:
                size, count = size - size_then, count - count_then
        if view.in_tps is not None and (count > 0 or view.in_tps == 0):
            view.in_bytes = view.in_tps * max(0, size) / max(1, count)


def _stored(view: BrokerView) -> tuple[int, int]:
    """Return the bytes and the messages that a broker has stored since its start."""
    runtime = view.runtime
    return (
        _whole(runtime.get("putMessageSizeTotal")) or 0,
        _whole(runtime.get("putMessageTimesTotal")) or 0,
    )


def merge_topics(
    tables: Iterable[tuple[str, Mapping[str, TopicConfig]]], clusters: Collection[str] = ()
) -> dict[str, TopicView]:
    """Return the topics of all brokers, from the table of each broker name.

    Every broker makes topics that are named after itself and after its cluster; they are no user's.
    """
    found: dict[str, TopicView] = {}
    own = {*clusters, *map(reply_topic, clusters)}
    for broker, table in tables:
        for name, config in table.items():
            topic = found.setdefault(name, TopicView(name=name, kind=topic_kind(config)))
            topic.read_queues += config.read_queue_nums
            topic.write_queues += config.write_queue_nums
            topic.perm |= config.perm
            topic.brokers.append(broker)
            if name == broker or name in own:
                topic.kind = "system"
    return found


class GroupTotals:
    """Adds up the groups of all brokers of one round.

    Args:
        tables: The groups of each broker name.
        at: The time of the round in seconds, by any clock.
    """

    def __init__(
        self, tables: Iterable[tuple[str, Mapping[str, GroupConfig]]], *, at: float
    ) -> None:
        self.groups: dict[str, GroupView] = {}
        self.still: StillQueues = {}
        self.ends: dict[tuple[str, str], int] = {}
        """Sum of the end offsets by topic and broker name."""
        self._at = at
        self._lags: dict[tuple[str, str], int] = {}
        """Messages that wait, by group and topic."""
        for broker, table in tables:
            for name in table:
                if not is_system_group(name):
                    self._group(name).brokers.append(broker)

    def _group(self, name: str) -> GroupView:
        return self.groups.setdefault(name, GroupView(name=name, lag=0, out_rate=0.0, retrying=0))

    def add(self, broker: str, state: BrokerConsumeState, *, now_ms: int) -> None:
        """Add the progress of all groups of a broker."""
        for name, states in state.groups:
            if is_system_group(name):
                continue
            group = self._group(name)
            if broker not in group.brokers:
                group.brokers.append(broker)
            for each in states:
                group.out_rate = (group.out_rate or 0.0) + each.consume_tps
                ends: dict[str, int] = {}
                for queue, progress in each.queues.items():
                    topic, waiting = queue.topic, queue_lag(progress)
                    ends[topic] = ends.get(topic, 0) + progress.broker_offset
                    if topic not in group.topics:
                        group.topics.append(topic)
                    group.lag = (group.lag or 0) + waiting
                    self._lags[name, topic] = self._lags.get((name, topic), 0) + waiting
                    if not waiting:
                        continue
                    if topic.startswith(RETRY_PREFIX):
                        group.retrying = (group.retrying or 0) + waiting
                    if progress.last_timestamp > 0:
                        delay = max(0, now_ms - progress.last_timestamp)
                        group.delay_ms = max(group.delay_ms or 0, delay)
                    reason = "" if progress.standing is msgspec.UNSET else progress.standing
                    key = (name, topic, queue.broker_name, queue.queue_id)
                    self.still[key] = StillQueue(progress.consumer_offset, reason, since=self._at)
                for topic, end in ends.items():
                    self.ends[topic, broker] = max(end, self.ends.get((topic, broker), 0))

    def fail(self, broker: str, problem: str) -> None:
        """Mark the figures of groups as unknown, because a broker of theirs did not answer."""
        for group in self.groups.values():
            if broker in group.brokers or not group.brokers:
                group.lag = group.out_rate = group.retrying = group.delay_ms = None
                group.problem = f"{broker}: {problem}"

    def compare(self, before: Mapping[str, GroupView], still: StillQueues, seconds: float) -> None:
        """Find the groups that stand still or whose lag changes, given the round before."""
        for key, now in self.still.items():
            then = still.get(key)
            group = self.groups[key[0]]
            if then is None or then.offset != now.offset:
                continue
            self.still[key] = now._replace(since=then.since)
            if group.lag is not None and self._at - then.since >= STILL_SECONDS:
                group.still_queues += 1
                group.still_reason = group.still_reason or now.reason
        for name, group in self.groups.items():
            then_group = before.get(name)
            if then_group is None or then_group.lag is None or group.lag is None or seconds <= 0:
                continue
            group.change = (group.lag - then_group.lag) / seconds

    def finish(self, topics: Mapping[str, TopicView]) -> None:
        """Add to topics the groups that read them, and to groups whether they have dead letters."""
        for group in self.groups.values():
            group.has_dead_topic = dlq_topic(group.name) in topics
            group.topics.sort()
            for name in group.topics:
                topic = topics.get(name)
                if topic is not None:
                    topic.groups.append(group.name)
                    if group.lag is not None:
                        lag = self._lags.get((group.name, name), 0)
                        topic.worst_lag = max(topic.worst_lag or 0, lag)


def _first(text: str | None) -> float | None:
    """Return the first of several numbers, such as rates over 10 s, 60 s and 600 s."""
    try:
        return float((text or "").split()[0])
    except (IndexError, ValueError):
        return None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.lstrip("-").isdecimal() else None


def _bytes(text: str | None) -> int | None:
    """Return a size that Java wrote, such as ``512 B`` or ``1.5 KiB``."""
    words = (text or "").split()
    if len(words) != 2 or words[1] not in _BYTES:
        return None
    number = _first(words[0])
    return None if number is None else int(number * _BYTES[words[1]])


def _today(runtime: Mapping[str, str], now: str, morning: str) -> int | None:
    end, begin = _whole(runtime.get(now)), _whole(runtime.get(morning))
    return end - begin if end is not None and begin is not None else None
