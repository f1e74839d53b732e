"""Progress that slaves fetch from their master, or a returning master from its slaves.

RocketMQ's slave asks for the delay offsets, and for the timer's check point and metrics (the latter
two on the port for old clients, which serves the same requests). A leader answers with its own
progress, a follower with what it knows of its master.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.timer.master_timer import MasterTimer
from rocketpost.codec.bodies.timer import (
    TimerCheckPoint,
    TimerMetrics,
    TopicTimers,
    encode_check_point,
    encode_timer_metrics,
)
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.codec.faults import ServerError
from rocketpost.model.clock import Clock
from rocketpost.model.topic import DataVersion
from rocketpost.server.feature import Feature
from rocketpost.server.handlers.replies import json_reply
from rocketpost.server.routes.access import GET, of_cluster
from rocketpost.server.routes.route import NO_HEADER, Reply, Route, plain
from rocketpost.transport.connection import Connection


class Timer(Protocol):
    """A timer whose progress is served."""

    def check_point(self) -> TimerCheckPoint:
        """Return its progress."""
        ...

    def left_before(self) -> tuple[int, int]:
        """Return the offset and time before which messages have left the wheel."""
        ...

    def timer_metrics(self) -> TimerMetrics:
        """Return the number of waiting messages of each topic."""
        ...


class FollowedTimer:
    """The timer of the master, as a follower knows it."""

    def __init__(self, known: MasterTimer) -> None:
        self._known = known

    def check_point(self) -> TimerCheckPoint:
        """Return the master's progress."""
        return self._known.check_point

    def left_before(self) -> tuple[int, int]:
        """Return the offset and time before which messages have left the wheel."""
        return self._known.left_before

    def timer_metrics(self) -> TimerMetrics:
        """Return the number of waiting messages of each topic."""
        return self._known.metrics


class VersionedCounts:
    """Waiting messages by topic, with a version that changes when they do."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._metrics = TimerMetrics(data_version=DataVersion(timestamp=clock.now_ms()))

    def metrics(self, counts: Mapping[str, int]) -> TimerMetrics:
        """Return these numbers with their version."""
        waiting = {topic: count for topic, count in counts.items() if count > 0}
        if waiting != self._counts:
            now_ms = self._clock.now_ms()
            before = self._metrics.timing_count
            self._metrics = TimerMetrics(
                data_version=self._metrics.data_version.next(now_ms),
                timing_count={
                    topic: before[topic]
                    if self._counts.get(topic) == count
                    else TopicTimers(count=count, time_stamp=now_ms)
                    for topic, count in waiting.items()
                },
            )
            self._counts = waiting
        return self._metrics


class ProgressFeature(Feature):
    """Serves the progress of delayed and timed messages. Owned by the loop.

    Args:
        delays: The delivery progress of the delay levels.
        timer: The timer; None if timed messages are switched off.
    """

    def __init__(self, *, delays: DelayProgress, timer: Timer | None) -> None:
        self._delays = delays
        self._timer = timer

    def routes(self) -> Sequence[Route]:
        """Return the routes of requests for progress."""
        return [
            plain(RequestCode.GET_ALL_DELAY_OFFSET, NO_HEADER, of_cluster(GET), self.delay_offsets),
            plain(RequestCode.GET_TIMER_CHECK_POINT, NO_HEADER, of_cluster(GET), self.check_point),
            plain(RequestCode.GET_TIMER_METRICS, NO_HEADER, of_cluster(GET), self.timer_metrics),
        ]

    def delay_offsets(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return the progress of each level, in the form of ``delayOffset.json``."""
        return Reply(body=self._delays.body())

    def check_point(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return the progress of the timer."""
        if self._timer is None:
            raise ServerError("The checkpoint is null: timerWheelEnable is false on this broker")
        return Reply(body=encode_check_point(self._timer.check_point()))

    def timer_metrics(self, connection: Connection, command: Command, header: None) -> Reply:
        """Return the number of waiting timed messages of each topic."""
        if self._timer is None:
            raise ServerError(
                "The timer message store is null: timerWheelEnable is false on this broker"
            )
        return json_reply(encode_timer_metrics(self._timer.timer_metrics()))
