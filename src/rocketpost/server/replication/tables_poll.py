"""Tables of a master that does not know FOLLOW_TABLES, as RocketMQ's slave fetches them.

The answers do not tell to which position of the log they belong. The end of the master's log is
asked for afterwards: once this broker has the log up to there, the progress in the tables is safe
to use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from rocketpost.codec.bodies.followed_tables import TableText
from rocketpost.codec.bodies.kv import decode_kv_table
from rocketpost.codec.bodies.timer import decode_check_point
from rocketpost.codec.codes import RequestCode, ResponseCode
from rocketpost.codec.command import Command
from rocketpost.errors import RemoteProtocolError
from rocketpost.server.replication import tables_feed as feed

_ANSWER_SECONDS: Final = 10.0
_TIMER_MARGIN_MS: Final = 10_000
"""RocketMQ's timer may still be delivering messages due this long before its check point."""
_TABLES: Final = {
    RequestCode.GET_ALL_TOPIC_CONFIG: feed.TOPICS,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: feed.GROUPS,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: feed.REQUEST_MODES,
    RequestCode.GET_ALL_CONSUMER_OFFSET: feed.OFFSETS,
    RequestCode.GET_ALL_DELAY_OFFSET: feed.DELAYS,
}
_MISSING: Final = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.SYSTEM_ERROR)
"""Answers of a master that has no such table: it is too old, or has no timer."""


class Master(Protocol):
    """A connection to the master."""

    async def request(
        self,
        code: int,
        *,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout: float,
    ) -> Command:
        """Send a request and return the answer."""
        ...


class PolledTables(NamedTuple):
    """Tables of a master, and a position of its log after everything that they refer to."""

    tables: list[TableText]
    position: int


async def poll_tables(master: Master) -> PolledTables:
    """Fetch every table of a master.

    Raises:
        RocketpostError: It cannot be reached, or refuses.
    """
    tables = []
    for code, name in _TABLES.items():
        answer = await master.request(code, timeout=_ANSWER_SECONDS)
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            continue
        answer.raise_for_code()
        tables.append(TableText(name, "", bytes(answer.body)))
    timer = await _poll_timer(master)
    if timer is not None:
        tables.append(timer)
    return PolledTables(tables, await _log_end(master))


async def _poll_timer(master: Master) -> TableText | None:
    answer = await master.request(RequestCode.GET_TIMER_CHECK_POINT, timeout=_ANSWER_SECONDS)
    metrics = await master.request(RequestCode.GET_TIMER_METRICS, timeout=_ANSWER_SECONDS)
    if answer.code in _MISSING or metrics.code in _MISSING:
        return None
    answer.raise_for_code()
    metrics.raise_for_code()
    check_point = decode_check_point(answer.body)
    left_before = check_point.master_queue_offset, check_point.read_ms - _TIMER_MARGIN_MS
    text = feed.TimerText(list(check_point), msgspec.Raw(bytes(metrics.body)), left_before)
    return TableText(feed.TIMER, "", msgspec.json.encode(text))


async def _log_end(master: Master) -> int:
    answer = await master.request(RequestCode.GET_BROKER_RUNTIME_INFO, timeout=_ANSWER_SECONDS)
    answer.raise_for_code()
    text = decode_kv_table(answer.body).get("commitLogMaxOffset", "")
    if not text.isdecimal():
        raise RemoteProtocolError("the master does not tell the end of its log")
    return int(text)
