"""The introduction of a slave to its master, before the log flows.

A slave sends EXCHANGE_BROKER_HA_INFO (906) with the facts about its log. Our master judges them by
``replication.following`` and answers with the reason if this slave can never follow it (ADR 0083).
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from rocketpost.codec.headers.replication import ExchangeHaInfo
from rocketpost.replication.following import TAIL_BYTES_MAX, LogFacts, why_not_follow
from rocketpost.store.message_store import MessageStore

LOG_PURPOSE: Final = "the log of a master"
"""The purpose of connections to an HA port, for which brokers log in."""
TAIL_BYTES: Final = 64 * 1024
"""Bytes before the end of a log that are compared; more if its last message is longer."""


def find_tail(store: MessageStore) -> int:
    """Return where the last bytes of a log begin: its last message, and at least some bytes.

    They are in one segment. It is the end of the log itself if the log is empty.
    """
    end, segment_bytes = store.written_position, store.config.segment_bytes
    segment_start = (end - 1) - (end - 1) % segment_bytes if end else 0
    last = max((queue.last_position for queue in store.queues), default=-1)
    begin = end - TAIL_BYTES
    if segment_start <= last < begin:
        begin = last
    return max(store.first_position, segment_start, begin, end - TAIL_BYTES_MAX)


def describe_blocking(store: MessageStore, tail: int) -> LogFacts:
    """Return the facts about a slave's log, whose last bytes begin at ``tail``. Any thread.

    Raises:
        OSError: The log cannot be read.
    """
    end = store.written_position
    return LogFacts(store.config.segment_bytes, end, tail, _crc_blocking(store, tail, end))


def judge_blocking(slave: ExchangeHaInfo, store: MessageStore) -> str:
    """Return the reason why a slave can never follow this log; empty if it can. Any thread."""
    end = slave.log_end or 0
    facts = LogFacts(
        segment_bytes=slave.segment_bytes or 0,
        end=end,
        tail=end if slave.tail_position is None else slave.tail_position,
        tail_crc=slave.tail_crc or 0,
    )
    try:
        return why_not_follow(
            facts,
            segment_bytes=store.config.segment_bytes,
            first=store.first_position,
            end=store.written_position,
            crc_of=lambda begin, end: _crc_blocking(store, begin, end),
        )
    except OSError as error:
        return f"the master cannot read its log from {facts.tail} on: {error.strerror}"


def _crc_blocking(store: MessageStore, begin: int, end: int) -> int:
    if begin == end:
        return 0
    store.segments.warm_from_thread(begin, end - begin)
    view = store.view(begin, end - begin)
    if view is None:
        raise OSError(0, "the log has no such bytes")
    return crc32(view)
