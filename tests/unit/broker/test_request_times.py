from __future__ import annotations

import pytest

from rocketpost.broker.request_times import (
    UNKNOWN,
    RequestTimes,
    Result,
    TimesKey,
    request_name,
    response_name,
)
from rocketpost.codec.codes import RequestCode, ResponseCode

SEND = int(RequestCode.SEND_MESSAGE_V2)


class Watch:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_request_is_counted_when_it_is_answered() -> None:
    watch = Watch()
    times = RequestTimes(now=watch)
    timing = times.begin()
    assert times.latencies() == []
    watch.seconds += 0.004
    timing.end(SEND, ResponseCode.SUCCESS)
    ((key, found),) = times.latencies()
    assert key == TimesKey(SEND, 0, False, Result.SUCCESS)
    assert (found.count, round(found.sum)) == (1, 4)
    assert found.counts[found.bounds.index(5)] == 1


def test_held_and_oneway_requests_are_told_apart() -> None:
    times = RequestTimes(now=Watch())
    held = times.begin()
    held.is_held = True
    held.end(RequestCode.PULL_MESSAGE, ResponseCode.PULL_NOT_FOUND)
    times.begin().end(SEND, ResponseCode.SUCCESS, is_oneway=True)
    assert [(key.is_held, key.result) for key, _ in times.latencies()] == [
        (True, Result.SUCCESS),
        (False, Result.ONEWAY),
    ]


def test_a_lane_counts_the_requests_of_one_call_together() -> None:
    times = RequestTimes(now=Watch())
    times.sends.count(SEND, 0.002, 6)
    times.sends.count_oneway(SEND, 0.002, 4)
    times.sends.count(SEND, 0.001, 1)
    assert {key.result: found.count for key, found in times.latencies()} == {
        Result.SUCCESS: 7,
        Result.ONEWAY: 4,
    }
    assert (times.sends.total, times.pulls.total) == (11, 0)


def test_a_lane_and_the_ordinary_way_share_their_counts() -> None:
    watch = Watch()
    times = RequestTimes(now=watch)
    timing = times.begin()
    watch.seconds += 0.002
    timing.end(SEND, ResponseCode.SUCCESS)
    times.sends.count(SEND, 0.002, 2)
    times.sends.count(SEND, 4.0, 1)
    ((_, found),) = times.latencies()
    assert found.counts == [0, 3, 0, 0, 0, 0, 0, 0, 0, 1]
    assert round(found.sum) == 4006


@pytest.mark.parametrize("asks_between", [True, False])
def test_quick_and_slow_requests_of_a_lane_are_all_counted(asks_between: bool) -> None:
    times = RequestTimes(now=Watch())
    other = int(RequestCode.SEND_BATCH_MESSAGE)
    for code in (SEND, SEND, other, SEND, other, other):
        for milliseconds in (0.25, 1.0, 1.5, 0.25, 60_000.0):
            times.sends.count(code, milliseconds / 1000, 2)
            if asks_between:
                times.latencies()
    found = {key.request: histogram for key, histogram in times.latencies()}
    assert [each * 3 for each in [3, 1, 0, 0, 0, 0, 0, 0, 0, 1]] == [
        each // 2 for each in found[SEND].counts
    ]
    assert found[SEND].counts == found[other].counts
    assert round(found[SEND].sum) == round(found[other].sum) == 3 * 2 * 60_003
    assert times.sends.total == 6 * 5 * 2


def test_creations_are_counted_by_their_outcome() -> None:
    times = RequestTimes(now=Watch())
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    times.begin().end(code, ResponseCode.SUCCESS)
    times.begin().end(code, ResponseCode.SYSTEM_ERROR)
    times.begin().end(code, ResponseCode.SUCCESS)
    assert {is_done: found.count for is_done, found in times.creations(code)} == {
        True: 2,
        False: 1,
    }
    assert not list(times.creations(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP))


def test_a_stranger_cannot_add_names() -> None:
    assert request_name(SEND) == "send_message_v2"
    assert response_name(ResponseCode.SUCCESS) == "success"
    assert request_name(31_337) == response_name(31_337) == UNKNOWN
