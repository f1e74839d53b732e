"""The timer's progress as RocketMQ's slaves read it."""

from __future__ import annotations

import pytest

from rocketpost.codec.bodies.timer import (
    TimerCheckPoint,
    TimerMetrics,
    TopicTimers,
    decode_check_point,
    decode_timer_metrics,
    encode_check_point,
    encode_timer_metrics,
)
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.topic import DataVersion

CHECK_POINT = TimerCheckPoint(1794799681870, 52, 7, 7, 0, 1794799681871, 3)
GOLDEN = bytes.fromhex(
    "000001a1e265c14e 0000000000000034 0000000000000007 0000000000000007"
    "0000000000000000 000001a1e265c14f 0000000000000003"
)
METRICS = TimerMetrics(
    data_version=DataVersion(2, 0, 1794799681870),
    timing_count={"T": TopicTimers(count=5, time_stamp=1794799681000)},
)


def test_a_check_point_has_56_bytes() -> None:
    assert encode_check_point(CHECK_POINT) == GOLDEN
    assert decode_check_point(GOLDEN) == CHECK_POINT


def test_a_check_point_of_an_old_broker_has_32_bytes() -> None:
    assert decode_check_point(GOLDEN[:32]) == TimerCheckPoint(1794799681870, 52, 7, 7)


@pytest.mark.parametrize("size", [0, 31, 33, 55, 57])
def test_a_check_point_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{size} bytes"):
        decode_check_point(bytes(size))


def test_metrics_are_written_as_by_java() -> None:
    data = encode_timer_metrics(METRICS)
    assert data == (
        b'{"dataVersion":{"counter":2,"stateVersion":0,"timestamp":1794799681870},'
        b'"timingCount":{"T":{"count":5,"timeStamp":1794799681000}}}'
    )
    assert decode_timer_metrics(data) == METRICS
