"""Header fields of the requests that a name server answers.

Field names are those of the wire. Some brokers omit fields that Java calls required; fields that a
name server does not need have a default here.
"""

from __future__ import annotations

import msgspec

from rocketpost.codec.numbers import Int32, Int64


class PutKv(msgspec.Struct, rename="camel", kw_only=True):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


class KvKey(msgspec.Struct, rename="camel", kw_only=True):
    """GET_KV_CONFIG (101) and DELETE_KV_CONFIG (102)."""

    namespace: str
    key: str


class KvValue(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to GET_KV_CONFIG."""

    value: str


class KvNamespace(msgspec.Struct, rename="camel", kw_only=True):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str


class RegisterBroker(msgspec.Struct, rename="camel", kw_only=True):
    """REGISTER_BROKER (103)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: Int64
    heartbeat_timeout_millis: Int64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: Int32 = msgspec.field(default=0, name="bodyCrc32")
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class RegisterBrokerResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to REGISTER_BROKER; tells a slave its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(msgspec.Struct, rename="camel", kw_only=True):
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersion(msgspec.Struct, rename="camel", kw_only=True):
    """QUERY_DATA_VERSION (322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64 = 0


class QueryDataVersionResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to QUERY_DATA_VERSION."""

    changed: bool


class GetRoute(msgspec.Struct, rename="camel", kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str
    accept_standard_json_only: bool | None = None
    zone_mode: str | None = msgspec.field(default=None, name="__ZONE_MODE")
    zone_name: str | None = msgspec.field(default=None, name="__ZONE_NAME")


class BrokerName(msgspec.Struct, rename="camel", kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


class WipeWritePermResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to WIPE_WRITE_PERM_OF_BROKER."""

    wipe_topic_count: Int32


class AddWritePermResponse(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to ADD_WRITE_PERM_OF_BROKER."""

    add_topic_count: Int32


class DeleteTopic(msgspec.Struct, rename="camel", kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216); without a cluster, in all clusters."""

    topic: str
    cluster_name: str | None = None


class RegisterTopic(msgspec.Struct, rename="camel", kw_only=True):
    """REGISTER_TOPIC_IN_NAMESRV (217)."""

    topic: str


class TopicsByCluster(msgspec.Struct, rename="camel", kw_only=True):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


class GetMemberGroup(msgspec.Struct, rename="camel", kw_only=True):
    """GET_BROKER_MEMBER_GROUP (901)."""

    cluster_name: str
    broker_name: str


class NotifyMinBrokerIdChange(msgspec.Struct, rename="camel", kw_only=True):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905), which a name server sends to brokers."""

    min_broker_id: Int64
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class BrokerHeartbeat(msgspec.Struct, rename="camel", kw_only=True):
    """BROKER_HEARTBEAT (904); only the fields that a name server uses."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
