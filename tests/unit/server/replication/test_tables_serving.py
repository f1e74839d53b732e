"""Progress of delayed and timed messages, as slaves and returning masters fetch it."""

from __future__ import annotations

from rocketpost.broker.delay.progress import DelayProgress
from rocketpost.broker.timer.master_timer import MasterTimer
from rocketpost.codec.bodies.timer import TimerCheckPoint, TimerMetrics, TopicTimers
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.model.ids import Position
from rocketpost.model.topic import DataVersion
from rocketpost.server.replication.tables_serving import (
    FollowedTimer,
    ProgressFeature,
    VersionedCounts,
)
from rocketpost.testing.clock import FakeClock

from ..handlers.fakes import Caller

CHECK_POINT = TimerCheckPoint(1000, 52, 7, 8, 0, 99, 3)


def delays() -> DelayProgress:
    progress = DelayProgress(clock=FakeClock(5))
    progress.durable = lambda: Position(10)
    progress.advance(3, 7, position=Position(10))
    return progress


async def test_the_progress_of_delay_levels() -> None:
    caller = Caller(ProgressFeature(delays=delays(), timer=None))
    response = await caller(RequestCode.GET_ALL_DELAY_OFFSET)
    assert response.body == (
        b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"offsetTable":{3:7}}'
    )


async def test_a_follower_passes_on_what_it_knows_of_the_timer() -> None:
    known = MasterTimer()
    known.follow(CHECK_POINT, left_before=(8, 990))
    known.follow_metrics(TimerMetrics(timing_count={"T": TopicTimers(count=2, time_stamp=9)}))
    caller = Caller(ProgressFeature(delays=delays(), timer=FollowedTimer(known)))
    response = await caller(RequestCode.GET_TIMER_CHECK_POINT)
    assert response.body == b"".join(each.to_bytes(8, "big") for each in CHECK_POINT)
    response = await caller(RequestCode.GET_TIMER_METRICS)
    assert response.body == (
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},'
        b'"timingCount":{"T":{"count":2,"timeStamp":9}}}'
    )


async def test_a_broker_without_timer_refuses_as_rocketmq_does() -> None:
    caller = Caller(ProgressFeature(delays=delays(), timer=None))
    for code, begin in (
        (RequestCode.GET_TIMER_CHECK_POINT, "The checkpoint is null"),
        (RequestCode.GET_TIMER_METRICS, "The timer message store is null"),
    ):
        response = await caller(code)
        assert response.code == ResponseCode.SYSTEM_ERROR
        assert response.remark is not None
        assert response.remark.startswith(begin)


def test_the_version_of_metrics_changes_with_them() -> None:
    clock = FakeClock(100)
    counts = VersionedCounts(clock=clock)
    first = counts.metrics({"T": 1, "Gone": 0})
    assert first.timing_count == {"T": TopicTimers(count=1, time_stamp=100)}
    clock.advance(50)
    assert counts.metrics({"T": 1}) is first
    second = counts.metrics({"T": 1, "U": 4})
    assert second.timing_count == {
        "T": TopicTimers(count=1, time_stamp=100),
        "U": TopicTimers(count=4, time_stamp=150),
    }
    assert second.data_version == DataVersion(2, 0, 150)


def test_the_master_timer_is_saved_and_read_back() -> None:
    known = MasterTimer()
    known.follow(CHECK_POINT, left_before=(8, 990))
    known.follow(CHECK_POINT, left_before=(8, 990))
    assert known.revision == 1
    again = MasterTimer()
    again.load(known.to_json())
    assert again.check_point == CHECK_POINT
    assert again.left_before == (8, 990)
