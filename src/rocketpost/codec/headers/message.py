"""Header fields of sending, pulling and looking up messages.

Field names are the wire's: Java's camelCase, and single letters for the short form of a send.
``sequence``, ``duplicate`` and ``queueOffsets`` are our own; RocketMQ ignores them.
"""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32, Int64


class SendMessage(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """SEND_MESSAGE (10)."""

    producer_group: str
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32 = -1
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    sequence: str | None = None


class SendMessageV2(
    msgspec.Struct,
    gc=False,
    kw_only=True,
    rename={
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    },
):
    """SEND_MESSAGE_V2 (310) and SEND_BATCH_MESSAGE (320): one letter per field."""

    producer_group: str
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: Int32 = 4
    queue_id: Int32 = -1
    sys_flag: Int32 = 0
    born_timestamp: Int64 = 0
    flag: Int32 = 0
    properties: str = ""
    reconsume_times: Int32 = 0
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    broker_name: str | None = None
    sequence: str | None = None


class SendResponse(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """Answer to a send whose message was stored."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    region: str | None = msgspec.field(default=None, name="MSG_REGION")
    trace_on: str | None = msgspec.field(default=None, name="TRACE_ON")
    duplicate: str | None = None
    """Whether each message was stored before; absent without deduplication."""
    queue_offsets: str | None = None
    """The queue offset of each message, if they are not consecutive."""


class PullMessage(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32 = 32
    sys_flag: Int32 = 0
    commit_offset: Int64 = 0
    suspend_timeout_millis: Int64 = 0
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


class PullResponse(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """The offsets in every answer to a pull."""

    suggest_which_broker_id: Int64 = 0
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None


class ViewMessage(msgspec.Struct, rename="camel", kw_only=True):
    """VIEW_MESSAGE_BY_ID (33): by position in the commit log."""

    offset: Int64
    topic: str | None = None


class QueryMessage(msgspec.Struct, rename="camel", kw_only=True):
    """QUERY_MESSAGE (12)."""

    topic: str
    key: str
    max_num: Int32 = 32
    begin_timestamp: Int64 = 0
    end_timestamp: Int64 = 2**63 - 1
    unique_key_query: str | None = msgspec.field(default=None, name="_UNIQUE_KEY_QUERY")


class QueryResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to QUERY_MESSAGE: the progress of the key index."""

    index_last_update_timestamp: Int64 = 0
    index_last_update_phyoffset: Int64 = 0
