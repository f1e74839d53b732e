"""Times from the arrival of requests to their answers, by request and response code.

The dispatcher gives each request a :class:`Timing`, which ends when the request is answered. The
lanes count the requests that they take in one call together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.model.histogram import Histogram

LATENCY_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
CREATION_BOUNDS_MS: Final = (10, 100, 1000, 3000, 5000)
UNKNOWN: Final = "unknown"
"""Name of codes that have none, so that strangers cannot add names."""


class RequestLane(StrEnum):
    """A way around the dispatcher."""

    SEND = "send"
    PULL = "pull"


class Result(StrEnum):
    """Outcome of a request, by RocketMQ's words."""

    SUCCESS = "success"
    ONEWAY = "oneway"


class TimesKey(NamedTuple):
    """Requests that are counted together."""

    request: int
    response: int
    is_held: bool
    """Whether the request had to wait for a message."""
    result: Result


class Timing:
    """The time of one request that is not answered yet."""

    __slots__ = ("_since", "_times", "is_held")

    def __init__(self, times: RequestTimes, since: float) -> None:
        self._times = times
        self._since = since
        self.is_held = False

    def end(self, request: int, response: int, *, is_oneway: bool = False) -> None:
        """Count the request, which is answered now."""
        result = Result.ONEWAY if is_oneway else Result.SUCCESS
        key = TimesKey(request, response, self.is_held, result)
        self._times.count(key, self._times.now() - self._since)


class RequestTimes:
    """Counts the times of requests. Owned by the loop.

    Args:
        now: Returns seconds, which never decrease.
    """

    def __init__(self, *, now: Callable[[], float]) -> None:
        self.now = now
        self._latencies: dict[TimesKey, Histogram] = {}
        self._answered_by_lanes: dict[int, Histogram] = {}
        self._creations: dict[int, dict[bool, Histogram]] = {
            code: {is_done: Histogram(CREATION_BOUNDS_MS) for is_done in (True, False)}
            for code in (
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            )
        }
        self.lane_counts: Counter[RequestLane] = Counter()
        """Number of requests that each lane has taken."""

    def begin(self) -> Timing:
        """Return the timing of a request that has arrived now."""
        return Timing(self, self.now())

    def count(self, key: TimesKey, seconds: float, count: int = 1) -> None:
        """Count requests that were answered after some time."""
        found = self._latencies.get(key)
        if found is None:
            found = self._latencies[key] = Histogram(LATENCY_BOUNDS_MS)
        milliseconds = seconds * 1000
        found.add(milliseconds, count)
        if key.request in self._creations:
            is_done = key.response == ResponseCode.SUCCESS
            self._creations[key.request][is_done].add(milliseconds, count)

    def count_lane(
        self, lane: RequestLane, request: int, seconds: float, *, count: int, oneway_count: int = 0
    ) -> None:
        """Count requests that a lane has taken and answered with success.

        Args:
            lane: The lane.
            request: Code of the first one.
            seconds: Time until their answers.
            count: Number of all requests.
            oneway_count: Number of those that want no answer.
        """
        self.lane_counts[lane] += count
        if answered := count - oneway_count:
            # The hash of an enumeration is computed by Python code, so keys are not made again.
            found = self._answered_by_lanes.get(request)
            if found is None:
                key = TimesKey(request, ResponseCode.SUCCESS, False, Result.SUCCESS)
                found = self._latencies.setdefault(key, Histogram(LATENCY_BOUNDS_MS))
                self._answered_by_lanes[request] = found
            found.add(seconds * 1000, answered)
        if oneway_count:
            key = TimesKey(request, ResponseCode.SUCCESS, False, Result.ONEWAY)
            self.count(key, seconds, oneway_count)

    def latencies(self) -> list[tuple[TimesKey, Histogram]]:
        """Return the times of all requests."""
        return list(self._latencies.items())

    def creations(self, code: RequestCode) -> Iterator[tuple[bool, Histogram]]:
        """Yield the times of requests that create topics or groups, done and refused ones."""
        for is_done, histogram in self._creations[code].items():
            if histogram.count:
                yield is_done, histogram


def request_name(code: int) -> str:
    """Return RocketMQ's name of a request code in small letters."""
    return _REQUESTS.get(code, UNKNOWN)


def response_name(code: int) -> str:
    """Return RocketMQ's name of a response code in small letters."""
    return _RESPONSES.get(code, UNKNOWN)


_REQUESTS: Final = {int(code): code.name.lower() for code in RequestCode}
_RESPONSES: Final = {int(code): code.name.lower() for code in ResponseCode}
