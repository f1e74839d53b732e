"""The exception tree; everything that Rocketpost raises on purpose hangs here.

RocketpostError
├── ConfigError               a settings file, option or argument is wrong; names the key
│   └── FilterError           a filter expression is wrong; says where and why
├── ProtocolError
│   ├── RemoteProtocolError   the peer sent bytes that cannot be understood
│   └── LocalProtocolError    we were about to send such bytes ourselves
├── StoreError                the store cannot do this; nothing was changed
│   ├── CorruptRecord         bytes on disk are not the record they should be
│   ├── StoreFull             no room to allocate; reads go on
│   ├── StoreBroken           a write or fsync failed; acknowledges nothing until restarted
│   └── StoreLocked           another process has this directory
├── Fault                     a refusal with a RocketMQ response code; a class per code, below:
│   └── TopicNotExist, GroupNotExist, NoPermission, SystemBusy, ServerError, ...
└── ClientError
    ├── RequestTimeout        no answer in time; the request may or may not have happened
    │   └── NoReply           the message of a request is stored, but nobody replied in time
    ├── ConnectionLost        the connection broke, so the request may or may not have happened
    │   └── NotConnected      no connection could be made, so nothing was sent
    ├── RouteNotFound         no broker is known for the topic
    ├── NoNameServer          no name server is configured or none answers
    ├── NotSupported          a broker lacks what this needs
    ├── AlreadyExists         a topic or group is there with another configuration
    └── MessageRefused        the message breaks a limit; checked before it is sent
"""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "ClientError",
    "ConfigError",
    "ConnectionLost",
    "ConsumeTimedOut",
    "ConsumerNotOnline",
    "CorruptRecord",
    "Fault",
    "FilterDataNotExist",
    "FilterDataNotLatest",
    "FilterError",
    "FlowControl",
    "GoAway",
    "GroupNotExist",
    "IllegalOperation",
    "InvalidParameter",
    "LocalProtocolError",
    "MessageIllegal",
    "MessageRefused",
    "NoMessage",
    "NoNameServer",
    "NoPermission",
    "NoReply",
    "NotConnected",
    "NotSupported",
    "ProducerFenced",
    "ProtocolError",
    "PullNotFound",
    "PullOffsetMoved",
    "PullRetryImmediately",
    "QueryNotFound",
    "RemoteProtocolError",
    "RequestCodeNotSupported",
    "RequestTimeout",
    "RocketpostError",
    "RouteNotFound",
    "SequenceForgotten",
    "SequenceOutOfOrder",
    "ServerError",
    "ServiceNotAvailable",
    "SlaveNotAvailable",
    "StoreBroken",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "SubscriptionNotExist",
    "SubscriptionNotLatest",
    "SubscriptionParseFailed",
    "SystemBusy",
    "TopicNotExist",
    "UnknownFault",
]


class RocketpostError(Exception):
    """Base of every error that Rocketpost raises on purpose."""


class ConfigError(RocketpostError):
    """A setting is unknown, malformed or contradictory; the text names it."""


class FilterError(ConfigError):
    """A filter expression is wrong.

    Attributes:
        reason: What is wrong, without the place.
        position: The character at fault, counted from 1; None if the whole is.
    """

    def __init__(self, reason: str, position: int | None = None) -> None:
        place = "" if position is None else f"at character {position}: "
        super().__init__(f"{place}{reason}")
        self.reason = reason
        self.position = position


class ProtocolError(RocketpostError):
    """Bytes that break the remoting protocol."""


class RemoteProtocolError(ProtocolError):
    """The peer sent bytes that cannot be understood."""


class LocalProtocolError(ProtocolError):
    """A value of ours does not fit the protocol; nothing was sent."""


class StoreError(RocketpostError):
    """The store refuses or failed; the operation changed nothing."""


class CorruptRecord(StoreError):  # noqa: N818 - named after what is found
    """Bytes on disk are not the record that they should be."""


class StoreFull(StoreError):  # noqa: N818
    """There is no room to allocate a file; reads go on."""


class StoreBroken(StoreError):  # noqa: N818
    """A write or fsync failed, so nothing is acknowledged until the process restarts."""


class StoreLocked(StoreError):  # noqa: N818
    """Another process has this store directory open."""


class Fault(RocketpostError):  # noqa: N818 - a refusal, the same class on both sides of the wire
    """A refusal that travels as a response code and a remark.

    Each child stands for one code; :class:`UnknownFault` for those that have no class.
    """

    code: int = 1

    def __init__(self, remark: str = "") -> None:
        super().__init__(remark)
        self.remark = remark


# Refusals, by response code.


class ServerError(Fault):
    """Something failed that has no code of its own; the remark says what."""

    code = 1  # SYSTEM_ERROR


class SystemBusy(Fault):
    """The server sheds load; try another broker or later."""

    code = 2  # SYSTEM_BUSY


