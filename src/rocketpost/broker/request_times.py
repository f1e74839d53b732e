"""Times from the arrival of requests to their answers, by request and response code.

The dispatcher gives each request a :class:`Timing`, which ends when the request is answered. The
lanes count the requests that they take in one call together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.model.histogram import Histogram

LATENCY_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
CREATION_BOUNDS_MS: Final = (10, 100, 1000, 3000, 5000)
UNKNOWN: Final = "unknown"
"""Name of codes that have none, so that strangers cannot add names."""

_SUCCESS: Final = int(ResponseCode.SUCCESS)


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


_Key = tuple[int, int, bool, bool]
"""Request code, response code, whether it was held, and whether it is oneway."""


class Timing:
    """The time of one request that is not answered yet."""

    __slots__ = ("_since", "_times", "is_held")

    def __init__(self, times: RequestTimes, since: float) -> None:
        self._times = times
        self._since = since
        self.is_held = False

    def end(self, request: int, response: int, *, is_oneway: bool = False) -> None:
        """Count the request, which is answered now."""
        times = self._times
        milliseconds = (times.now() - self._since) * 1000
        times.histogram((request, response, self.is_held, is_oneway)).add(milliseconds)
        if request in times.creations_by_code:
            is_done = response == _SUCCESS
            times.creations_by_code[request][is_done].add(milliseconds)


class LaneTimes:
    """Counts the requests that one lane takes, those of one call or wave together."""

    __slots__ = ("_answered", "_histogram", "total")

    def __init__(self, histogram: Callable[[_Key], Histogram]) -> None:
        self._histogram = histogram
        self._answered: dict[int, Histogram] = {}
        self.total = 0
        """Number of requests that the lane has taken."""

    def count(self, request: int, seconds: float, count: int, oneway_count: int = 0) -> None:
        """Count requests that were answered with success.

        Args:
            request: Their code.
            seconds: Time until their answers.
            count: Their number.
            oneway_count: Number of those that want no answer.
        """
        self.total += count
        milliseconds = seconds * 1000
        if count > oneway_count:
            found = self._answered.get(request)
            if found is None:
                found = self._histogram((request, _SUCCESS, False, False))
                self._answered[request] = found
            # The body of Histogram.add: a call would double the cost of a lone send's metrics.
            found.counts[bisect_left(LATENCY_BOUNDS_MS, milliseconds)] += count - oneway_count
            found.sum += milliseconds * (count - oneway_count)
        if oneway_count:
            self._histogram((request, _SUCCESS, False, True)).add(milliseconds, oneway_count)


class RequestTimes:
    """Counts the times of requests. Owned by the loop.

    Args:
        now: Returns seconds, which never decrease.
    """

    def __init__(self, *, now: Callable[[], float]) -> None:
        self.now = now
        self._latencies: dict[_Key, Histogram] = {}
        self.creations_by_code: dict[int, dict[bool, Histogram]] = {
            code: {is_done: Histogram(CREATION_BOUNDS_MS) for is_done in (True, False)}
            for code in (
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            )
        }
        """Times of requests that create or change topics and groups: done and refused ones."""
        self.sends = LaneTimes(self.histogram)
        """Requests of the send lane."""
        self.pulls = LaneTimes(self.histogram)
        """Requests of the pull lane."""

    def begin(self) -> Timing:
        """Return the timing of a request that has arrived now."""
        return Timing(self, self.now())

    def histogram(self, key: _Key) -> Histogram:
        """Return the times of the requests of a key."""
        found = self._latencies.get(key)
        if found is None:
            found = self._latencies[key] = Histogram(LATENCY_BOUNDS_MS)
        return found

    def latencies(self) -> list[tuple[TimesKey, Histogram]]:
        """Return the times of all requests."""
        return [
            (TimesKey(request, response, is_held, _RESULTS[is_oneway]), found)
            for (request, response, is_held, is_oneway), found in self._latencies.items()
        ]

    def creations(self, code: RequestCode) -> Iterator[tuple[bool, Histogram]]:
        """Yield the times of requests that create topics or groups, done and refused ones."""
        for is_done, histogram in self.creations_by_code[code].items():
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
_RESULTS: Final = {True: Result.ONEWAY, False: Result.SUCCESS}
