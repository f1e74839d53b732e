"""Counters of messages stored and delivered, per topic, per group and in total.

The messages of one queue that become visible together are counted at once. Rates come from samples:
of the totals every second, of a topic or group every 10 s (for the minute), every 10 minutes (for
the hour) and every hour (for the day). The server calls :meth:`BrokerStats.sample` every second;
this module has no timer.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from rocketpost.broker.request_times import RequestTimes
from rocketpost.codec.bodies.stats import StatsBody, WindowStats
from rocketpost.model.clock import Clock
from rocketpost.model.histogram import Histogram

SIZE_BOUNDS: Final = (1024.0, 4096.0, 524_288.0, 1_048_576.0, 2_097_152.0, 4_194_304.0)
"""Upper bounds of message sizes in the histogram of a topic."""
RATE_WINDOWS_S: Final = (10, 60, 600)
_DAY_MS: Final = 86_400_000


class StoredMessages(Protocol):
    """Messages of one topic that have been stored."""

    @property
    def topic(self) -> str:
        """Topic of the messages."""
        ...

    @property
    def message_count(self) -> int:
        """Number of messages."""
        ...

    @property
    def record_bytes(self) -> int:
        """Size of the messages in the log."""
        ...


class _Sample(NamedTuple):
    ms: int
    messages: int
    bytes: int
    calls: int


class _Window(NamedTuple):
    every_ms: int
    samples_max: int


_MINUTE: Final = _Window(10_000, 7)
_HOUR: Final = _Window(600_000, 7)
_DAY: Final = _Window(3_600_000, 25)
_WINDOWS: Final = (_MINUTE, _HOUR, _DAY)


class Meter:
    """Messages, bytes and calls of one topic or group, with samples of the past."""

    __slots__ = ("_samples", "calls", "count", "size")

    def __init__(self, now_ms: int) -> None:
        self.count = 0
        self.size = 0
        self.calls = 0
        self._samples = [[_Sample(now_ms, 0, 0, 0)] for _ in _WINDOWS]

    def sample(self, now_ms: int) -> None:
        """Record the counters in every window whose sample is due."""
        for (every_ms, samples_max), samples in zip(_WINDOWS, self._samples, strict=True):
            if now_ms - samples[-1].ms >= every_ms:
                samples.append(_Sample(now_ms, self.count, self.size, self.calls))
                if len(samples) > samples_max:
                    del samples[0]

    def window(self, window: _Window, now_ms: int, *, sizes: bool) -> WindowStats:
        """Return the counts since the oldest sample of a window."""
        oldest = self._samples[_WINDOWS.index(window)][0]
        total = self.size - oldest.bytes if sizes else self.count - oldest.messages
        calls = self.calls - oldest.calls
        span_ms = now_ms - oldest.ms
        return WindowStats(
            sum=total,
            tps=round(total * 1000 / span_ms, 4) if span_ms > 0 else 0.0,
            avgpt=round(total / calls, 4) if calls else 0.0,
        )


class TopicMeter(Meter):
    """Messages and bytes of one topic, with the sizes of the messages if metrics are served.

    Messages that became visible together are counted with their mean size. Most messages of a topic
    are of similar size: those are counted here, until a message of another size comes or the
    histogram is read.
    """

    __slots__ = ("_sizes", "above", "up_to", "within")

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self._sizes = Histogram(SIZE_BOUNDS)
        self.above = self.up_to = 0.0
        """Bounds of the size that was counted last."""
        self.within = 0
        """Messages of that size that are not in the histogram yet."""

    def count_size(self, mean: float, count: int) -> None:
        """Count messages whose size is not within the bounds, and change these."""
        self._settle()
        at = bisect_left(SIZE_BOUNDS, mean)
        self.above = SIZE_BOUNDS[at - 1] if at else 0.0
        self.up_to = SIZE_BOUNDS[at] if at < len(SIZE_BOUNDS) else math.inf
        self.within = count

    @property
    def sizes(self) -> Histogram:
        """The sizes of the messages, if metrics are served."""
        self._settle()
        self._sizes.sum = self.size
        return self._sizes

    def _settle(self) -> None:
        self._sizes.counts[bisect_left(SIZE_BOUNDS, self.up_to)] += self.within
        self.within = 0


class ReaderMeter(Meter):
    """Messages, bytes and calls of one group that takes messages from one topic.

    Args:
        row: ``topic@group``.
        now_ms: The time.
    """

    __slots__ = ("reader",)

    def __init__(self, row: str, now_ms: int) -> None:
        super().__init__(now_ms)
        topic, _, group = row.partition("@")
        self.reader = topic, group
        """Names of the topic and of the group."""


class _Totals(NamedTuple):
    ms: int
    put: int
    found: int
    missed: int
    got: int


class DayTotals(NamedTuple):
    """Value of a counter at the start of yesterday, at the start of today, and now."""

    yesterday_morning: int
    today_morning: int
    now: int


class BrokerStats:
    """The counters of one broker. Owned by the event loop.

    Args:
        day_of: Returns the day number of a time in ms; the server knows the time zone.
    """

    def __init__(self, *, clock: Clock, day_of: Callable[[int], int] | None = None) -> None:
        self._clock = clock
        self._day_of = day_of or (lambda ms: ms // _DAY_MS)
        self.started_ms = clock.now_ms()
        self._topics: dict[str, TopicMeter] = {}
        self._groups: dict[str, ReaderMeter] = {}
        self._send_backs: dict[str, Meter] = {}
        self._all_put = Meter(self.started_ms)
        self._all_got = Meter(self.started_ms)
        self._totals: deque[_Totals] = deque([_Totals(self.started_ms, 0, 0, 0, 0)], maxlen=601)
        self._day = self._day_of(self.started_ms)
        self._mornings = ((0, 0), (0, 0))
        self._sampled_ms = self.started_ms
        self.put_failures = 0
        self.found = 0
        self.misses = 0
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """Number of messages that became dead letters, by group and topic."""
        self.times: RequestTimes | None = None
        """Measures requests, if metrics are served; sizes are measured then too."""

    # Called by the hot paths.

    def count_stored(self, arrivals: Iterable[StoredMessages]) -> None:
        """Count messages that were stored."""
        topic, count, size = "", 0, 0
        for arrival in arrivals:
            if arrival.topic != topic:
                if count:
                    self._count_run(topic, count, size)
                topic, count, size = arrival.topic, 0, 0
            count += arrival.message_count
            size += arrival.record_bytes
        if count:
            self._count_run(topic, count, size)

    def _count_run(self, topic: str, count: int, size: int) -> None:
        """Count a run of messages of one topic."""
        meter = self._topics.get(topic)
        if meter is None:
            meter = self._topics[topic] = TopicMeter(self._clock.now_ms())
        if self.times is not None:
            mean = size / count
            if meter.above < mean <= meter.up_to:
                meter.within += count
            else:
                meter.count_size(mean, count)
        for each in (meter, self._all_put):
            each.count += count
            each.size += size
            each.calls += count

    def count_failed_put(self) -> None:
        """Count a send that the store refused."""
        self.put_failures += 1

    def count_get(self, topic: str, group: str, count: int, size: int) -> None:
        """Count a pull that returned messages."""
        self.count_get_of(f"{topic}@{group}", count, size)

    def count_get_of(self, row: str, count: int, size: int, calls: int = 1) -> None:
        """Count pulls that returned messages; ``row`` is ``topic@group``."""
        meter = self._groups.get(row)
        if meter is None:
            meter = self._groups[row] = ReaderMeter(row, self._clock.now_ms())
        meter.count += count
        meter.size += size
        meter.calls += calls
        every = self._all_got
        every.count += count
        every.size += size
        every.calls += calls
        self.found += calls

    def count_send_back(self, topic: str, group: str) -> None:
        """Count a message that a group could not handle and sent back."""
        key = f"{topic}@{group}"
        meter = self._send_backs.get(key)
        if meter is None:
            meter = self._send_backs[key] = Meter(self._clock.now_ms())
        meter.count += 1
        meter.calls += 1

    def count_empty_get(self) -> None:
        """Count a pull that returned nothing."""
        self.misses += 1

    # Called by the server's timer.

    def sample(self) -> None:
        """Record the counters; called once a second."""
        now_ms = self._clock.now_ms()
        put, got = self._all_put.count, self._all_got.count
        self._totals.append(_Totals(now_ms, put, self.found, self.misses, got))
        day = self._day_of(now_ms)
        if day != self._day:
            self._day = day
            self._mornings = (self._mornings[1], (put, got))
        if now_ms - self._sampled_ms >= _MINUTE.every_ms:
            self._sampled_ms = now_ms
            for table in (self._topics, self._groups, self._send_backs):
                for meter in table.values():
                    meter.sample(now_ms)
            self._all_put.sample(now_ms)
            self._all_got.sample(now_ms)

    # Asked by administrators.

    @property
    def put_count(self) -> int:
        """Number of messages stored since the start."""
        return self._all_put.count

    @property
    def put_bytes(self) -> int:
        """Number of bytes stored since the start."""
        return self._all_put.size

    @property
    def put_today(self) -> DayTotals:
        """Messages stored by the start of yesterday, by the start of today, and so far."""
        yesterday, today = self._mornings
        return DayTotals(yesterday[0], today[0], self._all_put.count)

    @property
    def got_today(self) -> DayTotals:
        """Messages consumed by the start of yesterday, by the start of today, and so far."""
        yesterday, today = self._mornings
        return DayTotals(yesterday[1], today[1], self._all_got.count)

    def rates(self, what: str) -> list[float]:
        """Return the rate per second of a counter over the last 10, 60 and 600 s."""
        now_ms = self._clock.now_ms()
        now = _Totals(now_ms, self._all_put.count, self.found, self.misses, self._all_got.count)
        rates = []
        for seconds in RATE_WINDOWS_S:
            then = self._totals_at(now_ms - seconds * 1000)
            span_ms = now_ms - then.ms
            grown = getattr(now, what) - getattr(then, what)
            rates.append(round(grown * 1000 / span_ms, 4) if span_ms > 0 else 0.0)
        return rates

    def topics(self) -> list[tuple[str, TopicMeter]]:
        """Return the counters of every topic."""
        return list(self._topics.items())

    def readers(self) -> list[ReaderMeter]:
        """Return the counters of every topic and group that takes messages from it."""
        return list(self._groups.values())

    def topic_put_tps(self, topic: str) -> float:
        """Return the messages per second that the topic received in the last minute."""
        return self._tps(self._topics.get(topic))

    def group_get_tps(self, topic: str, group: str) -> float:
        """Return the messages per second that the group took from the topic in the last minute."""
        return self._tps(self._groups.get(f"{topic}@{group}"))

    def item(self, name: str, key: str) -> StatsBody | None:
        """Return a counter by RocketMQ's name and key, None if it has no counts."""
        meters: dict[str, Mapping[str, Meter]] = {
            "TOPIC_PUT": self._topics,
            "GROUP_GET": self._groups,
            "SNDBCK_PUT": self._send_backs,
            "BROKER_PUT": {key: self._all_put},
            "BROKER_GET": {key: self._all_got},
        }
        table, _, kind = name.rpartition("_")
        meter = meters.get(table, {}).get(key)
        if meter is None or kind not in ("NUMS", "SIZE"):
            return None
        now_ms, sizes = self._clock.now_ms(), kind == "SIZE"
        return StatsBody(
            stats_minute=meter.window(_MINUTE, now_ms, sizes=sizes),
            stats_hour=meter.window(_HOUR, now_ms, sizes=sizes),
            stats_day=meter.window(_DAY, now_ms, sizes=sizes),
        )

    def forget_topic(self, topic: str) -> None:
        """Forget the counters of a topic that was deleted."""
        self._topics.pop(topic, None)
        for group, name in [each for each in self.dead_letters if each[1] == topic]:
            del self.dead_letters[group, name]
        for table in (self._groups, self._send_backs):
            for key in [key for key in table if key.startswith(f"{topic}@")]:
                del table[key]

    def forget_groups(self, groups: Collection[str]) -> None:
        """Forget the counters of groups that were deleted."""
        for name, topic in [each for each in self.dead_letters if each[0] in groups]:
            del self.dead_letters[name, topic]
        for table in (self._groups, self._send_backs):
            for key in [key for key in table if key.rpartition("@")[2] in groups]:
                del table[key]

    def _tps(self, meter: Meter | None) -> float:
        if meter is None:
            return 0.0
        return meter.window(_MINUTE, self._clock.now_ms(), sizes=False).tps

    def _totals_at(self, ms: int) -> _Totals:
        for sample in reversed(self._totals):
            if sample.ms <= ms:
                return sample
        return self._totals[0]
