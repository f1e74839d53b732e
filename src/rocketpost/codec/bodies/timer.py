"""Progress of a broker's timer, as slaves read it: GET_TIMER_CHECK_POINT and GET_TIMER_METRICS.

The check point is seven big-endian int64; brokers before 5.1 send the first four.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import msgspec

from rocketpost.codec.bodies.leniency import decode_body
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.topic import DataVersion

_FIELDS: Final = Struct(">7q")
_OLD_FIELDS: Final = Struct(">4q")


class TimerCheckPoint(NamedTuple):
    """Progress of a timer."""

    read_ms: int = 0
    """Every message that is due before this time has left the wheel."""
    log_end: int = 0
    queue_offset: int = 0
    """Offset of the next message to take from the timer topic."""
    master_queue_offset: int = 0
    """The same offset at the master."""
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0


class TopicTimers(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Timed messages of one topic that wait."""

    count: int = 0
    time_stamp: int = 0


class TimerMetrics(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Timed messages that wait, by topic."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, TopicTimers] = {}


def encode_check_point(check_point: TimerCheckPoint) -> bytes:
    """Return the body of GET_TIMER_CHECK_POINT."""
    return _FIELDS.pack(*check_point)


def decode_check_point(data: bytes | memoryview) -> TimerCheckPoint:
    """Read the body of GET_TIMER_CHECK_POINT.

    Raises:
        RemoteProtocolError: It has neither 56 nor 32 bytes.
    """
    for fields in (_FIELDS, _OLD_FIELDS):
        if len(data) == fields.size:
            return TimerCheckPoint(*fields.unpack(data))
    raise RemoteProtocolError(f"bad body: a timer check point of {len(data)} bytes")


def encode_timer_metrics(metrics: TimerMetrics) -> bytes:
    """Return the body of GET_TIMER_METRICS."""
    return encode(metrics)


def decode_timer_metrics(data: bytes | memoryview) -> TimerMetrics:
    """Read the body of GET_TIMER_METRICS.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, TimerMetrics)
