"""Header fields of administration and maintenance."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32, Int64


class GetDamage(msgspec.Struct, rename="camel", kw_only=True):
    """GET_DAMAGE (29012): the damage of a broker, or of one topic."""

    topic: str | None = None


class StatsRequest(msgspec.Struct, rename="camel", kw_only=True):
    """VIEW_BROKER_STATS_DATA (315)."""

    stats_name: str
    stats_key: str


class QueryQueue(msgspec.Struct, rename="camel", kw_only=True):
    """QUERY_CONSUME_QUEUE (321)."""

    topic: str
    queue_id: Int32
    index: Int64 = 0
    count: Int32 = 10
    consumer_group: str = ""


class ResetMasterFlushed(msgspec.Struct, rename="camel", kw_only=True):
    """RESET_MASTER_FLUSH_OFFSET (908)."""

    master_flush_offset: Int64


class ConfigResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to GET_BROKER_CONFIG (26); the version is JSON text."""

    version: str
