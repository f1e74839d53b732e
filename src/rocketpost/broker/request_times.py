"""Times from the arrival of requests to their answers, by request and response code.

The dispatcher gives each request a :class:`Timing`, which ends when the request is answered. The
lanes count the requests that they take in one call together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.model.histogram import Histogram

# Python compares two floats in half the time of a float and an integer.
LATENCY_BOUNDS_MS: Final = (1.0, 3.0, 5.0, 7.0, 10.0, 100.0, 1000.0, 2000.0, 3000.0)
QUICK_SECONDS: Final = LATENCY_BOUNDS_MS[0] / 1000
"""Longest time of requests in the first bucket."""
CREATION_BOUNDS_MS: Final = (10, 100, 1000, 3000, 5000)
UNKNOWN: Final = "unknown"
"""Name of codes that have none, so that strangers cannot add names."""

_SUCCESS: Final = int(ResponseCode.SUCCESS)
_NO_REQUEST: Final = -1


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
    """Counts the requests that one lane takes, those of one call or wave together.

    Each call and each object makes a lone send slower. So the lane itself counts quick requests of
    one code in this object, until the code changes or the histograms are read.
    """

    __slots__ = ("_histograms", "quick", "quick_seconds", "request")

    def __init__(self) -> None:
        self._histograms: dict[_Key, Histogram] = {}
        self.request = _NO_REQUEST
        """Code of the quick requests."""
        self.quick = 0
        """Number of quick requests that are not in the histograms yet."""
        self.quick_seconds = 0.0
        """Sum of their times."""

    def count(self, request: int, seconds: float, count: int) -> None:
        """Count requests that were answered with success.

        Args:
            request: Their code.
            seconds: Time until their answers.
            count: Their number.
        """
        if request != self.request or seconds > QUICK_SECONDS:
            self._settle()
            self.request = request
            self._histogram((request, _SUCCESS, False, False)).add(seconds * 1000, count)
        else:
            self.quick += count
            self.quick_seconds += seconds * count

    def count_oneway(self, request: int, seconds: float, count: int) -> None:
        """Count requests that want no answer; see :meth:`count`."""
        self._histogram((request, _SUCCESS, False, True)).add(seconds * 1000, count)

    @property
    def histograms(self) -> Mapping[_Key, Histogram]:
        """Times of the requests that the lane has taken."""
        self._settle()
        return self._histograms

    @property
    def total(self) -> int:
        """Number of requests that the lane has taken."""
        return sum([each.count for each in self.histograms.values()])

    def _settle(self) -> None:
        """Add the quick requests to the others of their code."""
        if self.quick:
            found = self._histogram((self.request, _SUCCESS, False, False))
            found.counts[0] += self.quick
            found.sum += self.quick_seconds * 1000
            self.quick, self.quick_seconds = 0, 0.0

    def _histogram(self, key: _Key) -> Histogram:
        found = self._histograms.get(key)
        if found is None:
            found = self._histograms[key] = Histogram(LATENCY_BOUNDS_MS)
        return found


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
        self.sends = LaneTimes()
        """Requests of the send lane."""
        self.pulls = LaneTimes()
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
        found = dict(self._latencies)
        for lane in (self.sends, self.pulls):
            for key, histogram in lane.histograms.items():
                found[key] = histogram + found[key] if key in found else histogram
        return [
            (TimesKey(request, response, is_held, _RESULTS[is_oneway]), histogram)
            for (request, response, is_held, is_oneway), histogram in found.items()
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
