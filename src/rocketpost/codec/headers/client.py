"""Header fields of requests about connected clients."""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32


class HeartbeatResponse(msgspec.Struct, kw_only=True):
    """Answer to HEART_BEAT (34): whether fingerprints are supported, and whether to send all."""

    supports_v2: bool = msgspec.field(default=True, name="IS_SUPPORT_HEART_BEAT_V2")
    subscriptions_wanted: bool = msgspec.field(default=True, name="IS_SUB_CHANGE")


class Unregister(msgspec.Struct, rename="camel", kw_only=True):
    """UNREGISTER_CLIENT (35). C++ writes an unused group as an empty string."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str = ""
    consumer_group: str = ""


class ConsumerGroupRequest(msgspec.Struct, rename="camel", kw_only=True):
    """A request that names a consumer group and nothing else.

    GET_CONSUMER_LIST_BY_GROUP (38), GET_CONSUMER_CONNECTION_LIST (203) and, to the members,
    NOTIFY_CONSUMER_IDS_CHANGED (40).
    """

    consumer_group: str


class ProducerGroupRequest(msgspec.Struct, rename="camel", kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST (204)."""

    producer_group: str


class RunningInfoRequest(msgspec.Struct, rename="camel", kw_only=True):
    """GET_CONSUMER_RUNNING_INFO (307)."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeDirectly(msgspec.Struct, rename="camel", kw_only=True):
    """CONSUME_MESSAGE_DIRECTLY (309). The broker fills in its name and the flags."""

    consumer_group: str
    client_id: str = ""
    msg_id: str = ""
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None


class GetProducerStates(msgspec.Struct, rename="camel", kw_only=True):
    """GET_PRODUCER_STATES (7101): one producer with all its runs, or the latest producers."""

    producer_id: str | None = None
    count_max: Int32 = 100
    runs_max: Int32 = 10
    """Maximum of runs per producer, highest first; a named producer is shown with all."""