class RequestCodeNotSupported(Fault):
    """Nobody handles this request code here."""

    code = 3  # REQUEST_CODE_NOT_SUPPORTED


class SlaveNotAvailable(Fault):
    """The request needs a master, or a slave that is in sync."""

    code = 11  # SLAVE_NOT_AVAILABLE


class MessageIllegal(Fault):
    """The message breaks a limit: size, properties, topic length."""

    code = 13  # MESSAGE_ILLEGAL


class ServiceNotAvailable(Fault):
    """The store takes no writes now: disk full, failed flush, shutting down."""

    code = 14  # SERVICE_NOT_AVAILABLE


class NoPermission(Fault):
    """A permission bit, a disabled group or an access rule forbids it."""

    code = 16  # NO_PERMISSION


class TopicNotExist(Fault):
    """The topic is unknown here and may not be created on the fly."""

    code = 17  # TOPIC_NOT_EXIST


class PullNotFound(Fault):
    """No message at this offset yet."""

    code = 19  # PULL_NOT_FOUND


class PullRetryImmediately(Fault):
    """Nothing matched so far; go on from the next offset at once."""

    code = 20  # PULL_RETRY_IMMEDIATELY


class PullOffsetMoved(Fault):
    """The offset lies outside the queue."""

    code = 21  # PULL_OFFSET_MOVED


class QueryNotFound(Fault):
    """The thing that was asked for does not exist."""

    code = 22  # QUERY_NOT_FOUND


class SubscriptionParseFailed(Fault):
    """The filter expression is wrong."""

    code = 23  # SUBSCRIPTION_PARSE_FAILED


class SubscriptionNotExist(Fault):
    """The broker knows no such subscription; a heartbeat should precede it."""

    code = 24  # SUBSCRIPTION_NOT_EXIST


class SubscriptionNotLatest(Fault):
    """The broker's copy of the subscription is older than the request."""

    code = 25  # SUBSCRIPTION_NOT_LATEST


class GroupNotExist(Fault):
    """The consumer group is unknown here and may not be created on the fly."""

    code = 26  # SUBSCRIPTION_GROUP_NOT_EXIST


class FilterDataNotExist(Fault):
    """No compiled filter is known for this subscription."""

    code = 27  # FILTER_DATA_NOT_EXIST


class FilterDataNotLatest(Fault):
    """The compiled filter is older than the request."""

    code = 28  # FILTER_DATA_NOT_LATEST


class InvalidParameter(Fault):
    """A field is missing or has a value that cannot be used."""

    code = 29  # INVALID_PARAMETER


class ConsumerNotOnline(Fault):
    """No member of the group is connected."""

    code = 206  # CONSUMER_NOT_ONLINE


class ConsumeTimedOut(Fault):
    """The client that the request was relayed to did not answer in time."""

    code = 207  # CONSUME_MSG_TIMEOUT


class NoMessage(Fault):
    """The offset is outside the queue."""

    code = 208  # NO_MESSAGE


class FlowControl(Fault):
    """The server asks the client to slow down."""

    code = 215  # FLOW_CONTROL


class IllegalOperation(Fault):
    """The operation is not allowed in this state."""

    code = 604  # ILLEGAL_OPERATION


class GoAway(Fault):
    """The server is shutting down; reconnect and try once more."""

    code = 1500  # GO_AWAY


class ProducerFenced(Fault):
    """A later epoch of this producer id has begun; this producer must send no more."""

    code = 7001  # PRODUCER_FENCED


class SequenceOutOfOrder(Fault):
    """The message before this one is not stored yet; send that first, then this one again."""

    code = 7002  # SEQUENCE_OUT_OF_ORDER


class SequenceForgotten(Fault):
    """The message is too old to tell whether it was stored before; nothing was stored now."""

    code = 7003  # SEQUENCE_FORGOTTEN


class UnknownFault(Fault):
    """A response code without a class of its own."""

    def __init__(self, code: int, remark: str = "") -> None:
        super().__init__(remark)
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}"


# Clients.


class ClientError(RocketpostError):
    """The client could not do what it was asked."""


class AlreadyExists(ClientError):  # noqa: N818
    """A topic or group that was to be created is there with another configuration."""


class RequestTimeout(ClientError):  # noqa: N818
    """No answer came in time; the request may or may not have taken effect."""


class NotSupported(ClientError):  # noqa: N818
    """A broker lacks what this needs."""


class NoReply(RequestTimeout):
    """The message of a request is stored, but nobody replied in time."""


class ConnectionLost(ClientError):  # noqa: N818
    """The connection broke; the request may or may not have taken effect."""


class NotConnected(ConnectionLost):
    """No connection could be made, so nothing was sent."""


class RouteNotFound(ClientError):  # noqa: N818
    """No broker is known for the topic."""


class NoNameServer(ClientError):  # noqa: N818
    """No name server is configured, or none of them answers."""


class MessageRefused(ClientError):  # noqa: N818
    """The message breaks a limit; found before anything was sent."""
