"""JSON bodies about connected clients: heartbeats, members, connections, locks.

A heartbeat is read leniently (``leniency``), because clients differ: sets may be missing or null,
enums may be ordinals, numbers may be quoted. The codes of a tag expression are computed here, not
taken from the client, because C++ leaves them out.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from rocketpost.codec.bodies.leniency import decode_body, enum_name, fill
from rocketpost.codec.lenient_json import encode
from rocketpost.errors import RemoteProtocolError
from rocketpost.model.client_version import version_text
from rocketpost.model.group import TAG, Subscription, parse_tags
from rocketpost.model.route import MessageQueue

CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_SOFTWARE_LENGTH_MAX: Final = 64
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class ConsumerData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A consumer group in a heartbeat. Members in the order in which Java writes them."""

    consume_from_where: str = CONSUME_FROM[0]
    consume_type: str = CONSUME_TYPES[1]
    group_name: str
    message_model: str = MESSAGE_MODELS[1]
    subscription_data_set: list[Subscription] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """A producer group in a heartbeat."""

    group_name: str


class Heartbeat(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Body of HEART_BEAT, sent every 30 seconds. Members in the order in which Java writes them."""

    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    producer_data_set: list[ProducerData] = []
    without_sub: bool = False
    protocol: str | msgspec.UnsetType = msgspec.UNSET
    """The protocol of a client behind a proxy. This member and the next are ours."""
    client_version: str | msgspec.UnsetType = msgspec.UNSET
    """The version of that client, as it names it."""


class _Consumer(msgspec.Struct, rename="camel"):
    group_name: str
    consume_from_where: Any = None
    consume_type: Any = None
    message_model: Any = None
    subscription_data_set: list[dict[str, Any]] = []
    unit_mode: bool = False


class _Incoming(msgspec.Struct, rename="camel"):
    client_id: str = msgspec.field(name="clientID")
    consumer_data_set: list[_Consumer] = []
    producer_data_set: list[ProducerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = False
    protocol: str = ""
    client_version: str = ""


class _IncomingSubscription(msgspec.Struct, rename="camel"):
    topic: str
    sub_string: str = ""
    expression_type: str = TAG
    sub_version: int = 0
    class_filter_mode: bool = False


class ConsumerIds(msgspec.Struct, rename="camel"):
    """Answer to GET_CONSUMER_LIST_BY_GROUP."""

    consumer_id_list: list[str] = []


class ConnectionData(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One connected client."""

    client_addr: str = ""
    client_id: str = ""
    language: str = "OTHER"
    version: int = 0
    protocol: str | msgspec.UnsetType = msgspec.UNSET
    client_version: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def version_shown(self) -> str:
        """The version for people."""
        return shown_version(self.version, self.protocol, self.client_version)


class ConsumerConnections(msgspec.Struct, rename="camel", kw_only=True):
    """Answer to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: list[ConnectionData] = []
    consume_from_where: str = CONSUME_FROM[0]
    consume_type: str = CONSUME_TYPES[1]
    message_model: str = MESSAGE_MODELS[1]
    subscription_table: dict[str, Subscription] = {}


def shown_version(
    version: int, protocol: str | msgspec.UnsetType, client_version: str | msgspec.UnsetType
) -> str:
    """Return a client's version for people; of a client behind a proxy, with its protocol.

    Args:
        version: The number in its requests.
        protocol: The protocol that it speaks to a proxy, if it does.
        client_version: The version as such a client names it.
    """
    if not protocol:
        return version_text(version)
    return f"{client_version or '?'} ({protocol})"


class ProducerConnections(msgspec.Struct, rename="camel"):
    """Answer to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: list[ConnectionData] = []


class ProducerInfo(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """One connected producer."""

    client_id: str = ""
    language: str = "OTHER"
    last_update_timestamp: int = 0
    remote_ip: str = msgspec.field(default="", name="remoteIP")
    version: int = 0
    protocol: str | msgspec.UnsetType = msgspec.UNSET
    client_version: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def version_shown(self) -> str:
        """The version for people."""
        return shown_version(self.version, self.protocol, self.client_version)


class ProducerTableBody(msgspec.Struct):
    """Answer to GET_ALL_PRODUCER_INFO: producers by group."""

    data: dict[str, list[ProducerInfo]] = {}


class LockRequest(msgspec.Struct, rename="camel", kw_only=True):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []
    only_this_broker: bool = False


class LockResponse(msgspec.Struct):
    """Answer to LOCK_BATCH_MQ: the queues that the client holds now."""

    lockOKMQSet: list[MessageQueue] = []  # noqa: N815 - the wire's name


class ClientConfigCheck(msgspec.Struct, rename="camel", kw_only=True):
    """Body of CHECK_CLIENT_CONFIG."""

    client_id: str = ""
    group: str = ""
    namespace: str = ""
    subscription_data: Subscription


def decode_heartbeat(data: bytes | memoryview) -> Heartbeat:
    """Read a heartbeat from any client.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    incoming = decode_body(data, _Incoming)
    return Heartbeat(
        client_id=incoming.client_id,
        consumer_data_set=[_consumer(each) for each in incoming.consumer_data_set],
        heartbeat_fingerprint=incoming.heartbeat_fingerprint,
        producer_data_set=incoming.producer_data_set,
        without_sub=incoming.without_sub,
        protocol=incoming.protocol[:_SOFTWARE_LENGTH_MAX] or msgspec.UNSET,
        client_version=incoming.client_version[:_SOFTWARE_LENGTH_MAX] or msgspec.UNSET,
    )


def encode_heartbeat(heartbeat: Heartbeat) -> bytes:
    """Return the body of HEART_BEAT."""
    return encode(heartbeat)


def decode_client_config_check(data: bytes | memoryview) -> ClientConfigCheck:
    """Read the body of CHECK_CLIENT_CONFIG.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    plain = decode_body(data, dict[str, Any])
    subscription = plain.pop("subscriptionData", None)
    if not isinstance(subscription, dict):
        raise RemoteProtocolError("bad body: subscriptionData is missing")
    names = fill(dict[str, str], plain)
    return ClientConfigCheck(
        client_id=names.get("clientId", ""),
        group=names.get("group", ""),
        namespace=names.get("namespace", ""),
        subscription_data=read_subscription(subscription),
    )


def read_subscription(plain: dict[str, Any]) -> Subscription:
    """Convert the subscription in a client's body, computing its tag codes.

    Raises:
        RemoteProtocolError: The topic is missing, or a member has the wrong type.
    """
    given = fill(_IncomingSubscription, plain)
    if given.expression_type not in ("", TAG):
        return Subscription(
            topic=given.topic,
            expression_type=given.expression_type,
            sub_string=given.sub_string,
            sub_version=given.sub_version,
            class_filter_mode=given.class_filter_mode,
        )
    parsed = parse_tags(given.topic, given.sub_string, version=given.sub_version)
    if given.class_filter_mode:
        return msgspec.structs.replace(parsed, class_filter_mode=True)
    return parsed


def decode_lock_request(data: bytes | memoryview) -> LockRequest:
    """Read the body of LOCK_BATCH_MQ or UNLOCK_BATCH_MQ.

    Raises:
        RemoteProtocolError: The body is malformed.
    """
    return decode_body(data, LockRequest)


def _consumer(given: _Consumer) -> ConsumerData:
    return ConsumerData(
        group_name=given.group_name,
        consume_from_where=enum_name(given.consume_from_where, CONSUME_FROM, CONSUME_FROM[0]),
        consume_type=enum_name(given.consume_type, CONSUME_TYPES, CONSUME_TYPES[1]),
        message_model=enum_name(given.message_model, MESSAGE_MODELS, MESSAGE_MODELS[1]),
        subscription_data_set=[read_subscription(each) for each in given.subscription_data_set],
        unit_mode=given.unit_mode,
    )
