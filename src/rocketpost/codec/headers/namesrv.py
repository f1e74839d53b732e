"""Header fields of the requests that a name server answers.

Field names are the wire's. Some brokers leave out what Java calls required; what a name server can
do without has a default here.
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
    """What GET_KV_CONFIG is answered with."""

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


class Registered(msgspec.Struct, rename="camel", kw_only=True):
    """What REGISTER_BROKER is answered with; a slave learns its master here."""

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


class DataVersionChanged(msgspec.Struct, rename="camel", kw_only=True):
    """What QUERY_DATA_VERSION is answered with."""

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


class WipedTopics(msgspec.Struct, rename="camel", kw_only=True):
    """What WIPE_WRITE_PERM_OF_BROKER is answered with."""

    wipe_topic_count: Int32


class AddedTopics(msgspec.Struct, rename="camel", kw_only=True):
    """What ADD_WRITE_PERM_OF_BROKER is answered with."""

    add_topic_count: Int32


class DeleteTopic(msgspec.Struct, rename="camel", kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV (216); without a cluster in all of them."""

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


class BrokerHeartbeat(msgspec.Struct, rename="camel", kw_only=True):
    """BROKER_HEARTBEAT (904); only what a name server looks at."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: Int64 | None = None
