"""Header fields of requests about offsets, both of queues and of consumer groups."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32, Int64

LOWER = "LOWER"
UPPER = "UPPER"


class QueryOffset(msgspec.Struct, rename="camel", kw_only=True):
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool = True


class UpdateOffset(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """UPDATE_CONSUMER_OFFSET (15).

    ``only_forward`` is our own: a slave passes on a commit, which must not move the group back.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    only_forward: bool | None = None


class QueueRequest(msgspec.Struct, rename="camel", kw_only=True):
    """GET_MAX_OFFSET (30), GET_MIN_OFFSET (31), GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: Int32
    committed: bool = True


class SearchOffset(msgspec.Struct, rename="camel", kw_only=True):
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: Int32
    timestamp: Int64
    boundary_type: str = LOWER

    @property
    def upper(self) -> bool:
        """Whether to find the last message at or before the time, not the first at or after it."""
        return self.boundary_type.upper() == UPPER


class OffsetResponse(msgspec.Struct, rename="camel", kw_only=True):
    """An offset; always present, because Java unboxes it."""

    offset: Int64


class TimestampResponse(msgspec.Struct, rename="camel", kw_only=True):
    """A time; -1 for none."""

    timestamp: Int64


class ConsumeStats(msgspec.Struct, rename="camel", kw_only=True):
    """GET_CONSUME_STATS (208). ``topic_list`` is separated by semicolons."""

    consumer_group: str
    topic: str = ""
    topic_list: str = ""

    @property
    def topics(self) -> list[str]:
        """The requested topics; none means all topics of the group."""
        listed = [topic.strip() for topic in self.topic_list.split(";")]
        return [topic for topic in (self.topic, *listed) if topic]


class BrokerConsumeStats(msgspec.Struct, rename="camel", kw_only=True):
    """GET_BROKER_CONSUME_STATS (317)."""

    is_order: bool = False


class ConsumeTimeSpan(msgspec.Struct, rename="camel", kw_only=True):
    """QUERY_CONSUME_TIME_SPAN (303)."""

    topic: str
    group: str


class ResetOffset(msgspec.Struct, rename="camel", kw_only=True):
    """INVOKE_BROKER_TO_RESET_OFFSET (222) and RESET_CONSUMER_CLIENT_OFFSET (220).

    ``timestamp`` -1 means the end of the queue; ``queue_id`` -1 means every queue. Without force,
    offsets only move backwards.
    """

    topic: str
    group: str
    timestamp: Int64 = -1
    is_force: bool = True
    queue_id: Int32 = -1
    offset: Int64 | None = None


class ConsumerStatus(msgspec.Struct, rename="camel", kw_only=True):
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) and GET_CONSUMER_STATUS_FROM_CLIENT (221).

    ``client_addr`` is the id of the one client to ask; without it, all clients are asked.
    """

    topic: str
    group: str
    client_addr: str = ""


class CloneOffset(msgspec.Struct, rename="camel", kw_only=True):
    """CLONE_GROUP_OFFSET (314). Without a topic, all topics."""

    src_group: str
    dest_group: str
    topic: str = ""
    offline: bool = False


class CorrectionOffset(msgspec.Struct, rename="camel", kw_only=True):
    """QUERY_CORRECTION_OFFSET (308). ``filter_groups`` is separated by commas."""

    topic: str
    compare_group: str
    filter_groups: str = ""
